// The one way in which CUDA calls are checked.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "core/errors.h"

namespace fenwick::cuda {

/// File name without its folders: messages must not tell where the program was built.
[[nodiscard]] constexpr std::string_view file_name(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

/// What a user can do about `error`; empty when nothing is known.
[[nodiscard]] inline std::string advice_for(cudaError_t error) {
    switch (error) {
        case cudaErrorMemoryAllocation:
            return "; the GPU's memory is full: use a smaller --pass-tokens, or end other programs that use the GPU";
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorInitializationError:
            return "; no usable GPU or driver: 'fenwick doctor' shows what was found, --device cpu works without one";
        case cudaErrorDevicesUnavailable:
            return "; another program holds the GPU: wait for it, or choose another GPU with CUDA_VISIBLE_DEVICES";
        case cudaErrorNoKernelImageForDevice:
            return "; this GPU is of a kind that this program was not built for: see FENWICK_CUDA_ARCHITECTURES";
        default:
            return "";
    }
}

/// Throws UnavailableError with file, line, the call, CUDA's name for the error and advice.
[[noreturn]] inline void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line) {
    throw UnavailableError(std::string(file_name(file)) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")" + advice_for(error));
}

inline void check(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // an error that is no lasting fault must not be found again by the next check
    throw_cuda_error(error, call, file, line);
}

}  // namespace fenwick::cuda

/// Runs a CUDA runtime call; throws UnavailableError when it fails. After a launch:
/// FENWICK_CUDA_CHECK(cudaGetLastError()).
#define FENWICK_CUDA_CHECK(call) ::fenwick::cuda::check((call), #call, __FILE__, __LINE__)
