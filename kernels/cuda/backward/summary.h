// Gradients of the tree's operations on the GPU: kernels/backward/summary.h with device pointers, fp32 throughout.
#pragma once

#include <cuda_runtime.h>

#include "kernels/mixer_shape.h"

namespace fenwick::cuda {

/// Of combine_summaries for all heads of packed layer summaries; d_left and d_right are added to, and are memory apart
/// from each other and from all else. `transition` false: dA of `d_out` is not read and A of `left` neither (a node
/// that starts the document has no older state).
void combine_summaries_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                                float* d_left, float* d_right, bool transition, cudaStream_t stream);

/// Of out = A_node * state for all heads: `node` and `d_node` packed layer summaries (of d_node only dA is added to);
/// state, d_out and d_state [heads][d_k, d_v], d_state added to.
void carry_states_backward(const MixerShape& shape, const float* node, const float* state, const float* d_out,
                           float* d_node, float* d_state, cudaStream_t stream);

}  // namespace fenwick::cuda
