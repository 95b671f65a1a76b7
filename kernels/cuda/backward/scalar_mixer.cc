// The scalar algebra's entry points: what the kernels share, and the order of their launches.
#include <algorithm>

#include "kernels/cuda/backward/batches.h"
#include "kernels/cuda/backward/scalar.h"
#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

// Heads of a part: as many as share their keys; fewer where there are few chunks, to fill the chip.
int heads_of_part(const MixerShape& shape, std::int64_t chunks) {
    constexpr std::int64_t kEnough = 264;  // two thread blocks for each multiprocessor of an H200
    const std::int64_t sharing = shape.heads / shape.key_heads;
    std::int64_t best = 1;
    for (std::int64_t n = 1; n <= sharing; ++n) {
        if (sharing % n == 0 && chunks * (shape.heads / n) >= kEnough) best = n;
    }
    return static_cast<int>(best);
}

// each_batch after the cumulative log decays of the whole shard.
template <class Body>
void in_batches(const Scalar& plan, const Call& call, std::int64_t blocks, const Body& body) {
    check_alignment(call);
    launch_cumulative(call, plan.padded_rows, plan.cumulative);
    each_batch(plan, call, blocks, body);
}

}  // namespace

bool has_scalar_kernels(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block) {
    return shape.algebra == TransitionAlgebra::kScalar && operand == Operand::kBf16 &&
           (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0 && shape.levels <= kMostLevels &&
           (first_block + blocks_of(rows)) >> kMostSlots == 0 && most_shared_bytes() >= scalar::kTensorSharedBytes;
}

Scalar make_scalar(const MixerShape& shape, std::int64_t rows, int slots, Carver& carver) {
    Scalar s;
    set_shape(s, shape, rows, slots);
    s.columns = s.heads * s.tiles;
    const std::int64_t block_nodes = kChunksPerBlock * s.columns * s.state_elements();
    set_blocks_at_once(s, 2 * block_nodes * 2);
    const std::int64_t chunks = std::min((rows + kChunk - 1) / kChunk, s.blocks_at_once * kChunksPerBlock);
    s.parts = s.heads / heads_of_part(shape, chunks);
    s.cumulative = carver.take<double>(s.heads * s.padded_rows);
    s.nodes = carver.take<__nv_bfloat16>(s.blocks_at_once * block_nodes);
    s.d_nodes = carver.take<__nv_bfloat16>(s.blocks_at_once * block_nodes);
    s.entering = carver.take<__nv_bfloat16>(s.blocks_at_once * slots * s.columns * s.state_elements());
    s.sums = carver.take<float>(s.blocks_at_once * s.heads * kChunks * kChunkSums);
    if (s.parts != shape.key_heads) {
        s.d_q = carver.take<float>(s.parts * chunks * kChunk * shape.key_dim);
        s.d_k = carver.take<float>(s.parts * chunks * kChunk * shape.key_dim);
    }
    return s;
}

void launch_scalar_outputs(const Scalar& plan, const Call& call, const Tree& tree) {
    const MixerGradients& g = call.gradients;
    if (plan.parts != call.shape.key_heads) {
        const std::int64_t columns = call.shape.key_heads * call.shape.key_dim;
        launch_clear(g.q, g.q_stride, call.inputs.rows, columns, call.stream);
        launch_clear(g.k, g.k_stride, call.inputs.rows, columns, call.stream);
    }
    in_batches(plan, call, tree.blocks, [&](Scalar& s) {
        s.d_entering = tree.d_entered_by(s.batch_block);
        if (tree.first_block + tree.blocks > 1) {
            launch_state_tiles(s, tree.entered_by(s.batch_block), call.shape.key_dim * call.shape.value_dim,
                               s.batch_blocks * s.slots);
        }
        launch_nodes(s);
        launch_node_gradients(s);
        launch_rows(s);
        launch_state_gradients(s, false);
        launch_crossings(s, nullptr);
    });
}

void launch_scalar_summaries(const Scalar& plan, const Call& call, std::int64_t blocks, const float* d_summaries) {
    const std::int64_t floats = summary_floats(call.shape);
    in_batches(plan, call, blocks, [&](Scalar& s) {
        s.slots = 1;
        launch_state_tiles(s, d_summaries + s.batch_block * floats + 1, floats / call.shape.heads, s.batch_blocks);
        launch_state_gradients(s, true);
        launch_crossings(s, d_summaries);
    });
}

}  // namespace fenwick::cuda::backward
