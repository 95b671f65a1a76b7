// What the gradients' fast paths share: cumulative log decays, and what they ask of the rows.
#pragma once

#include "kernels/cuda/backward/call.h"

namespace fenwick::cuda::backward {

/// to [heads][padded_rows]: G of each head's log decays, inclusive, from each block's start (scalar_decay.cu's).
void launch_cumulative(const Call& call, std::int64_t padded_rows, double* to);

/// Throws InternalError where rows of bf16 cannot be moved 16 bytes at a time, or those of gradients 8 bytes.
void check_alignment(const Call& call);

/// Zeros [rows, columns]; null: nothing.
void launch_clear(float* data, std::int64_t stride, std::int64_t rows, std::int64_t columns, cudaStream_t stream);

}  // namespace fenwick::cuda::backward
