#include "coordinator/api/api_handler.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <utility>

#include "coordinator/store/service_fault.h"

namespace fenwick {
namespace {

idl::ServiceError to_error(const ServiceFault& fault, const std::string& request_id) {
    idl::ServiceError error;
    error.code = fault.service_code();
    error.message = fault.what();
    error.retryable = fault.retryable();
    error.retryAfterMs = fault.retry_after_ms();
    error.requestId = request_id;
    return error;
}

/// Thrift takes any number for an enumerator. Before one that is none is used as such, it is looked at as the number
/// that it is.
template <class Enum>
void check_states(const std::vector<Enum>& states, const std::map<int, const char*>& names) {
    static_assert(sizeof(Enum) == sizeof(std::uint32_t));
    for (const Enum& state : states) {
        std::uint32_t value = 0;
        std::memcpy(&value, &state, sizeof value);
        if (names.count(static_cast<int>(value)) == 0) {
            throw ServiceFault(ServiceCode::INVALID_ARGUMENT, fmt::format("states: expected 1 to {}, found {}",
                                                                          names.size(), static_cast<int>(value)));
        }
    }
}

}  // namespace

/// Runs `call` and turns whatever it throws into a ServiceError. Only ServiceFaults are worded for clients; the text of
/// any other error stays in the log, under the request's id.
template <class Call>
void ApiHandler::answer(Call&& call) {
    const auto refuse = [this](const ServiceFault& fault) {
        context_.outcome = name_of(fault.service_code());
        throw to_error(fault, context_.request_id);
    };
    try {
        call();
    } catch (const ServiceFault& fault) {
        refuse(fault);
    } catch (const std::bad_alloc&) {
        refuse(ServiceFault(ServiceCode::OVERLOADED, "the coordinator is out of memory; try again later", true, 5000));
    } catch (const std::exception& error) {
        spdlog::error("request {} of {}: {}", context_.request_id, context_.peer, error.what());
        refuse(ServiceFault(
            ServiceCode::INTERNAL,
            fmt::format("internal error; the coordinator's log has it as request {}", context_.request_id)));
    }
}

const Caller& ApiHandler::caller() {
    if (!caller_) caller_ = authentication_.without_token(context_.certificate_name);
    if (!caller_) {
        throw ServiceFault(ServiceCode::UNAUTHENTICATED,
                           "this coordinator knows its clients by token: send yours with authenticate first");
    }
    return *caller_;
}

void ApiHandler::authenticate(const std::string& token) {
    answer([&] {
        caller_ = authentication_.with_token(token);
        if (!caller_) {
            throw ServiceFault(ServiceCode::UNAUTHENTICATED,
                               "token: expected one of this coordinator's, found another");
        }
    });
}

void ApiHandler::getServerInfo(idl::ServerInfo& result, std::int32_t protocol_version) {
    answer([&] {
        (void)caller();
        result = service_.server_info(protocol_version);
        result.maxFrameBytes = service_.config().max_frame_bytes;
    });
}

void ApiHandler::getHealth(idl::Health& result) {
    answer([&] {
        (void)caller();
        result = service_.health();
    });
}

void ApiHandler::planJob(idl::Plan& result, const idl::JobSpec& spec) {
    answer([&] { result = service_.plan(caller(), spec); });
}

void ApiHandler::submitJob(idl::Job& result, const idl::JobSpec& spec, const std::string& idempotency_key) {
    answer([&] { result = service_.submit(caller(), spec, idempotency_key); });
}

void ApiHandler::getJob(idl::Job& result, const std::string& job_id) {
    answer([&] { result = service_.job(caller(), job_id); });
}

void ApiHandler::waitJob(idl::Job& result, const std::string& job_id, std::int64_t since_version,
                         std::int64_t timeout_ms) {
    answer([&] {
        if (timeout_ms < 0) {
            throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                               fmt::format("timeoutMs: expected 0 or more, found {}", timeout_ms));
        }
        result = service_.job(caller(), job_id);
        if (result.version > since_version) return;
        const auto until = context_.begun + std::chrono::milliseconds(std::min(timeout_ms, kMaxWaitMs));
        if (std::chrono::steady_clock::now() < until) context_.wait = CallContext::Wait{job_id, until};
    });
}

void ApiHandler::listJobs(idl::JobPage& result, const std::string& page_token, std::int32_t page_size,
                          const std::vector<idl::JobState::type>& states) {
    answer([&] {
        check_states(states, idl::_JobState_VALUES_TO_NAMES);
        result = service_.list_jobs(caller(), page_token, page_size, states);
    });
}

void ApiHandler::listDocuments(idl::DocumentPage& result, const std::string& job_id, const std::string& page_token,
                               std::int32_t page_size, const std::vector<idl::DocumentState::type>& states) {
    answer([&] {
        check_states(states, idl::_DocumentState_VALUES_TO_NAMES);
        result = service_.list_documents(caller(), job_id, page_token, page_size, states);
    });
}

void ApiHandler::cancelJob(idl::Job& result, const std::string& job_id) {
    answer([&] { result = service_.cancel(caller(), job_id); });
}

void ApiHandler::retryJob(idl::Job& result, const std::string& job_id, bool only_failed) {
    answer([&] { result = service_.retry(caller(), job_id, only_failed); });
}

void ApiHandler::beginUpload(idl::Upload& result, const std::string& name, std::int64_t size) {
    answer([&] { result = service_.begin_upload(caller(), name, size); });
}

void ApiHandler::putChunk(idl::Upload& result, const std::string& upload_id, std::int64_t offset,
                          const std::string& data, std::int64_t crc) {
    answer([&] { result = service_.put_chunk(caller(), upload_id, offset, data, crc); });
}

void ApiHandler::commitUpload(idl::Upload& result, const std::string& upload_id) {
    answer([&] { result = service_.commit_upload(caller(), upload_id); });
}

void ApiHandler::readResult(idl::ResultChunk& result, const std::string& job_id, const std::string& file,
                            std::int64_t offset, std::int32_t max_bytes) {
    answer([&] { result = service_.read_result(caller(), job_id, file, offset, max_bytes); });
}

void ApiHandler::readLogs(idl::LogPage& result, const std::string& job_id, std::int64_t after_sequence,
                          std::int32_t max_entries) {
    answer([&] { result = service_.read_logs(caller(), job_id, after_sequence, max_entries); });
}

void ApiHandler::describeState(idl::StateInfo& result, const std::string& job_id, const std::string& custom_id) {
    answer([&] { result = service_.describe_state(caller(), job_id, custom_id); });
}

void ApiHandler::listWorkers(idl::GangPage& result, const std::string& page_token, std::int32_t page_size) {
    answer([&] { result = service_.list_workers(caller(), page_token, page_size); });
}

void ApiHandler::drainWorker(idl::GangInfo& result, const std::string& gang_id) {
    answer([&] { result = service_.drain_worker(caller(), gang_id); });
}

void ApiHandler::getUsage(idl::Usage& result, const std::string& job_id) {
    answer([&] { result = service_.usage(caller(), job_id); });
}

ProcessorFactory api_processors(Service& service, const Authentication& authentication) {
    return [&service, &authentication](CallContext& context) -> std::shared_ptr<apache::thrift::TProcessor> {
        return std::make_shared<idl::FenwickProcessor>(std::make_shared<ApiHandler>(service, authentication, context));
    };
}

}  // namespace fenwick
