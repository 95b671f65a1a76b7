// The walk over one head's block, chunk by chunk: its summary from a zero state, or its outputs given what enters.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/chunk.h"

namespace fenwick::cpu {

/// A state that enters the block, carried to the block's first token: E_b of DESIGN section 3.
struct EnteringState {
    int bit = 0;                   ///< of the block number: token level 13 + bit
    const float* state = nullptr;  ///< [dk, dv]
};

[[nodiscard]] std::int64_t block_walk_floats(const MixerShape& shape, std::int64_t entering);

/// (A, S) of rows [first, first + kBlockTokens) of one head, in the layout of kernels/summary.h.
/// `workspace`: block_walk_floats(shape, 0).
void walk_summary(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  float* summary, float* workspace);

/// Output rows [first, first + count), count <= kBlockTokens, of one head, into its columns of `out`.
/// `entering`: oldest first. `workspace`: block_walk_floats(shape, entering.size()).
void walk_outputs(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  std::int64_t count, std::span<const EnteringState> entering, MatrixView<float> out, float* workspace);

}  // namespace fenwick::cpu
