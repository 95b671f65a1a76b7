// The calls of fenwick.thrift on one connection: who calls, the call on the Service, and its errors in the IDL's words.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/authentication.h"
#include "coordinator/front/rpc_server.h"
#include "coordinator/idl/Fenwick.h"
#include "coordinator/service/service.h"

namespace fenwick {

/// Makes the processors of RpcServer. `service` and `authentication` must outlive them.
[[nodiscard]] ProcessorFactory api_processors(Service& service, const Authentication& authentication);

/// Longest that waitJob waits, whatever the client asks for: connections that nobody listens on any more end by then.
inline constexpr std::int64_t kMaxWaitMs = 60'000;

class ApiHandler final : public idl::FenwickIf {
public:
    ApiHandler(Service& service, const Authentication& authentication, CallContext& context)
        : service_(service), authentication_(authentication), context_(context) {}

    // Each answers as the IDL says, and throws idl::ServiceError and nothing else.
    void authenticate(const std::string& token) override;
    void getServerInfo(idl::ServerInfo& result, std::int32_t protocol_version) override;
    void getHealth(idl::Health& result) override;
    void planJob(idl::Plan& result, const idl::JobSpec& spec) override;
    void submitJob(idl::Job& result, const idl::JobSpec& spec, const std::string& idempotency_key) override;
    void getJob(idl::Job& result, const std::string& job_id) override;
    void waitJob(idl::Job& result, const std::string& job_id, std::int64_t since_version,
                 std::int64_t timeout_ms) override;
    void listJobs(idl::JobPage& result, const std::string& page_token, std::int32_t page_size,
                  const std::vector<idl::JobState::type>& states) override;
    void listDocuments(idl::DocumentPage& result, const std::string& job_id, const std::string& page_token,
                       std::int32_t page_size, const std::vector<idl::DocumentState::type>& states) override;
    void cancelJob(idl::Job& result, const std::string& job_id) override;
    void retryJob(idl::Job& result, const std::string& job_id, bool only_failed) override;
    void beginUpload(idl::Upload& result, const std::string& name, std::int64_t size) override;
    void putChunk(idl::Upload& result, const std::string& upload_id, std::int64_t offset, const std::string& data,
                  std::int64_t crc) override;
    void commitUpload(idl::Upload& result, const std::string& upload_id) override;
    void readResult(idl::ResultChunk& result, const std::string& job_id, const std::string& file, std::int64_t offset,
                    std::int32_t max_bytes) override;
    void readLogs(idl::LogPage& result, const std::string& job_id, std::int64_t after_sequence,
                  std::int32_t max_entries) override;
    void describeState(idl::StateInfo& result, const std::string& job_id, const std::string& custom_id) override;
    void listWorkers(idl::GangPage& result, const std::string& page_token, std::int32_t page_size) override;
    void drainWorker(idl::GangInfo& result, const std::string& gang_id) override;
    void getUsage(idl::Usage& result, const std::string& job_id) override;

private:
    template <class Call>
    void answer(Call&& call);
    [[nodiscard]] const Caller& caller();

    Service& service_;
    const Authentication& authentication_;
    CallContext& context_;
    std::optional<Caller> caller_;
};

}  // namespace fenwick
