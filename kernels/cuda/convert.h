// Copies between fp32 and the operand types on the GPU.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// `to` [count] of the operand type from fp32, rounded to nearest.
void to_operand(Operand operand, const float* from, void* to, std::int64_t count, cudaStream_t stream);
/// fp32 from the operand type: exact.
void from_operand(Operand operand, const void* from, float* to, std::int64_t count, cudaStream_t stream);
/// y[r, c] += bias[c] for rows of the operand type, or fp32 (operand kFp32).
void add_bias(Operand operand, void* y, std::int64_t y_stride, const float* bias, std::int64_t rows,
              std::int64_t columns, cudaStream_t stream);

/// Throws UnavailableError when the current device is of a kind that the kernels were not compiled for.
void require_kernel_image();

}  // namespace fenwick::cuda
