// Long fp32 vectors on the GPU: sums of them, and what is wrong in them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// to[i] += from[i], i < count.
void add_vector(const float* from, float* to, std::int64_t count, cudaStream_t stream);

/// y[r, c] += x[r, c]: [rows, columns], x fp32, y of the operand type; strides count elements.
void add_rows(Operand operand, const float* x, std::int64_t x_stride, void* y, std::int64_t y_stride, std::int64_t rows,
              std::int64_t columns, cudaStream_t stream);

/// out[i] = sum over p < parts of part[p][i], in that order, in double, rounded once. part[p] starts `stride` elements
/// behind part[p - 1], but part number `own` is at `own_part`, which may be `out`.
void sum_parts(const float* part, std::int64_t stride, int parts, int own, const float* own_part, float* out,
               std::int64_t count, cudaStream_t stream);

/// *first = the least i < count with values[i] not finite, or `count`. `first` lies on the device.
void find_not_finite(const float* values, std::int64_t count, std::int64_t* first, cudaStream_t stream);

}  // namespace fenwick::cuda
