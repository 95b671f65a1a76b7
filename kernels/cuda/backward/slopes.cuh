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

}  // namespace fenwick::cuda
