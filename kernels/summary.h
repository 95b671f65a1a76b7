// Summaries (A, S) of blocks and nodes, and what the tree does with them: DESIGN section 3, "Combine" and "Entering
// states".
#pragma once

#include <cstdint>

#include "kernels/mixer_shape.h"

namespace fenwick {

/// Layout of one layer's summary, fp32: for each head, A then S.
///   scalar:   A = log decay of the node (1 value, <= 0)                  S [d_k, d_v]
///   diagonal: A = log decay per key channel (d_k values, <= 0)           S [d_k, d_v]
///   matrix:   A [d_k, d_k]                                               S [d_k, d_v]
[[nodiscard]] std::int64_t transition_floats(const MixerShape& shape);  ///< floats of A for one head
[[nodiscard]] std::int64_t state_floats(const MixerShape& shape);       ///< floats of S for one head
[[nodiscard]] std::int64_t summary_floats(const MixerShape& shape);     ///< heads * (A + S): one packed layer summary

/// out = combine(left, right) = (A_r A_l, S_r + A_r S_l), for all heads of a packed layer summary. `out` is
/// memory apart from `left` and `right`. Parallel over heads with `threads` threads.
void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out, int threads);

/// The same for one head's (A, S).
void combine_head(const MixerShape& shape, const float* left, const float* right, float* out);

/// out = A_node * state for one head: what an older state is worth after the node's blocks have passed.
/// `node` is one head's (A, S); `state` and `out` are [d_k, d_v], distinct.
void carry_state(const MixerShape& shape, const float* node, const float* state, float* out);

}  // namespace fenwick
