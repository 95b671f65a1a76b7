// Summaries and their gradients in double: kernels/summary.h and kernels/backward/summary.h, as plainly as they can be
// written. Packed as those say: for each head A (log decays; the matrix algebra: the matrix), then S.
#pragma once

#include <vector>

#include "kernels/mixer_shape.h"

namespace fenwick::reference {

/// (A, S) = (A_r A_l, S_r + A_r S_l), for every head.
[[nodiscard]] std::vector<double> combine_summaries(const MixerShape& shape, const std::vector<double>& left,
                                                    const std::vector<double>& right);

struct SummaryGradients {
    std::vector<double> left;
    std::vector<double> right;
};

/// Gradients of <d_out, combine_summaries(left, right)>; those of a log decay of -inf are 0.
[[nodiscard]] SummaryGradients combine_summaries_backward(const MixerShape& shape, const std::vector<double>& left,
                                                          const std::vector<double>& right,
                                                          const std::vector<double>& d_out);

/// A_node * state of one head: `node` is its (A, S), `state` [d_k, d_v].
[[nodiscard]] std::vector<double> carry_state(const MixerShape& shape, const std::vector<double>& node,
                                              const std::vector<double>& state);

struct CarryGradients {
    std::vector<double> node;  ///< dA, then zeros
    std::vector<double> state;
};

[[nodiscard]] CarryGradients carry_state_backward(const MixerShape& shape, const std::vector<double>& node,
                                                  const std::vector<double>& state, const std::vector<double>& d_out);

}  // namespace fenwick::reference
