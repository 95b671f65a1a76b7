// An error that a client of the service is told, with its code of the IDL.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/idl/fenwick_types.h"
#include "core/errors.h"

namespace fenwick {

using ServiceCode = idl::ErrorCode::type;

/// `message` is for the client: it names what was expected and found, and no path outside the roots.
class ServiceFault : public Error {
public:
    ServiceFault(ServiceCode code, const std::string& message) : ServiceFault(code, message, false, 0) {}
    /// One that may be tried again, after `retry_after_ms`.
    ServiceFault(ServiceCode code, const std::string& message, bool retryable, std::int64_t retry_after_ms)
        : Error(exit_code_of(code), message),
          service_code_(code),
          retryable_(retryable),
          retry_after_ms_(retry_after_ms) {}

    [[nodiscard]] ServiceCode service_code() const noexcept { return service_code_; }
    [[nodiscard]] bool retryable() const noexcept { return retryable_; }
    [[nodiscard]] std::int64_t retry_after_ms() const noexcept { return retry_after_ms_; }

    /// What a command line that meets this error returns.
    [[nodiscard]] static ExitCode exit_code_of(ServiceCode code);

private:
    ServiceCode service_code_;
    bool retryable_;
    std::int64_t retry_after_ms_;
};

/// "NOT_FOUND", ...
[[nodiscard]] std::string name_of(ServiceCode code);
/// The code of that name; INTERNAL for an unknown one.
[[nodiscard]] ServiceCode service_code_of(const std::string& name);

}  // namespace fenwick
