// Two channels of a quarter of a chunk (16 tokens) in a thread's registers: log decays become decays, and what other
// quarters have to know of them goes through shared memory.
#pragma once

#include "kernels/cuda/diagonal_plan.h"
#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::diagonal {

inline constexpr int kQuarterTokens = 16;
inline constexpr int kEighthTokens = 8;

__device__ __forceinline__ float2 operator*(float2 a, float2 b) {
    return make_float2(a.x * b.x, a.y * b.y);
}
__device__ __forceinline__ float2 unpack(std::uint32_t pair) {
    return make_float2(matrix::low_of(pair), matrix::high_of(pair));
}
__device__ __forceinline__ std::uint32_t pack(float2 x) {
    return matrix::pack(x.x, x.y);
}
/// exp by the hardware's 2^x; 0 for what would be subnormal.
__device__ __forceinline__ float fast_exp(float x) {
#if defined(__CUDA_ON_HOST__)
    return exp2f(x * 1.4426950408889634F);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634F));
    return y;
#endif
}

/// Rows of 16 tokens: `from` points at the thread's two channels of the first one. Rows from `rows` on become zero.
__device__ __forceinline__ void load_decays(float2 (&to)[kQuarterTokens], const float* from, std::int64_t stride,
                                            int rows) {
    if (rows >= kQuarterTokens) {
#pragma unroll
        for (int i = 0; i < kQuarterTokens; ++i) to[i] = *reinterpret_cast<const float2*>(from + i * stride);
        return;
    }
#pragma unroll
    for (int i = 0; i < kQuarterTokens; ++i) {
        to[i] = i < rows ? *reinterpret_cast<const float2*>(from + i * stride) : make_float2(0.0F, 0.0F);
    }
}
__device__ __forceinline__ void load_pairs(std::uint32_t (&to)[kQuarterTokens], const __nv_bfloat16* from,
                                           std::int64_t stride, int rows) {
    if (rows >= kQuarterTokens) {
#pragma unroll
        for (int i = 0; i < kQuarterTokens; ++i) to[i] = *reinterpret_cast<const std::uint32_t*>(from + i * stride);
        return;
    }
#pragma unroll
    for (int i = 0; i < kQuarterTokens; ++i) {
        to[i] = i < rows ? *reinterpret_cast<const std::uint32_t*>(from + i * stride) : 0U;
    }
}

template <int kDk>
struct Quarters {
    float decay[4][kDk];
    float log[4][kDk];
};

/// Log decays to decays in place; `part`: the decay of each eighth. Sums go to `to`; a barrier must follow.
template <int kDk>
__device__ __forceinline__ void form_decays(float2 (&a)[kQuarterTokens], float2 (&part)[2], Quarters<kDk>& to,
                                            int quarter, int pair) {
    float2 sum = make_float2(0.0F, 0.0F);
#pragma unroll
    for (int i = 0; i < kQuarterTokens; ++i) {
        const float2 g = make_float2(fmaxf(a[i].x, kLogDecayFloor), fmaxf(a[i].y, kLogDecayFloor));
        sum.x += g.x;
        sum.y += g.y;
        a[i] = make_float2(fast_exp(g.x), fast_exp(g.y));
        part[i / kEighthTokens] = i % kEighthTokens == 0 ? a[i] : part[i / kEighthTokens] * a[i];
    }
    *reinterpret_cast<float2*>(&to.decay[quarter][2 * pair]) = part[0] * part[1];
    *reinterpret_cast<float2*>(&to.log[quarter][2 * pair]) = sum;
}

/// After the barrier: the decays of the quarters for a thread's channels, and from a quarter to the chunk's end.
template <int kDk>
__device__ __forceinline__ void load_totals(float2 (&total)[4], const Quarters<kDk>& from, int pair) {
#pragma unroll
    for (int r = 0; r < 4; ++r) total[r] = *reinterpret_cast<const float2*>(&from.decay[r][2 * pair]);
}
__device__ __forceinline__ float2 decay_to_end(const float2 (&total)[4], int quarter) {
    float2 x = make_float2(1.0F, 1.0F);
#pragma unroll
    for (int r = 3; r > 0; --r) x = r > quarter ? x * total[r] : x;
    return x;
}
template <int kDk>
__device__ __forceinline__ float chunk_log(const Quarters<kDk>& from, int channel) {
    return (from.log[0][channel] + from.log[1][channel]) + (from.log[2][channel] + from.log[3][channel]);
}

}  // namespace fenwick::cuda::diagonal
