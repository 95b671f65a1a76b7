/**
 * Everything that Fenwick's processes say to each other: the public service, and the control plane between a
 * coordinator and the ranks of its gangs. Rules: numbers are never reused, new fields are optional, enumerators are
 * only added. Times are milliseconds since 1970 (UTC); sizes are bytes; positions and counts are tokens.
 */
namespace cpp fenwick.idl
namespace py fenwick_client.idl

/** The public service's version: a client asks for it with getServerInfo. */
const i32 PROTOCOL_VERSION = 1
/** The control plane's version: both ends say it in their first frame, and must agree. */
const i32 CONTROL_VERSION = 1

/* ------------------------------------------------------------------------------------------------ the public service */

enum ErrorCode {
  INVALID_ARGUMENT = 1, DOCUMENT_TOO_LONG = 2, NOT_FOUND = 3, CONFLICT = 4, UNAUTHENTICATED = 5, PERMISSION_DENIED = 6,
  QUOTA_EXCEEDED = 7, OVERLOADED = 8, DEADLINE_EXCEEDED = 9, CANCELLED = 10, VERSION_MISMATCH = 11, CORRUPT_DATA = 12,
  STORAGE_FULL = 13, NUMERIC_ERROR = 14, WORKER_LOST = 15, INTERNAL = 16
}

exception ServiceError {
  1: ErrorCode code
  2: string message
  3: bool retryable = false
  /** With retryable: wait this long before the same call is made again. 0: at will. */
  4: i64 retryAfterMs = 0
  5: string requestId
  6: map<string, string> details
}

/** The words of OpenAI's Batch API. */
enum JobState {
  VALIDATING = 1, IN_PROGRESS = 2, FINALIZING = 3, COMPLETED = 4, FAILED = 5, EXPIRED = 6, CANCELLING = 7, CANCELLED = 8
}

enum DocumentState { QUEUED = 1, RUNNING = 2, COMPLETED = 3, FAILED = 4, CANCELLED = 5 }

/** Name (of the coordinator's configuration) or path of a model folder; with `hash` it must have that very content. */
struct ModelRef {
  1: optional string name
  2: optional string path
  3: optional string hash
}

/** Where a document's content is. `path` and `uploadId` may also be a .jsonl of many documents, as `fenwick score` takes them. */
union DocumentSource {
  /** A file on the coordinator's host, under one of its roots. */
  1: string path
  2: string uploadId
  3: string text
  4: list<i32> tokens
}

struct DocumentRef {
  /** Required for text and tokens; for files the name without ending is the default; not for .jsonl. */
  1: optional string customId
  2: DocumentSource source
}

struct JobSpec {
  1: ModelRef model
  2: list<DocumentRef> documents
  /** auto, bytes, or the path of a SentencePiece model under one of the coordinator's roots. */
  3: optional string tokenizer
  4: optional bool bos
  /** extend (default) or strict. */
  5: optional string levels
  /** auto (default: what the first gang computes with), cpu or cuda. */
  6: optional string device
  /** auto (default: as above), fp32 or bf16. */
  7: optional string dtype
  /** Higher first; -100 to 100, 0 by default. */
  8: optional i32 priority
  /** Tries that a document gets when its gang is lost or fails, 1 to 100; by default what the coordinator says. */
  9: optional i32 maxAttempts
  /** The job expires when it is not complete by then. Absent: never. */
  10: optional i64 expiresAfterSeconds
  11: optional string name
}

struct RequestCounts {
  1: i64 total
  2: i64 completed
  3: i64 failed
  4: i64 cancelled
  5: i64 running
  6: i64 queued
}

struct Usage {
  /** Of documents that are done. */
  1: i64 tokens
  2: i64 scoredTokens
  /** All that gangs computed: what faults made them compute again, too. */
  3: i64 computedTokens
  4: double rankSeconds
  5: double gpuSeconds
  6: i64 jobs
  7: i64 documents
}

struct Job {
  1: string id
  2: JobState state
  3: RequestCounts requestCounts
  4: string name
  5: string client
  6: ModelRef model
  7: i32 priority
  8: i64 createdAt
  /** 0: not yet, as below. */
  9: i64 startedAt
  10: i64 finishedAt
  11: i64 expiresAt
  /** Grows with every change of the job or its documents: waitJob takes it. */
  12: i64 version
  /** Tokens of all documents, and of those that have passed. */
  13: i64 tokens
  14: i64 tokensDone
  15: double tokensPerSecond
  /** -1: not known. */
  16: double etaSeconds
  /** Why a job FAILED as a whole. */
  17: optional ErrorCode errorCode
  18: optional string errorMessage
  19: Usage usage
  /** Result files that readResult gives, once the job is over: results.jsonl, errors.jsonl, manifest.json. */
  20: list<string> files
  21: string tokenizer
  22: bool bos
  23: string levels
  24: string device
  25: string dtype
}

struct DocumentResult {
  1: i64 index
  2: string customId
  3: DocumentState state
  4: i64 tokens
  /** Tokens that have passed, and those that are saved. */
  5: i64 position
  6: i64 savedPosition
  7: i32 attempts
  8: string gang
  9: optional ErrorCode errorCode
  10: optional string errorMessage
  /** The row of results.jsonl or errors.jsonl, once there is one. */
  11: optional string row
  12: optional string nllFile
  13: double tokensPerSecond
  14: double etaSeconds
}

struct JobPage { 1: list<Job> jobs, 2: optional string nextPageToken }
struct DocumentPage { 1: list<DocumentResult> documents, 2: optional string nextPageToken }

struct Plan {
  1: i64 documents
  2: i64 badDocuments
  3: i64 tokens
  4: i64 longestTokens
  /** Blocks of 4,096 tokens. */
  5: i64 blocks
  6: string modelHash
  7: string family
  8: i64 parameters
  /** Largest saved state on the way. */
  9: i64 stateBytes
  /** Gangs that could compute it now. */
  10: i32 gangs
  11: list<string> firstErrors
}

struct StateInfo {
  1: i64 position
  2: i64 bytes
  3: string hash
  4: string modelHash
  5: i64 savedAt
  /** Empty: the coordinator has it. Else the file that the gangs keep it in. */
  6: string file
}

struct ModelInfo { 1: string name, 2: string path, 3: string hash, 4: string family, 5: i64 parameters, 6: i64 vocabSize, 7: i64 trainedTokens }

struct ServerInfo {
  1: i32 protocolVersion
  2: string version
  3: string commit
  4: list<ModelInfo> models
  5: i64 startedAt
  6: i64 maxFrameBytes
  7: i64 maxChunkBytes
  8: i64 maxDocumentsPerJob
}

struct Health {
  1: bool live
  /** False while the coordinator drains or its disk is full: nothing new is taken. */
  2: bool ready
  3: string reason
  4: i64 queuedDocuments
  5: i64 runningDocuments
  6: i32 gangs
  7: i64 freeBytes
}

enum RankState { CONNECTED = 1, DISCONNECTED = 2, STALLED = 3, LOST = 4, ENDED = 5 }
enum GangState { FORMING = 1, IDLE = 2, BUSY = 3, DRAINING = 4, LOST = 5, ENDED = 6 }

struct RankInfo {
  1: i32 rank
  2: RankState state
  3: string host
  4: i32 pid
  5: string device
  6: i64 lastSeenAt
  7: string step
  8: string reason
}

struct GangInfo {
  1: string id
  2: string name
  3: GangState state
  4: i32 worldSize
  5: string device
  6: string dtype
  7: list<string> modelHashes
  8: i64 connectedAt
  9: i64 lastSeenAt
  10: optional string jobId
  11: optional string customId
  12: i64 position
  13: list<RankInfo> ranks
  14: string reason
  15: double tokensPerSecond
}

struct GangPage { 1: list<GangInfo> gangs, 2: optional string nextPageToken }

enum LogLevel { INFO = 1, WARNING = 2, ERROR = 3 }

struct LogEntry {
  1: i64 sequence
  2: i64 time
  3: LogLevel level
  4: string text
  5: optional string customId
  6: optional string gang
  7: optional i32 rank
}

struct LogPage {
  1: list<LogEntry> entries
  /** For the next call's afterSequence. */
  2: i64 lastSequence
  3: bool more
}

struct Upload { 1: string id, 2: string name, 3: i64 size, 4: i64 received, 5: bool committed, 6: i64 expiresAt }

struct ResultChunk { 1: binary data, 2: i64 offset, 3: i64 size, 4: bool last }

service Fenwick {
  /**
   * Says who calls, for the rest of this connection; the first call where the coordinator has tokens, else every call is
   * UNAUTHENTICATED. An unknown token is UNAUTHENTICATED, too.
   */
  void authenticate(1: string token) throws (1: ServiceError error)
  ServerInfo getServerInfo(1: i32 protocolVersion) throws (1: ServiceError error)
  Health getHealth() throws (1: ServiceError error)
  Plan planJob(1: JobSpec spec) throws (1: ServiceError error)
  /** The same key gives the same job, whatever happened to the first answer; with another spec it is a CONFLICT. */
  Job submitJob(1: JobSpec spec, 2: string idempotencyKey) throws (1: ServiceError error)
  Job getJob(1: string jobId) throws (1: ServiceError error)
  /** Answers when the job's version is past sinceVersion, or after timeoutMs. */
  Job waitJob(1: string jobId, 2: i64 sinceVersion, 3: i64 timeoutMs) throws (1: ServiceError error)
  JobPage listJobs(1: string pageToken, 2: i32 pageSize, 3: list<JobState> states) throws (1: ServiceError error)
  DocumentPage listDocuments(1: string jobId, 2: string pageToken, 3: i32 pageSize, 4: list<DocumentState> states)
      throws (1: ServiceError error)
  Job cancelJob(1: string jobId) throws (1: ServiceError error)
  /** Queues documents of a job that is over again: the failed ones, or all. */
  Job retryJob(1: string jobId, 2: bool onlyFailed) throws (1: ServiceError error)
  Upload beginUpload(1: string name, 2: i64 size) throws (1: ServiceError error)
  /** `crc`: CRC-32 (IEEE 802.3, as zlib's) of `data`, at most 4 MiB. A chunk that is there already may be sent again. */
  Upload putChunk(1: string uploadId, 2: i64 offset, 3: binary data, 4: i64 crc) throws (1: ServiceError error)
  Upload commitUpload(1: string uploadId) throws (1: ServiceError error)
  ResultChunk readResult(1: string jobId, 2: string file, 3: i64 offset, 4: i32 maxBytes) throws (1: ServiceError error)
  LogPage readLogs(1: string jobId, 2: i64 afterSequence, 3: i32 maxEntries) throws (1: ServiceError error)
  StateInfo describeState(1: string jobId, 2: string customId) throws (1: ServiceError error)
  GangPage listWorkers(1: string pageToken, 2: i32 pageSize) throws (1: ServiceError error)
  /** The gang saves, gives its lease back and ends with exit code 0. */
  GangInfo drainWorker(1: string gangId) throws (1: ServiceError error)
  /** Of the caller, or, empty jobId aside, of one job. */
  Usage getUsage(1: string jobId) throws (1: ServiceError error)
}

/* ------------------------------------------------------------------------------------------------- the control plane */
/*
 * One TCP connection a rank. A frame is a length (4 bytes, big-endian, at most maxFrameBytes) and a ControlMessage in
 * Thrift's binary protocol. Each rank says Hello and is answered by Welcome or Refused; then it sends a Heartbeat every
 * heartbeatMs, and the coordinator answers with one of its own; its last frame is Bye, unless it dies. Rank 0 alone sends
 * and gets the rest:
 *
 *   rank 0                     coordinator
 *   Ready                 ->                        wants a lease; answered when there is one
 *                         <-   Grant                a stretch [first, limit) of a document, under an epoch
 *   StateRequest          ->                        if it starts at a save point that is not resident
 *                         <-   StateChunk
 *   TokensRequest         ->                        pass by pass
 *                         <-   Tokens
 *   Losses                ->                        block by block, in order
 *   StateChunk ..., SavePoint ->                    at cheap positions
 *                         <-   Saved                it is durable
 *   GiveBack              ->                        the stretch is done, or given back at its last save point
 *                         <-   Closed
 *                         <-   Revoked              at any time: the epoch is over, what comes under it is dropped
 *                         <-   Recall, Drain        at any time, to rank 0
 *                         <-   Stop                 at any time, to every rank
 */

struct LeaseKey {
  /** The document's number in the store. */
  1: i64 document
  /** Grows with each lease of the document: whoever writes under an older one is fenced. */
  2: i64 epoch
}

struct Hello {
  1: i32 controlVersion
  2: string build
  /** Made anew by rank 0 of each start, shared by all its ranks. */
  3: string gangId
  4: string gangName
  5: i32 rank
  6: i32 worldSize
  7: string host
  8: i32 pid
  /** cpu or cuda; fp32 or bf16. */
  9: string device
  10: string dtype
  /** Models that the gang has; empty: it looks for them by path. */
  11: list<string> modelHashes
  12: string token
  /** PCI id and UUID where the device has them. */
  13: string deviceId
}

struct Welcome {
  1: i32 controlVersion
  2: string build
  3: i64 heartbeatMs
  /** A rank that is not heard of for so long is lost. */
  4: i64 timeoutMs
  5: i64 maxFrameBytes
  6: double saveSeconds
}

struct Refused { 1: ErrorCode code, 2: string message }

struct Heartbeat {
  /** What the rank is at: "idle", "pass at token 65536 of book", ... */
  1: string step
  /** Since when, in milliseconds. */
  2: i64 stepMs
}

struct Ready {}

struct Grant {
  1: LeaseKey lease
  2: string jobId
  3: string customId
  /** Of the whole document, BOS included. */
  4: i64 tokens
  /** The stretch [first, limit): whole blocks, but for a document's end. */
  5: i64 first
  6: i64 limit
  7: string modelPath
  8: string modelHash
  /** Of the save point at `first`, when that is not 0. */
  9: i64 stateBytes
  10: string stateHash
  11: string stateFile
}

struct StateRequest { 1: LeaseKey lease, 2: i64 offset, 3: i64 maxBytes }
struct StateChunk { 1: LeaseKey lease, 2: i64 position, 3: i64 offset, 4: binary data }
struct TokensRequest { 1: LeaseKey lease, 2: i64 first, 3: i64 count }
/** `ids`: int32, little-endian. */
struct Tokens { 1: LeaseKey lease, 2: i64 first, 3: binary ids }
/** `nll`: float32, little-endian; the first is the loss of token first + 1. */
struct Losses { 1: LeaseKey lease, 2: i64 first, 3: binary nll }

struct SavePoint {
  1: LeaseKey lease
  2: i64 position
  3: i64 stateBytes
  4: string stateHash
  /** Empty: the chunks before this message are the state. Else the file that the gangs keep it in. */
  5: string stateFile
}
struct Saved { 1: LeaseKey lease, 2: i64 position }

enum ReturnReason {
  /** All of [first, limit) is scored; a stretch that ends inside the document is saved as well. */
  DONE = 1,
  /** The gang ends, or was told to: the rest is for others. */
  DRAINED = 2,
  /** The gang has no such model, and is not to be asked for it again. */
  REFUSED = 3,
  /** An error of the gang while it worked on it. */
  FAILED = 4,
  /** The saved state is not where it should be, or damaged: the document has to start anew. */
  STATE_MISSING = 5
}

struct GiveBack {
  1: LeaseKey lease
  2: ReturnReason reason
  3: i64 position
  4: string message
}

struct Closed { 1: LeaseKey lease }
struct Revoked { 1: LeaseKey lease, 2: string reason }
/** Save and return this lease; the gang stays. */
struct Recall { 1: LeaseKey lease, 2: string reason }
/** Save, return the lease, end with exit code 0. */
struct Drain { 1: string reason }
/** The gang is given up (a rank of it was lost): end at once. */
struct Stop { 1: string reason }
/** The last word of a rank that ends in order: it is not lost. */
struct Bye { 1: string reason }

union ControlMessage {
  1: Hello hello
  2: Welcome welcome
  3: Refused refused
  4: Heartbeat heartbeat
  5: Ready ready
  6: Grant grant
  7: StateRequest stateRequest
  8: StateChunk stateChunk
  9: TokensRequest tokensRequest
  10: Tokens tokens
  11: Losses losses
  12: SavePoint savePoint
  13: Saved saved
  14: GiveBack giveBack
  15: Closed closed
  16: Revoked revoked
  17: Drain drain
  18: Stop stop
  19: Bye bye
  20: Recall recall
}
