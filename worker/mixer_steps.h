// The two steps in which the families differ (token_mixer.h: gates, read_out), as plain parameters: for machines that
// run them by kernels of their own. Pointers are fp32, owned by the mixer; columns are those of `projected`, where the
// gates' columns come last.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/gates.h"

namespace fenwick {

/// Mamba-2: columns z [inner], x B C (the convolution), dt [heads], dl [heads * levels]. The convolved columns are x
/// [inner], k, q.
struct Mamba2Steps {
    Mamba2Gates gates;
    const float* level_scale = nullptr;  ///< L [heads * levels]; null when linear
    const float* skip = nullptr;         ///< D [skip_count]
    std::int64_t skip_count = 0;         ///< heads, or inner
    const float* norm = nullptr;         ///< [inner]; null: the gate alone
    float norm_eps = 0.0F;
    bool norm_before_gate = false;
    std::int64_t inner = 0;
    std::int64_t gates_first = 0;  ///< column of dt
};

/// Gated DeltaNet: columns q k v (the convolution), g [values], a [heads], b [heads], dl [heads * levels].
struct GatedDeltaSteps {
    DeltaGates gates;
    const float* level_scale = nullptr;  ///< L [heads * levels]; null when linear
    const float* norm = nullptr;         ///< [d_v], shared by the heads
    float norm_eps = 0.0F;
    float l2_eps = 0.0F;
    float query_scale = 1.0F;
    bool use_gate = true;
    std::int64_t keys = 0;         ///< key_heads * d_k
    std::int64_t values = 0;       ///< heads * d_v
    std::int64_t gates_first = 0;  ///< column of a
};

using MixerSteps = std::variant<Mamba2Steps, GatedDeltaSteps>;

}  // namespace fenwick
