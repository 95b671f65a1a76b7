#include "core/cuda/check.h"
#include "kernels/cuda/backward/sum_heads.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kThreads = 256;

__global__ void sum_kernel(const float* from, float* to, std::int64_t stride, std::int64_t rows, std::int64_t run,
                           int key_heads, int parts, int dk) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const std::int64_t width = static_cast<std::int64_t>(key_heads) * dk;
    const std::int64_t token = i / width;
    if (token >= rows) return;
    const auto key_head = static_cast<int>(i % width / dk);
    const auto channel = static_cast<int>(i % dk);
    const int each = parts / key_heads;
    float sum = 0.0F;
    for (int n = 0; n < each; ++n) {
        const std::int64_t part = token / run * parts + key_head * each + n;
        sum += from[(part * run + token % run) * dk + channel];
    }
    to[token * stride + i % width] += sum;
}

}  // namespace

void launch_sum_heads(const HeadShares& shares, const float* from, float* to, std::int64_t stride,
                      cudaStream_t stream) {
    const MixerShape& shape = shares.shape;
    const std::int64_t elements = shares.rows * shape.key_heads * shape.key_dim;
    const std::int64_t parts = shares.parts == 0 ? shape.heads : shares.parts;
    sum_kernel<<<static_cast<unsigned>((elements + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        from, to, stride, shares.rows, shares.run_tokens, static_cast<int>(shape.key_heads), static_cast<int>(parts),
        static_cast<int>(shape.key_dim));
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
