// The coordinator's memory: one SQLite file in WAL mode. Jobs, documents, leases, uploads, gangs, logs and usage.
// Every change is one transaction that is on the disk when the call returns; a process that is killed at any moment
// finds in it, when it starts again, all that it had said to anybody. Answers are the IDL's structs. Thread-safe.
//
// What throws: ServiceFault with NOT_FOUND, CONFLICT, QUOTA_EXCEEDED or INVALID_ARGUMENT for requests that cannot be
// met, with STORAGE_FULL (retryable) when the disk is full; UnavailableError when the file cannot be used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/idl/fenwick_types.h"
#include "coordinator/store/service_fault.h"
#include "core/documents.h"

namespace fenwick {

/// Milliseconds since 1970, UTC.
[[nodiscard]] std::int64_t now_ms();

/// Most that one client may have at a time; 0: no limit.
struct ClientLimits {
    std::int64_t active_jobs = 0;
    std::int64_t active_documents = 0;
    std::int64_t upload_bytes = 0;  ///< of uploads that no job has taken
};

/// A job as it is submitted, its model resolved.
struct NewJob {
    std::string client;
    std::string idempotency_key;  ///< empty: none
    idl::JobSpec spec;
    std::string model_name;
    std::string model_path;
    std::string model_hash;
    std::int32_t default_attempts = 3;
    ClientLimits limits;
};

/// What is asked for again when a job's documents are listed and read.
struct StoredJob {
    std::string id;
    idl::JobState::type state = idl::JobState::VALIDATING;
    idl::JobSpec spec;
    std::string client;
    std::string model_path;
    std::string model_hash;
    std::string device;  ///< empty until it is fixed, as dtype
    std::string dtype;
    bool listed = false;  ///< its documents are in the store
    /// FINALIZING, CANCELLING: the state that follows.
    idl::JobState::type target = idl::JobState::COMPLETED;
};

struct LeaseKey {
    std::int64_t document = 0;
    std::int64_t epoch = 0;
    bool operator==(const LeaseKey&) const = default;
};

/// Where a document can go on. position 0: at its start, and the rest is empty.
struct DocumentSave {
    std::int64_t position = 0;
    double nll_total = 0;
    std::int64_t state_bytes = 0;
    std::string state_hash;
    std::string state_file;  ///< empty: the coordinator's own, in the job's folder
};

/// A document of the store, with what it takes to open it.
struct StoredDocument {
    std::int64_t id = 0;
    std::string job_id;
    std::int64_t index = 0;
    DocumentRef ref;
    idl::DocumentState::type state = idl::DocumentState::QUEUED;
    std::int64_t tokens = -1;  ///< -1: not looked at yet
    std::string input_hash;
    std::int64_t epoch = 0;
    std::int32_t attempts = 0;
    DocumentSave save;
    double seconds = 0;  ///< of computing, up to the save point
    std::string row;     ///< once it is over
};

/// What a gang that asks for a lease is.
struct LeaseRequest {
    std::string gang_id;
    std::string device;
    std::string dtype;
    std::vector<std::string> model_hashes;     ///< that it has; empty: any
    std::vector<std::string> excluded_models;  ///< that it could not find
    std::int64_t stretch_tokens = 0;           ///< most tokens of a lease, whole blocks; 0: no limit
};

struct Lease {
    LeaseKey key;
    StoredDocument document;
    std::int64_t first = 0;  ///< the stretch [first, limit)
    std::int64_t limit = 0;
    std::string model_path;
    std::string model_hash;
    bool bos = false;
};

/// What computing under a lease has cost since the last call that reported some.
struct WorkDone {
    std::int64_t computed_tokens = 0;
    double rank_seconds = 0;
    double gpu_seconds = 0;
};

/// How a running document stands, for those who watch; no state of the queue.
struct RunningProgress {
    LeaseKey key;
    std::int64_t position = 0;
    double tokens_per_second = 0;
};

enum class ReleaseOutcome { kFenced, kRequeued, kFailed };

struct LogLine {
    idl::LogLevel::type level = idl::LogLevel::INFO;
    std::string text = {};
    std::string job_id = {};     ///< empty: of no job
    std::string custom_id = {};  ///< may be empty, as gang
    std::string gang = {};
    std::optional<std::int32_t> rank = {};
};

class Store {
public:
    /// Opens `file`, made if absent; one process at a time (UnavailableError). Leases of an earlier process are over:
    /// their documents are queued again, and its gangs are marked as lost until they come back.
    explicit Store(const std::filesystem::path& file);
    ~Store();
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    /// Called, from any thread and without locks, after each change of a job that its version tells.
    void on_job_change(std::function<void(const std::string& job_id, std::int64_t version)> observer);

    // ---- jobs, for clients
    /// Same client and key: the same job, whatever the limits; CONFLICT when the spec differs.
    [[nodiscard]] idl::Job submit(const NewJob& job);
    /// The job of that key, if there is one (before anything is written for a new one).
    [[nodiscard]] std::optional<idl::Job> find_submitted(const std::string& client, const std::string& key,
                                                         const idl::JobSpec& spec) const;
    [[nodiscard]] idl::Job job(const std::string& id) const;
    [[nodiscard]] std::int64_t job_version(const std::string& id) const;
    /// Newest first. `client`: empty for all. `page_token`: empty, or what the last page said; INVALID_ARGUMENT else.
    [[nodiscard]] idl::JobPage list_jobs(const std::string& client, const std::string& page_token,
                                         std::int32_t page_size, const std::vector<idl::JobState::type>& states) const;
    /// In input order.
    [[nodiscard]] idl::DocumentPage list_documents(const std::string& job_id, const std::string& page_token,
                                                   std::int32_t page_size,
                                                   const std::vector<idl::DocumentState::type>& states) const;
    [[nodiscard]] idl::StateInfo describe_state(const std::string& job_id, const std::string& custom_id) const;
    /// Ends leases and queued documents; the job is CANCELLING until `finish_job`. A job that is over stays as it is.
    /// Returns the leases that it ended.
    std::vector<LeaseKey> cancel(const std::string& job_id);
    /// A job that is over is looked through again: CONFLICT when it is not over. Returns how many documents it queued.
    std::int64_t retry(const std::string& job_id, bool only_failed);
    [[nodiscard]] idl::Usage job_usage(const std::string& job_id) const;
    [[nodiscard]] idl::Usage client_usage(const std::string& client) const;
    [[nodiscard]] std::int64_t count_documents(idl::DocumentState::type state) const;

    // ---- jobs, for the coordinator
    [[nodiscard]] StoredJob stored_job(const std::string& id) const;
    [[nodiscard]] std::vector<std::string> jobs_in(idl::JobState::type state) const;  ///< oldest first
    /// The documents of a job that is VALIDATING, once. QUOTA_EXCEEDED past the client's documents.
    void add_documents(const std::string& job_id, const std::vector<DocumentRef>& documents,
                       std::int64_t most_active_of_client);
    /// Documents of a job that are queued and not looked at yet, in order.
    [[nodiscard]] std::vector<StoredDocument> unchecked_documents(const std::string& job_id, std::int64_t most) const;
    struct CheckedDocument {
        std::int64_t id = 0;
        std::int64_t tokens = 0;
        std::string input_hash;
        std::string row;  ///< not empty: it is bad, and this is its row
        ServiceCode code = ServiceCode::INTERNAL;
        std::string message;
    };
    void record_checked(const std::string& job_id, std::span<const CheckedDocument> documents);
    /// VALIDATING -> IN_PROGRESS, or FINALIZING where no document is left to compute.
    void start_job(const std::string& job_id);
    /// The job as a whole cannot be done: VALIDATING -> FAILED.
    void fail_job(const std::string& job_id, ServiceCode code, const std::string& message);
    /// FINALIZING or CANCELLING -> its target, once the result files are there.
    void finish_job(const std::string& job_id, const std::vector<std::string>& files);
    /// Jobs past their time: their documents end as with `cancel`, and EXPIRED follows. Returns the leases ended.
    std::vector<LeaseKey> expire_jobs();
    /// The documents' rows and states in input order, `visit` once for each.
    void for_each_document(const std::string& job_id, const std::function<void(const StoredDocument&)>& visit) const;
    [[nodiscard]] StoredDocument document(std::int64_t id) const;

    // ---- leases. `false` or kFenced: the epoch is over, and nothing was changed.
    /// The next stretch for this gang: of the highest priority, then the oldest job, then in input order.
    [[nodiscard]] std::optional<Lease> lease_next(const LeaseRequest& request);
    [[nodiscard]] bool is_current(LeaseKey key) const;
    bool record_save(LeaseKey key, const DocumentSave& save, double seconds, const WorkDone& work);
    /// The document is whole: `row` becomes its result.
    bool complete(LeaseKey key, const std::string& row, std::int64_t scored_tokens, const WorkDone& work);
    /// The document itself is bad.
    bool fail(LeaseKey key, ServiceCode code, const std::string& message, const std::string& row, const WorkDone& work);
    /// Back to the queue, at its last save point. With `counts` this was one of its attempts, which begin anew with
    /// each save point; after the last one it fails with WORKER_LOST and `row_if_failed`.
    ReleaseOutcome release(LeaseKey key, const std::string& reason, bool counts, const std::string& row_if_failed,
                           const WorkDone& work);
    /// Its save point cannot be read any more: from the start again (still under the same lease or none).
    void forget_save(std::int64_t document);
    void record_progress(std::span<const RunningProgress> running);

    // ---- uploads
    [[nodiscard]] idl::Upload begin_upload(const std::string& client, const std::string& name, std::int64_t size,
                                           std::int64_t expires_at, const ClientLimits& limits);
    [[nodiscard]] idl::Upload upload(const std::string& client, const std::string& id) const;
    void record_received(const std::string& id, std::int64_t received);
    void commit_upload(const std::string& id);
    /// Uploads past their time that no job uses; they are forgotten.
    std::vector<std::string> expire_uploads();

    // ---- gangs
    /// Adds each, or what is known of it is replaced.
    void record_gangs(std::span<const idl::GangInfo> gangs);
    [[nodiscard]] idl::GangInfo gang(const std::string& id) const;
    /// Those of now first, then the latest that ended.
    [[nodiscard]] idl::GangPage list_gangs(const std::string& page_token, std::int32_t page_size) const;

    // ---- logs
    void log(const LogLine& line);
    [[nodiscard]] idl::LogPage read_logs(const std::string& job_id, std::int64_t after_sequence,
                                         std::int32_t most) const;

private:
    class Database;
    std::unique_ptr<Database> database_;
};

}  // namespace fenwick
