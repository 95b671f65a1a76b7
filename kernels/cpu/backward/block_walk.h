// The walk over one head's block in reverse: kernels/cpu/block_walk.h's two walks, from the gradients of what they give
// to those of the rows and of what enters.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backward/mixer.h"
#include "kernels/cpu/block_walk.h"
#include "kernels/cpu/carver.h"

namespace fenwick::cpu {

/// Gradients of one head's block by its key head's rows, [4096, dk] each, overwritten: several heads may share a key
/// head, so the caller adds them up. `q` stays untouched by walk_summary_backward.
struct KeyRows {
    float* q = nullptr;
    float* k = nullptr;
};

[[nodiscard]] std::int64_t outputs_backward_floats(const MixerShape& shape, std::int64_t entering);
[[nodiscard]] std::int64_t summary_backward_floats(const MixerShape& shape);

/// Of walk_outputs with the same rows and `entering`. Adds to v, log_decay, beta and lambda of `gradients`; d_entering
/// [entering.size()][dk, dv] overwritten. `workspace`: outputs_backward_floats(shape, entering.size()).
void walk_outputs_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                           std::int64_t count, std::span<const EnteringState> entering, MatrixView<const float> d_out,
                           const MixerGradients& gradients, const KeyRows& keys, float* d_entering, float* workspace);

/// Of walk_summary of the same rows; d_summary (dA, dS) as kernels/backward/summary.h says. `workspace`:
/// summary_backward_floats(shape).
void walk_summary_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                           const float* d_summary, const MixerGradients& gradients, const KeyRows& keys,
                           float* workspace);

}  // namespace fenwick::cpu
