#include "core/cuda/device_buffer.h"

#include <spdlog/spdlog.h>

namespace fenwick::cuda {
namespace {

void require_size(std::int64_t bytes) {
    if (bytes < 0) throw InternalError("device buffer: impossible size of " + std::to_string(bytes) + " bytes");
}

void log_failure(cudaError_t error, const char* what) {
    // When the process ends, the driver may be gone before the last buffer: its memory went with it.
    if (error == cudaSuccess || error == cudaErrorCudartUnloading) return;
    spdlog::error("{}: {}", what, cudaGetErrorString(error));
    (void)cudaGetLastError();
}

}  // namespace

void* device_allocate(std::int64_t bytes, cudaStream_t stream) {
    require_size(bytes);
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const cudaError_t error = cudaMallocAsync(&data, static_cast<std::size_t>(bytes), stream);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        const std::string call = "allocation of " + std::to_string(bytes) + " bytes on the GPU";
        throw_cuda_error(error, call.c_str(), __FILE__, __LINE__);
    }
    return data;
}

void device_free(void* data, cudaStream_t stream) noexcept {
    if (data != nullptr) log_failure(cudaFreeAsync(data, stream), "giving back GPU memory");
}

void* pinned_allocate(std::int64_t bytes) {
    require_size(bytes);
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    FENWICK_CUDA_CHECK(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocDefault));
    return data;
}

void pinned_free(void* data) noexcept {
    if (data != nullptr) log_failure(cudaFreeHost(data), "giving back pinned memory");
}

}  // namespace fenwick::cuda
