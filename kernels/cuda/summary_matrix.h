// What summary.cu calls for the matrix algebra.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mixer_shape.h"

namespace fenwick::cuda {

/// out[i] = combine(left + i pair_stride, right + i pair_stride), i < pairs; packed layer summaries, `out` in a row.
void combine_matrix_pairs(const MixerShape& shape, const float* left, const float* right, std::int64_t pairs,
                          std::int64_t pair_stride, float* out, cudaStream_t stream);

}  // namespace fenwick::cuda
