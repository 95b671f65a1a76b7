// Gradients of what the tree does with summaries (kernels/summary.h). Gradients lie as summaries do: for each head dA,
// then dS, where dA of the scalar and diagonal algebras is that of the log decay. All are added to.
#pragma once

#include "kernels/mixer_shape.h"

namespace fenwick {

/// Of combine_summaries, (A, S) = (A_r A_l, S_r + A_r S_l):
///   dS_l += A_r^T dS,  dS_r += dS,  dA_r += dS S_l^T + dA A_l^T,  dA_l += A_r^T dA
/// (scalar: da_r += <dS, A_r S_l> + da, da_l += da; diagonal likewise, by rows). A log decay of -inf gets 0.
void combine_summaries_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                                float* d_left, float* d_right, int threads);

/// The same for one head's (A, S).
void combine_head_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                           float* d_left, float* d_right);

/// Of carry_state, out = A_node * state, for one head: d_node's dA and d_state (its dS stays as it is).
void carry_state_backward(const MixerShape& shape, const float* node, const float* state, const float* d_out,
                          float* d_node, float* d_state);

}  // namespace fenwick
