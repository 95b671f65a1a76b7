// The sequence mixers: three transition algebras times two read-outs, by blocks (DESIGN sections 3 and 4).
//
// A layer is worked on in two steps. `mixer_block_summaries` needs nothing but a block's own rows; the summaries then
// go through the tree (parallel/exchange.h). `mixer_outputs` gets the nodes that enter the shard's first block and
// walks the shard's blocks. Every block is computed by the same operations on the same shapes wherever it lies in a
// shard, so an output's bits depend on the document alone: not on ranks, passes or threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "kernels/mixer_shape.h"
#include "kernels/summary.h"

namespace fenwick {

/// The rows of a shard. Views may be column ranges of wider matrices.
struct MixerInputs {
    MatrixView<const float> q;          ///< [rows, key_heads * key_dim]
    MatrixView<const float> k;          ///< [rows, key_heads * key_dim]
    MatrixView<const float> v;          ///< [rows, heads * value_dim]
    MatrixView<const float> log_decay;  ///< <= 0, -inf allowed: [rows, heads]; diagonal: [rows, heads * key_dim]
    MatrixView<const float> beta;       ///< matrix algebra: [rows, heads]; else empty
    MatrixView<const float> lambda;     ///< log-linear: [rows, heads * levels]; else empty
};

/// A complete node before the shard's first block: one set bit of that block's number.
struct EnteringNode {
    int bit = 0;
    const float* summary = nullptr;  ///< packed layer summary, summary_floats(shape)
};

/// Floats of workspace that the two calls below need for each thread, when no block number exceeds `last_block`.
[[nodiscard]] std::int64_t mixer_workspace_floats(const MixerShape& shape, std::int64_t last_block);

/// Summaries of the first `blocks` whole blocks of `inputs`, each from a zero state:
/// out[blocks][summary_floats(shape)]. `workspace`: threads * mixer_workspace_floats(shape, 0) floats.
/// Throws UnavailableError from initialise_blas(); so does `mixer_outputs`.
void mixer_block_summaries(const MixerShape& shape, const MixerInputs& inputs, std::int64_t blocks, float* out,
                           int threads, float* workspace);

/// The mixer's output rows, out [rows, heads * value_dim]. The shard starts at block `first_block` of its document;
/// `entering` lists that block's nodes, oldest (largest) first; `block_summaries` holds those of the shard's whole
/// blocks (the last one may be left out: nothing in the shard reads it). Levels past the last of lambda use the last.
/// `workspace`: threads * mixer_workspace_floats(shape, last block of the shard) floats.
/// Throws InternalError when `entering` is not the canonical list of `first_block`.
void mixer_outputs(const MixerShape& shape, const MixerInputs& inputs, std::int64_t first_block,
                   std::span<const EnteringNode> entering, const float* block_summaries, MatrixView<float> out,
                   int threads, float* workspace);

}  // namespace fenwick
