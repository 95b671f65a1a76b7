#include "coordinator/store/service_fault.h"

namespace fenwick {

ExitCode ServiceFault::exit_code_of(ServiceCode code) {
    switch (code) {
        case ServiceCode::INVALID_ARGUMENT:
        case ServiceCode::NOT_FOUND:
        case ServiceCode::CONFLICT:
        case ServiceCode::DOCUMENT_TOO_LONG:
            return ExitCode::kUsage;
        case ServiceCode::CORRUPT_DATA:
        case ServiceCode::NUMERIC_ERROR:
            return ExitCode::kBadInput;
        case ServiceCode::INTERNAL:
            return ExitCode::kInternal;
        case ServiceCode::VERSION_MISMATCH:
            return ExitCode::kBadConfiguration;
        default:
            return ExitCode::kUnavailable;
    }
}

std::string name_of(ServiceCode code) {
    const auto found = idl::_ErrorCode_VALUES_TO_NAMES.find(static_cast<int>(code));
    return found == idl::_ErrorCode_VALUES_TO_NAMES.end() ? "INTERNAL" : found->second;
}

ServiceCode service_code_of(const std::string& name) {
    for (const auto& [value, text] : idl::_ErrorCode_VALUES_TO_NAMES) {
        if (name == text) return static_cast<ServiceCode>(value);
    }
    return ServiceCode::INTERNAL;
}

}  // namespace fenwick
