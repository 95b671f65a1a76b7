// Gradients of the mixers by definition, in double: the token recurrence of reference/mixer.h in reverse.
#pragma once

#include <vector>

#include "kernels/reference/mixer.h"

namespace fenwick::reference {

/// With L = sum of d_out * mixer_recurrent(inputs): dL by every input, shaped as the inputs are (`tokens` is theirs).
/// d_out [tokens, heads * value_dim]. A log decay of -inf gets 0; levels past the last of lambda add to the last.
/// Keeps every state that a token meets: O(tokens log(tokens) d_k d_v) doubles for each head.
[[nodiscard]] MixerInputs mixer_backward(const MixerShape& shape, const MixerInputs& inputs,
                                         const std::vector<double>& d_out);

}  // namespace fenwick::reference
