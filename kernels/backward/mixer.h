// Gradients of the sequence mixers: the two steps of kernels/mixer.h in reverse (DESIGN section 3, "Backward").
//
//   forward:   summaries = mixer_block_summaries(inputs)      (the tree, over ranks)      out = mixer_outputs(inputs,
//                                                                                 entering, summaries)
//   backward:  mixer_outputs_backward: d_out -> inputs, entering nodes, the shard's own block summaries
//              (the mirrored tree: entering nodes' gradients flow back to the blocks that they were made of)
//              mixer_block_summaries_backward: the summaries' gradients -> inputs
//
// States are formed again, block by block, from those that enter a block; nothing of the forward pass is kept but its
// inputs, the entering nodes and the block summaries.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/mixer.h"

namespace fenwick {

/// Views shaped as MixerInputs'; all are added to. A log decay of -inf gets 0.
struct MixerGradients {
    MatrixView<float> q;
    MatrixView<float> k;
    MatrixView<float> v;
    MatrixView<float> log_decay;
    MatrixView<float> beta;    ///< matrix algebra; else empty
    MatrixView<float> lambda;  ///< log-linear; else empty. Levels past the last add to the last
};

/// Floats of workspace for each thread, when no block number exceeds `last_block` and the shard has `blocks` blocks.
[[nodiscard]] std::int64_t mixer_backward_workspace_floats(const MixerShape& shape, std::int64_t blocks,
                                                           std::int64_t last_block);

/// Of mixer_outputs with the same arguments: d_out [rows, heads * value_dim]. d_entering[i] (one packed layer summary
/// for each entering node, laid out as backward/summary.h says) and d_block_summaries (as many as `block_summaries` has
/// to have) are added to. Every value has the same bits with any number of threads.
void mixer_outputs_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t first_block,
                            std::span<const EnteringNode> entering, const float* block_summaries,
                            MatrixView<const float> d_out, const MixerGradients& gradients,
                            std::span<float* const> d_entering, float* d_block_summaries, int threads,
                            float* workspace);

/// Of mixer_block_summaries: d_summaries [blocks][summary_floats(shape)].
void mixer_block_summaries_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t blocks,
                                    const float* d_summaries, const MixerGradients& gradients, int threads,
                                    float* workspace);

}  // namespace fenwick
