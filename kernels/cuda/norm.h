// Normalisations on the GPU: kernels/norm.h with device pointers. Sums are fp32, in an order that depends on the number
// of channels alone. Weights [channels] fp32 on the device.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// y = x / sqrt(mean(x^2) + eps) * weight: x [rows, channels] fp32 (the residual stream), y [rows, channels] of the
/// operand type, both contiguous.
void rms_norm(Operand operand, const float* x, const float* weight, float eps, void* y, std::int64_t rows,
              std::int64_t channels, cudaStream_t stream);

/// In place: x = scale * x / sqrt(sum(x^2) + eps) for each of `heads` heads of head_dim neighbouring channels.
void l2_norm(Operand operand, void* x, std::int64_t x_stride, std::int64_t rows, std::int64_t heads,
             std::int64_t head_dim, float eps, float scale, cudaStream_t stream);

}  // namespace fenwick::cuda
