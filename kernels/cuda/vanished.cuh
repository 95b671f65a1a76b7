// Transitions that have vanished: blocks that forget all that is older have A = 0 (matrix_summary.cu), and with it do
// the nodes above them. Their products are passed over.
//
// Where a product of transitions is kept below kVanished it is taken for zero: what is dropped is below 2^-64 of the
// states, or gradients, that it is applied to, 2^-40 of one rounding of theirs. It depends on the block's own tokens
// alone, so the bits do not depend on ranks or passes.
#pragma once

#include <cstdint>

namespace fenwick::cuda {

inline constexpr float kVanished = 0x1p-64F;

/// What the chunks of a block leave of older states.
struct BlockMemory {
    bool vanishes;    ///< A is below kVanished
    int first_chunk;  ///< the last one that leaves less than kVanished of the state before it at the block's end, or 0
    int end_chunk;    ///< from here on less than kVanished of what entered the block is left; at most `chunks`
};

#if defined(__CUDACC__)

/// What a thread has seen of a tile of A and one of what it is applied to. Where nobody has seen an `a` that is not 0,
/// or an `x` that is not finite, every fma(a, x, sum) is `sum` to the bit.
struct ProductsSeen {
    std::uint32_t bits = 0;  ///< of all a, but for signs
    std::uint32_t most = 0;  ///< largest |x|

    __device__ __forceinline__ void see_a(float a) { bits |= __float_as_uint(a) << 1; }
    __device__ __forceinline__ void see_x(float x) { most = max(most, __float_as_uint(x) & 0x7FFFFFFFU); }
    [[nodiscard]] __device__ __forceinline__ bool count() const {
        constexpr std::uint32_t kInfinity = 0x7F800000U;
        return bits != 0 || most >= kInfinity;
    }
};

/// For a warp, all of whose lanes get the same. `bounds`: of the 2-norm of the first chunk's transition, the next one's
/// `stride` further on (matrix::Prepared::bounds); infinity where it may grow. `chunks`: 1 to 64.
__device__ __forceinline__ BlockMemory memory_of(const float* bounds, std::int64_t stride, int chunks) {
    constexpr unsigned kAll = 0xFFFFFFFFU;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float first = 2 * lane < chunks ? bounds[2 * lane * stride] : 1.0F;
    const float second = 2 * lane + 1 < chunks ? bounds[(2 * lane + 1) * stride] : 1.0F;
    float after = first * second;  // the bound of the lane's chunks and all that follow
    float until = after;           // and of all that precede
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float later = __shfl_down_sync(kAll, after, d);
        if (lane + d < 32) after *= later;
        const float earlier = __shfl_up_sync(kAll, until, d);
        if (lane >= d) until *= earlier;
    }
    const float next = __shfl_down_sync(kAll, after, 1);
    const float before = __shfl_up_sync(kAll, until, 1);
    const float from_second = lane == 31 ? second : second * next;
    const float until_first = lane == 0 ? first : first * before;
    // Infinity times zero, NaN, is not below.
    const unsigned firsts = __ballot_sync(kAll, after < kVanished);
    const unsigned seconds = __ballot_sync(kAll, from_second < kVanished);
    const unsigned to_firsts = __ballot_sync(kAll, until_first < kVanished);
    const unsigned to_seconds = __ballot_sync(kAll, until < kVanished);
    const int last_first = firsts == 0 ? 0 : 2 * (31 - __clz(static_cast<int>(firsts)));
    const int last_second = seconds == 0 ? 0 : 2 * (31 - __clz(static_cast<int>(seconds))) + 1;
    const int end_first = to_firsts == 0 ? chunks : 2 * (__ffs(static_cast<int>(to_firsts)) - 1) + 1;
    const int end_second = to_seconds == 0 ? chunks : 2 * __ffs(static_cast<int>(to_seconds));
    return {(firsts & 1U) != 0, max(last_first, last_second), min(chunks, min(end_first, end_second))};
}

#endif

}  // namespace fenwick::cuda
