// The coordinator without its sockets: what the public calls do, and the threads that look jobs through and finish
// them. The API's handlers, HTTP and the control plane all stand on this. Thread-safe. Throws ServiceFault.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/service/config.h"
#include "coordinator/store/store.h"

namespace fenwick {

class ModelCatalog;
class JobFolders;

/// Who calls: filled in by whoever checked token or certificate.
struct Caller {
    std::string client = "local";
    bool admin = true;
};

class Service {
public:
    /// Opens the store and continues what an earlier process left. Throws what Store throws, ConfigError for models
    /// that cannot be used.
    explicit Service(ServeConfig config);
    ~Service();
    Service(const Service&) = delete;
    Service& operator=(const Service&) = delete;

    [[nodiscard]] const ServeConfig& config() const { return config_; }
    [[nodiscard]] Store& store() { return store_; }

    // The public calls, as the IDL says. Jobs of other clients are NOT_FOUND unless the caller is an admin.
    [[nodiscard]] idl::ServerInfo server_info(std::int32_t protocol_version) const;
    [[nodiscard]] idl::Health health() const;
    [[nodiscard]] idl::Plan plan(const Caller& caller, const idl::JobSpec& spec);
    [[nodiscard]] idl::Job submit(const Caller& caller, const idl::JobSpec& spec, const std::string& idempotency_key);
    [[nodiscard]] idl::Job job(const Caller& caller, const std::string& id) const;
    [[nodiscard]] idl::JobPage list_jobs(const Caller& caller, const std::string& page_token, std::int32_t page_size,
                                         const std::vector<idl::JobState::type>& states) const;
    [[nodiscard]] idl::DocumentPage list_documents(const Caller& caller, const std::string& job_id,
                                                   const std::string& page_token, std::int32_t page_size,
                                                   const std::vector<idl::DocumentState::type>& states) const;
    [[nodiscard]] idl::Job cancel(const Caller& caller, const std::string& job_id);
    [[nodiscard]] idl::Job retry(const Caller& caller, const std::string& job_id, bool only_failed);
    [[nodiscard]] idl::Upload begin_upload(const Caller& caller, const std::string& name, std::int64_t size);
    [[nodiscard]] idl::Upload put_chunk(const Caller& caller, const std::string& id, std::int64_t offset,
                                        const std::string& data, std::int64_t crc);
    [[nodiscard]] idl::Upload commit_upload(const Caller& caller, const std::string& id);
    [[nodiscard]] idl::ResultChunk read_result(const Caller& caller, const std::string& job_id, const std::string& file,
                                               std::int64_t offset, std::int32_t max_bytes) const;
    [[nodiscard]] idl::LogPage read_logs(const Caller& caller, const std::string& job_id, std::int64_t after_sequence,
                                         std::int32_t max_entries) const;
    [[nodiscard]] idl::StateInfo describe_state(const Caller& caller, const std::string& job_id,
                                                const std::string& custom_id) const;
    [[nodiscard]] idl::GangPage list_workers(const Caller& caller, const std::string& page_token,
                                             std::int32_t page_size) const;
    [[nodiscard]] idl::GangInfo drain_worker(const Caller& caller, const std::string& gang_id);
    [[nodiscard]] idl::Usage usage(const Caller& caller, const std::string& job_id) const;

    /// The losses of a document that have come in so far, thinned to at most `points` means: (token, mean nats).
    [[nodiscard]] std::vector<std::pair<std::int64_t, double>> loss_curve(const std::string& job_id,
                                                                          const std::string& custom_id,
                                                                          std::int64_t points) const;

    /// From now on nothing new is taken (OVERLOADED, retryable); running leases go on until their next save point.
    void drain();
    [[nodiscard]] bool draining() const { return draining_.load(); }

    // For the control plane.
    [[nodiscard]] ModelCatalog& models() { return *models_; }
    [[nodiscard]] JobFolders& folders() { return *folders_; }
    /// Called when documents may have become available, or leases have ended: by whom, see control/.
    void on_work(std::function<void()> wake) { wake_ = std::move(wake); }
    void on_revoked(std::function<void(const std::vector<LeaseKey>&, const std::string& reason)> revoke) {
        revoke_ = std::move(revoke);
    }
    void on_drain_gang(std::function<bool(const std::string& gang_id)> drain) { drain_gang_ = std::move(drain); }
    /// A job may have become complete: the finisher looks.
    void job_moved();

    /// Most bytes of a chunk of an upload or a result.
    static constexpr std::int64_t kMaxChunkBytes = std::int64_t{4} << 20;

    /// Starts the threads that look jobs through and finish them; after the hooks are set.
    void start();
    void stop();

private:
    struct Threads;

    /// Throws OVERLOADED while draining, STORAGE_FULL with little room.
    void require_open() const;
    /// Throws NOT_FOUND for a job of another client, too.
    [[nodiscard]] idl::Job own_job(const Caller& caller, const std::string& id) const;
    [[nodiscard]] std::int32_t count_gangs() const;
    bool check_jobs();
    bool finish_jobs();
    bool end_late_ones();

    ServeConfig config_;
    Store store_;
    std::unique_ptr<ModelCatalog> models_;
    std::unique_ptr<JobFolders> folders_;
    std::unique_ptr<Threads> threads_;
    std::atomic<bool> draining_{false};
    std::int64_t started_at_ = 0;
    std::atomic<std::int64_t> plans_{0};

    std::function<void()> wake_;
    std::function<void(const std::vector<LeaseKey>&, const std::string&)> revoke_;
    std::function<bool(const std::string&)> drain_gang_;
};

}  // namespace fenwick
