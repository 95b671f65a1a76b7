#include "kernels/cuda/norm.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeadThreads = 32;  // a warp for each head
constexpr int kHeadsOfBlock = 8;

/// kHeld: values of a thread, in fours, that stay in registers between sum and result; 0: they are read twice.
template <class T, int kCount, int kHeld>
__global__ void rms_norm_kernel(const float* x, const float* weight, float eps, T* y, std::int64_t channels) {
    __shared__ float scratch[32];
    const std::int64_t first = blockIdx.x * channels;
    constexpr int kStep = kThreads * kCount;
    const std::int64_t mine = threadIdx.x * kCount;
    Values<kCount> held[kHeld > 0 ? kHeld : 1];
    float sum = 0.0F;
    const auto add = [&](const Values<kCount>& v) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum = fmaf(v.at[i], v.at[i], sum);
    };
    if constexpr (kHeld > 0) {
#pragma unroll
        for (int p = 0; p < kHeld; ++p) {
            held[p] =
                mine + p * kStep < channels ? load_values<kCount>(x + first + mine + p * kStep) : Values<kCount>{};
        }
#pragma unroll
        for (int p = 0; p < kHeld; ++p) add(held[p]);
    } else {
        for (std::int64_t c = mine; c < channels; c += kStep) add(load_values<kCount>(x + first + c));
    }
    const float factor = 1.0F / sqrtf(block_sum(sum, scratch) / static_cast<float>(channels) + eps);
    const auto finish = [&](Values<kCount> v, std::int64_t c) {
        const Values<kCount> w = load_values<kCount>(weight + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) v.at[i] = v.at[i] * factor * w.at[i];
        store_values<kCount>(y + first + c, v);
    };
    if constexpr (kHeld > 0) {
#pragma unroll
        for (int p = 0; p < kHeld; ++p) {
            if (mine + p * kStep < channels) finish(held[p], mine + p * kStep);
        }
    } else {
        for (std::int64_t c = mine; c < channels; c += kStep) finish(load_values<kCount>(x + first + c), c);
    }
}

template <class T>
auto rms_norm_kernel_for(bool wide, std::int64_t channels) {
    if (!wide) return rms_norm_kernel<T, 1, 0>;
    if (channels <= 4 * 4 * kThreads) return rms_norm_kernel<T, 4, 4>;
    return channels <= 8 * 4 * kThreads ? rms_norm_kernel<T, 4, 8> : rms_norm_kernel<T, 4, 0>;
}

template <class T, int kCount>
__global__ void l2_norm_kernel(T* x, std::int64_t stride, std::int64_t heads, std::int64_t count, std::int64_t head_dim,
                               float eps, float scale) {
    const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * kHeadsOfBlock + threadIdx.y;
    if (head >= count) return;
    T* at = x + head / heads * stride + head % heads * head_dim;
    float sum = 0.0F;
    for (std::int64_t c = threadIdx.x * kCount; c < head_dim; c += kHeadThreads * kCount) {
        const Values<kCount> v = load_values<kCount>(at + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum = fmaf(v.at[i], v.at[i], sum);
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, offset);
    const float factor = scale / sqrtf(sum + eps);
    for (std::int64_t c = threadIdx.x * kCount; c < head_dim; c += kHeadThreads * kCount) {
        Values<kCount> v = load_values<kCount>(at + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) v.at[i] *= factor;
        store_values<kCount>(at + c, v);
    }
}

}  // namespace

void rms_norm(Operand operand, const float* x, const float* weight, float eps, void* y, std::int64_t rows,
              std::int64_t channels, cudaStream_t stream) {
    if (rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = fours(x, channels, sizeof(float)) && fours(y, channels, sizeof(T)) &&
                          fours(weight, channels, sizeof(float));
        const auto kernel = rms_norm_kernel_for<T>(wide, channels);
        kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, weight, eps, static_cast<T*>(y), channels);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void l2_norm(Operand operand, void* x, std::int64_t x_stride, std::int64_t rows, std::int64_t heads,
             std::int64_t head_dim, float eps, float scale, cudaStream_t stream) {
    const std::int64_t count = rows * heads;
    if (count == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = head_dim % 4 == 0 && fours(x, x_stride, sizeof(T));
        const auto kernel = wide ? l2_norm_kernel<T, 4> : l2_norm_kernel<T, 1>;
        const auto blocks = static_cast<unsigned>((count + kHeadsOfBlock - 1) / kHeadsOfBlock);
        kernel<<<blocks, dim3(kHeadThreads, kHeadsOfBlock), 0, stream>>>(static_cast<T*>(x), x_stride, heads, count,
                                                                         head_dim, eps, scale);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
