#include "core/cuda/device_buffer.h"
#include "tests/kernels/cuda/repeated.h"

namespace fenwick::test {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 4096;

template <class Body>
__device__ void each_element(const Repeated& shape, const Body& body) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
         i < shape.rows * shape.columns; i += step) {
        body(i, i / shape.columns % shape.small_rows, i % shape.columns % shape.small_columns);
    }
}

template <class T>
__global__ void repeat_kernel(const Repeated shape, const T* small, T* out) {
    each_element(shape, [&](std::int64_t i, std::int64_t row, std::int64_t column) {
        out[i] = small[row * shape.small_columns + column];
    });
}

template <class T>
__global__ void count_kernel(const Repeated shape, const T* data, unsigned long long* unlike) {
    unsigned long long mine = 0;
    each_element(shape, [&](std::int64_t i, std::int64_t row, std::int64_t column) {
        if (data[i] != data[row * shape.columns + column]) ++mine;
    });
    if (mine > 0) atomicAdd(unlike, mine);
}

}  // namespace

void repeat(const Repeated& shape, const void* small, void* out, std::int64_t element_bytes, cudaStream_t stream) {
    if (element_bytes == 2) {
        repeat_kernel<<<kBlocks, kThreads, 0, stream>>>(shape, static_cast<const std::uint16_t*>(small),
                                                        static_cast<std::uint16_t*>(out));
    } else {
        repeat_kernel<<<kBlocks, kThreads, 0, stream>>>(shape, static_cast<const std::uint32_t*>(small),
                                                        static_cast<std::uint32_t*>(out));
    }
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

std::int64_t count_unlike(const Repeated& shape, const void* data, std::int64_t element_bytes, cudaStream_t stream) {
    cuda::DeviceBuffer<unsigned long long> unlike(1, stream);
    FENWICK_CUDA_CHECK(cudaMemsetAsync(unlike.data(), 0, unlike.bytes(), stream));
    if (element_bytes == 2) {
        count_kernel<<<kBlocks, kThreads, 0, stream>>>(shape, static_cast<const std::uint16_t*>(data), unlike.data());
    } else {
        count_kernel<<<kBlocks, kThreads, 0, stream>>>(shape, static_cast<const std::uint32_t*>(data), unlike.data());
    }
    FENWICK_CUDA_CHECK(cudaGetLastError());
    unsigned long long count = 0;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(&count, unlike.data(), sizeof(count), cudaMemcpyDeviceToHost, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return static_cast<std::int64_t>(count);
}

}  // namespace fenwick::test
