// Bits of block numbers, on the device.
#pragma once

#include "kernels/cuda/matrix_plan.h"

namespace fenwick::cuda::matrix {

/// The largest set bit of n > 0.
__device__ __forceinline__ int top_bit(std::int64_t n) {
    return 63 - __clzll(static_cast<long long>(n));
}

}  // namespace fenwick::cuda::matrix
