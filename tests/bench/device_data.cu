#include "tests/bench/device_data.h"

namespace fenwick::bench {
namespace {

using cuda::DeviceBuffer;

constexpr int kThreads = 256;

__device__ std::uint64_t mixed(std::uint64_t i, std::uint64_t salt) {
    std::uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ULL + salt * 0xD1B54A32D192ED03ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

__device__ float uniform(std::uint64_t i, std::uint64_t salt) {
    return static_cast<float>(mixed(i, salt) >> 40) * 0x1p-24F;
}

__global__ void fill_operand(__nv_bfloat16* out, std::int64_t first, std::int64_t vectors, std::int64_t dim,
                             float scale, bool unit, std::uint64_t salt) {
    const std::int64_t vector = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
    if (vector >= vectors) return;
    const std::int64_t at = (first + vector) * dim;
    float sum = 0.0F;
    for (std::int64_t c = 0; c < dim; ++c) {
        const float x = 2.0F * uniform(at + c, salt) - 1.0F;
        sum += x * x;
    }
    const float factor = unit ? rsqrtf(sum) : scale;
    for (std::int64_t c = 0; c < dim; ++c) {
        out[vector * dim + c] = __float2bfloat16(factor * (2.0F * uniform(at + c, salt) - 1.0F));
    }
}

__global__ void fill_floats(float* out, std::int64_t first, std::int64_t count, float low, float high,
                            std::uint64_t salt) {
    const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
    if (i < count) out[i] = low + (high - low) * uniform(first + i, salt);
}

__global__ void sum_words(const unsigned short* words, std::int64_t count, std::int64_t first,
                          unsigned long long* sum) {
    unsigned long long own = 0;
    for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
        own += mixed(static_cast<std::uint64_t>(first + i), words[i]);
    }
    atomicAdd(sum, own);
}

unsigned blocks_for(std::int64_t count) {
    return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

DeviceBuffer<__nv_bfloat16> random_operand(std::int64_t first_row, std::int64_t rows, std::int64_t heads,
                                           std::int64_t dim, float scale, bool unit, std::uint64_t salt,
                                           cudaStream_t stream) {
    DeviceBuffer<__nv_bfloat16> data(rows * heads * dim, stream);
    fill_operand<<<blocks_for(rows * heads), kThreads, 0, stream>>>(data.data(), first_row * heads, rows * heads, dim,
                                                                    scale, unit, salt);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    return data;
}

DeviceBuffer<float> random_floats(std::int64_t first_row, std::int64_t rows, std::int64_t columns, float low,
                                  float high, std::uint64_t salt, cudaStream_t stream) {
    DeviceBuffer<float> data(rows * columns, stream);
    fill_floats<<<blocks_for(rows * columns), kThreads, 0, stream>>>(data.data(), first_row * columns, rows * columns,
                                                                     low, high, salt);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    return data;
}

std::uint64_t checksum(const void* words, std::int64_t count, std::int64_t first_word, cudaStream_t stream) {
    DeviceBuffer<unsigned long long> sum(1, stream);
    FENWICK_CUDA_CHECK(cudaMemsetAsync(sum.data(), 0, sum.bytes(), stream));
    sum_words<<<1024, kThreads, 0, stream>>>(static_cast<const unsigned short*>(words), count, first_word, sum.data());
    FENWICK_CUDA_CHECK(cudaGetLastError());
    unsigned long long result = 0;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(&result, sum.data(), sizeof(result), cudaMemcpyDeviceToHost, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return result;
}

}  // namespace fenwick::bench
