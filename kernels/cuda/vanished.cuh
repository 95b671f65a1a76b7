// Transitions that have vanished: blocks that forget all that is older have A = 0 (matrix_summary.cu), and with it do
// the nodes above them. Their products are passed over.
#pragma once

#include <cstdint>

namespace fenwick::cuda {

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

}  // namespace fenwick::cuda
