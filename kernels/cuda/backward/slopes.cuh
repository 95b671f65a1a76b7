// Derivatives of the elementary functions, as kernels/cpu/backward/slopes.h forms them.
#pragma once

#include "kernels/cuda/operand.h"

namespace fenwick::cuda {

/// d sigmoid / dx: nothing cancels.
__device__ inline float sigmoid_slope(float x) {
    const float z = expf(-fabsf(x));
    const float sum = 1.0F + z;
    return z / (sum * sum);
}

/// silu and its derivative. NaN at -inf and inf, as a fault that must show.
struct SiluPoint {
    float value, slope;
};
__device__ inline SiluPoint silu_point(float x) {
    const float z = expf(-fabsf(x));
    const float inverse = 1.0F / (1.0F + z);
    const float sigmoid = x < 0.0F ? z * inverse : inverse;
    return {x * sigmoid, fmaf(x, z * inverse * inverse, sigmoid)};
}

/// silu's derivative for gradients that are rounded to T: beside bf16's 2^-9 the fast functions' few ulp do not count.
template <class T>
__device__ inline float silu_slope_for(float x) {
    if constexpr (sizeof(T) == 2) {
        const float sigmoid = __fdividef(1.0F, 1.0F + __expf(-x));
        return fmaf(x, sigmoid * (1.0F - sigmoid), sigmoid);
    } else {
        return silu_point(x).slope;
    }
}

}  // namespace fenwick::cuda
