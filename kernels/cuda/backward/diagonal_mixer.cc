// The diagonal algebra's entry points: what the kernels share, and the order of their launches.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "kernels/cuda/backward/batches.h"
#include "kernels/cuda/backward/diagonal.h"
#include "kernels/cuda/backward/state_tiles.h"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

// The batch's chunks as the forward pass prepares them.
void launch_prepared(const Diagonal& s) {
    const std::int64_t first = s.batch_block * kBlockTokens;
    diagonal::Work work;
    work.shape = s.call.shape;
    work.inputs = s.call.inputs;
    MixerInputs& in = work.inputs;
    in.rows = s.batch_rows();
    in.q = static_cast<const __nv_bfloat16*>(in.q) + first * in.q_stride;
    in.k = static_cast<const __nv_bfloat16*>(in.k) + first * in.k_stride;
    in.log_decay += first * in.decay_stride;
    if (in.lambda != nullptr) in.lambda += first * in.lambda_stride;
    work.chunks = (in.rows + kChunk - 1) / kChunk;
    work.prepared = s.prepared;
    diagonal::launch_prepare(work, s.call.stream);
}

void check_decays(const Call& call) {
    const auto good = [](const float* p, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(p) % 8 == 0 && stride % 2 == 0;
    };
    if (good(call.inputs.log_decay, call.inputs.decay_stride) &&
        good(call.gradients.log_decay, call.gradients.decay_stride)) {
        return;
    }
    throw InternalError("mixer backward on the GPU: log decays per channel must start at multiples of 8 bytes");
}

// The batch's shares of a key head's gradient, if heads share it, before and after they are formed.
void clear_shares(const Call& call) {
    if (call.shape.heads == call.shape.key_heads) return;
    const MixerGradients& g = call.gradients;
    const std::int64_t columns = call.shape.key_heads * call.shape.key_dim;
    launch_clear(g.q, g.q_stride, call.inputs.rows, columns, call.stream);
    launch_clear(g.k, g.k_stride, call.inputs.rows, columns, call.stream);
}
void sum_shares(const Diagonal& s, bool queries) {
    if (s.heads_per_key == 1) return;
    const MixerGradients& g = s.call.gradients;
    const std::int64_t first = s.batch_block * kBlockTokens;
    const HeadShares shares{s.call.shape, s.batch_rows(), s.batch_rows()};
    if (queries) launch_sum_heads(shares, s.d_q, g.q + first * g.q_stride, g.q_stride, s.call.stream);
    launch_sum_heads(shares, s.d_k, g.k + first * g.k_stride, g.k_stride, s.call.stream);
}

}  // namespace

bool has_diagonal_kernels(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block) {
    constexpr int kSharedBytes = 227 * 1024;
    return shape.algebra == TransitionAlgebra::kDiagonal && operand == Operand::kBf16 &&
           (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0 &&
           shape.levels <= kDiagonalMostLevels && (first_block + blocks_of(rows)) >> kDiagonalMostSlots == 0 &&
           most_shared_bytes() >= kSharedBytes;
}

Diagonal make_diagonal(const MixerShape& shape, std::int64_t rows, int slots, Carver& carver) {
    Diagonal s;
    set_shape(s, shape, rows, slots);
    s.columns = s.heads * s.tiles;
    const std::int64_t block_nodes = kChunksPerBlock * s.columns * s.state_elements();
    const std::int64_t block_tiles = kChunksPerBlock * s.heads;
    const std::int64_t keys = kChunkTokens * shape.key_dim;
    const std::int64_t scores = kChunkTokens * kChunkTokens;
    set_blocks_at_once(s, (2 * block_nodes + block_tiles * (2 * keys + scores)) * 2);
    const std::int64_t tiles = s.blocks_at_once * block_tiles;
    s.prepared.queries = carver.take<__nv_bfloat16>(tiles * keys);
    s.prepared.keys = carver.take<__nv_bfloat16>(tiles * keys);
    s.prepared.scores = carver.take<__nv_bfloat16>(tiles * scores);
    s.prepared.decays = carver.take<float>(tiles * shape.key_dim);
    s.nodes = carver.take<__nv_bfloat16>(s.blocks_at_once * block_nodes);
    s.d_nodes = carver.take<__nv_bfloat16>(s.blocks_at_once * block_nodes);
    if (!s.linear) {
        s.entering = carver.take<__nv_bfloat16>(s.blocks_at_once * slots * s.columns * s.state_elements());
        s.runs = carver.take<float>(s.blocks_at_once * s.heads * kDiagonalRuns * shape.key_dim);
        s.sums = carver.take<float>(tiles * kDiagonalSums * shape.key_dim);
    }
    if (s.heads_per_key > 1) {
        s.d_q = carver.take<float>(tiles * keys);
        s.d_k = carver.take<float>(tiles * keys);
    }
    return s;
}

void launch_diagonal_outputs(const Diagonal& plan, const Call& call, const Tree& tree) {
    check_decays(call);
    if (!plan.linear) clear_shares(call);
    each_batch(plan, call, tree.blocks, [&](Diagonal& s) {
        s.states = tree.entered_by(s.batch_block);
        s.d_entering = tree.d_entered_by(s.batch_block);
        launch_prepared(s);
        if (s.linear) return launch_diagonal_entering_gradients(s);
        if (tree.first_block + tree.blocks > 1) {
            launch_state_tiles(s.states, call.shape.key_dim * call.shape.value_dim, s.entering,
                               s.batch_blocks * s.slots * s.columns, s.tiles, s.key_dim, s.value_dim, call.stream);
        }
        launch_diagonal_runs(s);
        launch_diagonal_walks(s);
        launch_diagonal_walks_back(s);
        launch_diagonal_rows(s, DiagonalStep::kOutputs);
        sum_shares(s, true);
        launch_diagonal_crossings(s, false);
    });
}

void launch_diagonal_summaries(const Diagonal& plan, const Call& call, const Tree& tree, std::int64_t blocks,
                               const float* d_summaries) {
    // What the first step prepared is there still, where one batch took all blocks.
    const bool prepared = plan.blocks_at_once >= tree.blocks;
    const std::int64_t floats = summary_floats(call.shape);
    if (plan.linear) clear_shares(call);
    // A linear model's rows are formed here: all of them, those of an open block too.
    each_batch(plan, call, plan.linear ? tree.blocks : blocks, [&](Diagonal& s) {
        s.d_summaries = d_summaries + s.batch_block * floats;
        s.d_blocks = blocks - s.batch_block;
        if (!prepared) launch_prepared(s);
        if (s.linear) {
            s.states = tree.entered_by(s.batch_block);
            launch_diagonal_walks(s);
            launch_diagonal_walks_back(s);
            launch_diagonal_rows(s, DiagonalStep::kLinear);
            sum_shares(s, true);
            return;
        }
        s.slots = 1;
        if (!prepared) launch_diagonal_runs(s);
        launch_state_tiles(s.d_summaries + s.key_dim, floats / s.heads, s.entering, s.batch_blocks * s.columns, s.tiles,
                           s.key_dim, s.value_dim, call.stream);
        launch_diagonal_rows(s, DiagonalStep::kSummaries);
        sum_shares(s, false);
        launch_diagonal_crossings(s, true);
    });
}

}  // namespace fenwick::cuda::backward
