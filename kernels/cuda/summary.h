// The tree's one operation on the GPU: kernels/summary.h's combine, fp32 throughout.
#pragma once

#include <cuda_runtime.h>

#include "kernels/summary.h"

namespace fenwick::cuda {

/// out = combine(left, right) = (A_r A_l, S_r + A_r S_l) for all heads of packed layer summaries on the device; `out`
/// is memory apart from both. Every element is one chain in the order of the inner index:
///   scalar, diagonal: A = A_r + A_l, S = fma(exp(max(A_r, -1000)), S_l, S_r)
///   matrix:           sum over i of fma(A_r[row, i], X_l[i, column], sum), from 0; S: S_r + that sum
void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out, cudaStream_t stream);

/// Many at once: out[i] = combine(children[2 i], children[2 i + 1]), i < pairs; layer summaries in a row.
void combine_sibling_summaries(const MixerShape& shape, const float* children, std::int64_t pairs, float* out,
                               cudaStream_t stream);

}  // namespace fenwick::cuda
