#include "samples.h"

#include <type_traits>

namespace fenwick::testing {
namespace {

using namespace idl;

JobSpec spec() {
    JobSpec value;
    value.model.__set_name("name");
    value.model.__set_path("/path");
    value.model.__set_hash("hash");
    value.documents.resize(4);
    value.documents[0].__set_customId("a");
    value.documents[0].source.__set_path("/a.txt");
    value.documents[1].source.__set_uploadId("upload");
    value.documents[2].__set_customId("c");
    value.documents[2].source.__set_text("text \xc3\xa4");
    value.documents[3].__set_customId("d");
    value.documents[3].source.__set_tokens({1, -2, 2147483647});
    value.__set_tokenizer("bytes");
    value.__set_bos(true);
    value.__set_levels("strict");
    value.__set_device("cpu");
    value.__set_dtype("fp32");
    value.__set_priority(-5);
    value.__set_maxAttempts(7);
    value.__set_expiresAfterSeconds(std::int64_t{1} << 40);
    value.__set_name("job");
    return value;
}

Usage usage() {
    Usage value;
    value.tokens = 1;
    value.scoredTokens = 2;
    value.computedTokens = std::int64_t{3} << 40;
    value.rankSeconds = 4.5;
    value.gpuSeconds = 5.25;
    value.jobs = 6;
    value.documents = 7;
    return value;
}

Job job() {
    Job value;
    value.id = "job-1";
    value.state = JobState::FINALIZING;
    value.requestCounts.total = 21;
    value.requestCounts.completed = 1;
    value.requestCounts.failed = 2;
    value.requestCounts.cancelled = 3;
    value.requestCounts.running = 4;
    value.requestCounts.queued = 11;
    value.name = "name";
    value.client = "client";
    value.model.__set_name("model");
    value.priority = 9;
    value.createdAt = 1'700'000'000'000;
    value.startedAt = 1'700'000'000'001;
    value.finishedAt = 1'700'000'000'002;
    value.expiresAt = 1'700'000'000'003;
    value.version = 12;
    value.tokens = std::int64_t{1} << 33;
    value.tokensDone = 13;
    value.tokensPerSecond = 0.5;
    value.etaSeconds = -1;
    value.__set_errorCode(ErrorCode::WORKER_LOST);
    value.__set_errorMessage("message");
    value.usage = usage();
    value.files = {"results.jsonl", "errors.jsonl"};
    value.tokenizer = "auto";
    value.bos = true;
    value.levels = "extend";
    value.device = "cuda";
    value.dtype = "bf16";
    return value;
}

DocumentResult document() {
    DocumentResult value;
    value.index = 3;
    value.customId = "c";
    value.state = DocumentState::RUNNING;
    value.tokens = 100;
    value.position = 50;
    value.savedPosition = 40;
    value.attempts = 2;
    value.gang = "gang-1";
    value.__set_errorCode(ErrorCode::NUMERIC_ERROR);
    value.__set_errorMessage("message");
    value.__set_row("{}");
    value.__set_nllFile("nll/c.npy");
    value.tokensPerSecond = 1.5;
    value.etaSeconds = 2.5;
    return value;
}

GangInfo gang() {
    GangInfo value;
    value.id = "gang-1";
    value.name = "name";
    value.state = GangState::DRAINING;
    value.worldSize = 2;
    value.device = "cpu";
    value.dtype = "fp32";
    value.modelHashes = {"hash"};
    value.connectedAt = 1;
    value.lastSeenAt = 2;
    value.__set_jobId("job-1");
    value.__set_customId("c");
    value.position = 3;
    value.reason = "reason";
    value.tokensPerSecond = 4.5;
    RankInfo rank;
    rank.rank = 1;
    rank.state = RankState::STALLED;
    rank.host = "host";
    rank.pid = 42;
    rank.device = "device";
    rank.lastSeenAt = 5;
    rank.step = "step";
    rank.reason = "reason";
    value.ranks = {rank};
    return value;
}

ServiceError refusal() {
    ServiceError value;
    value.code = ErrorCode::QUOTA_EXCEEDED;
    value.message = "message";
    value.retryable = true;
    value.retryAfterMs = 1500;
    value.requestId = "request";
    value.details = {{"limit", "10"}};
    return value;
}

ServerInfo server_info() {
    ServerInfo value;
    value.protocolVersion = 1;
    value.version = "0.1.0";
    value.commit = "commit";
    ModelInfo model;
    model.name = "model";
    model.path = "/model";
    model.hash = "hash";
    model.family = "mamba2";
    model.parameters = 1;
    model.vocabSize = 256;
    model.trainedTokens = 16384;
    value.models = {model};
    value.startedAt = 2;
    value.maxFrameBytes = 3;
    value.maxChunkBytes = 4;
    value.maxDocumentsPerJob = 5;
    return value;
}

Health health() {
    Health value;
    value.live = true;
    value.ready = false;
    value.reason = "reason";
    value.queuedDocuments = 1;
    value.runningDocuments = 2;
    value.gangs = 3;
    value.freeBytes = 4;
    return value;
}

Plan plan() {
    Plan value;
    value.documents = 1;
    value.badDocuments = 2;
    value.tokens = 3;
    value.longestTokens = 4;
    value.blocks = 5;
    value.modelHash = "hash";
    value.family = "mamba2";
    value.parameters = 6;
    value.stateBytes = 7;
    value.gangs = 8;
    value.firstErrors = {"error"};
    return value;
}

Upload upload() {
    Upload value;
    value.id = "upload";
    value.name = "a.txt";
    value.size = 3;
    value.received = 2;
    value.committed = true;
    value.expiresAt = 4;
    return value;
}

ResultChunk chunk() {
    ResultChunk value;
    value.data = std::string("a\0b", 3);
    value.offset = 1;
    value.size = 4;
    value.last = true;
    return value;
}

LogPage log_page() {
    LogEntry entry;
    entry.sequence = 1;
    entry.time = 2;
    entry.level = LogLevel::WARNING;
    entry.text = "text";
    entry.__set_customId("c");
    entry.__set_gang("gang-1");
    entry.__set_rank(3);
    LogPage value;
    value.entries = {entry};
    value.lastSequence = 1;
    value.more = true;
    return value;
}

StateInfo state_info() {
    StateInfo value;
    value.position = 4096;
    value.bytes = 2;
    value.hash = "hash";
    value.modelHash = "model";
    value.savedAt = 3;
    value.file = "file";
    return value;
}

JobPage job_page() {
    JobPage value;
    value.jobs = {job()};
    value.__set_nextPageToken("next");
    return value;
}

DocumentPage document_page() {
    DocumentPage value;
    value.documents = {document()};
    value.__set_nextPageToken("next");
    return value;
}

GangPage gang_page() {
    GangPage value;
    value.gangs = {gang()};
    value.__set_nextPageToken("next");
    return value;
}

const std::vector<JobState::type> kJobStates = {JobState::VALIDATING, JobState::CANCELLED};
const std::vector<DocumentState::type> kDocumentStates = {DocumentState::QUEUED, DocumentState::CANCELLED};

}  // namespace

class SampleHandler final : public FenwickIf {
public:
    explicit SampleHandler(int& wrong) : wrong_(wrong) {}
    void authenticate(const std::string& token) override { expect(token == "token"); }
    void getServerInfo(ServerInfo& r, std::int32_t version) override { expect(version == 1), r = server_info(); }
    void getHealth(Health& r) override { r = health(); }
    void planJob(Plan& r, const JobSpec& s) override { expect(s == spec()), r = plan(); }
    void submitJob(Job& r, const JobSpec& s, const std::string& key) override {
        expect(s == spec() && key == "key"), r = job();
    }
    void getJob(Job& r, const std::string& id) override { expect(id == "job-1"), r = job(); }
    void waitJob(Job& r, const std::string& id, std::int64_t version, std::int64_t ms) override {
        expect(id == "job-1" && version == 11 && ms == 30'000), r = job();
    }
    void listJobs(JobPage& r, const std::string& token, std::int32_t size,
                  const std::vector<JobState::type>& states) override {
        expect(token == "token" && size == 10 && states == kJobStates), r = job_page();
    }
    void listDocuments(DocumentPage& r, const std::string& id, const std::string& token, std::int32_t size,
                       const std::vector<DocumentState::type>& states) override {
        expect(id == "job-1" && token == "token" && size == 10 && states == kDocumentStates), r = document_page();
    }
    void cancelJob(Job& /*r*/, const std::string& id) override {
        expect(id == "job-1");
        throw refusal();
    }
    void retryJob(Job& r, const std::string& id, bool failed) override { expect(id == "job-1" && failed), r = job(); }
    void beginUpload(Upload& r, const std::string& name, std::int64_t size) override {
        expect(name == "a.txt" && size == 3), r = upload();
    }
    void putChunk(Upload& r, const std::string& id, std::int64_t offset, const std::string& data,
                  std::int64_t crc) override {
        expect(id == "upload" && offset == 1 && data == std::string("\0\xff", 2) && crc == 0xffffffff), r = upload();
    }
    void commitUpload(Upload& r, const std::string& id) override { expect(id == "upload"), r = upload(); }
    void readResult(ResultChunk& r, const std::string& id, const std::string& file, std::int64_t offset,
                    std::int32_t most) override {
        expect(id == "job-1" && file == "results.jsonl" && offset == (std::int64_t{1} << 35) && most == 9), r = chunk();
    }
    void readLogs(LogPage& r, const std::string& id, std::int64_t after, std::int32_t most) override {
        expect(id == "job-1" && after == 1 && most == 2), r = log_page();
    }
    void describeState(StateInfo& r, const std::string& id, const std::string& document_id) override {
        expect(id == "job-1" && document_id == "c"), r = state_info();
    }
    void listWorkers(GangPage& r, const std::string& token, std::int32_t size) override {
        expect(token == "token" && size == 10), r = gang_page();
    }
    void drainWorker(GangInfo& r, const std::string& id) override { expect(id == "gang-1"), r = gang(); }
    void getUsage(Usage& r, const std::string& id) override { expect(id == "job-1"), r = usage(); }

private:
    void expect(bool condition) { wrong_ += condition ? 0 : 1; }
    int& wrong_;
};

std::shared_ptr<FenwickIf> sample_handler(int& wrong_arguments) {
    return std::make_shared<SampleHandler>(wrong_arguments);
}

std::vector<Exchange> exchanges() {
    using Client = FenwickClient;
    /// Whether `read` gives `sample`.
    const auto gives = [](auto sample, void (Client::*read)(decltype(sample)&)) {
        return [sample, read](Client& client) {
            std::decay_t<decltype(sample)> found;
            (client.*read)(found);
            return found == sample;
        };
    };
    return {
        {"authenticate", [](Client& c) { c.send_authenticate("token"); },
         [](Client& c) { return c.recv_authenticate(), true; }},
        {"getServerInfo", [](Client& c) { c.send_getServerInfo(1); },
         gives(server_info(), &Client::recv_getServerInfo)},
        {"getHealth", [](Client& c) { c.send_getHealth(); }, gives(health(), &Client::recv_getHealth)},
        {"planJob", [](Client& c) { c.send_planJob(spec()); }, gives(plan(), &Client::recv_planJob)},
        {"submitJob", [](Client& c) { c.send_submitJob(spec(), "key"); }, gives(job(), &Client::recv_submitJob)},
        {"getJob", [](Client& c) { c.send_getJob("job-1"); }, gives(job(), &Client::recv_getJob)},
        {"waitJob", [](Client& c) { c.send_waitJob("job-1", 11, 30'000); }, gives(job(), &Client::recv_waitJob)},
        {"listJobs", [](Client& c) { c.send_listJobs("token", 10, kJobStates); },
         gives(job_page(), &Client::recv_listJobs)},
        {"listDocuments", [](Client& c) { c.send_listDocuments("job-1", "token", 10, kDocumentStates); },
         gives(document_page(), &Client::recv_listDocuments)},
        {"cancelJob", [](Client& c) { c.send_cancelJob("job-1"); },
         [](Client& c) {
             Job ignored;
             try {
                 c.recv_cancelJob(ignored);
             } catch (const ServiceError& error) {
                 return error == refusal();
             }
             return false;
         }},
        {"retryJob", [](Client& c) { c.send_retryJob("job-1", true); }, gives(job(), &Client::recv_retryJob)},
        {"beginUpload", [](Client& c) { c.send_beginUpload("a.txt", 3); }, gives(upload(), &Client::recv_beginUpload)},
        {"putChunk", [](Client& c) { c.send_putChunk("upload", 1, std::string("\0\xff", 2), 0xffffffff); },
         gives(upload(), &Client::recv_putChunk)},
        {"commitUpload", [](Client& c) { c.send_commitUpload("upload"); }, gives(upload(), &Client::recv_commitUpload)},
        {"readResult", [](Client& c) { c.send_readResult("job-1", "results.jsonl", std::int64_t{1} << 35, 9); },
         gives(chunk(), &Client::recv_readResult)},
        {"readLogs", [](Client& c) { c.send_readLogs("job-1", 1, 2); }, gives(log_page(), &Client::recv_readLogs)},
        {"describeState", [](Client& c) { c.send_describeState("job-1", "c"); },
         gives(state_info(), &Client::recv_describeState)},
        {"listWorkers", [](Client& c) { c.send_listWorkers("token", 10); },
         gives(gang_page(), &Client::recv_listWorkers)},
        {"drainWorker", [](Client& c) { c.send_drainWorker("gang-1"); }, gives(gang(), &Client::recv_drainWorker)},
        {"getUsage", [](Client& c) { c.send_getUsage("job-1"); }, gives(usage(), &Client::recv_getUsage)},
    };
}

}  // namespace fenwick::testing
