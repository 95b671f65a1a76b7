// The matrix algebra's entry points: what the kernels share, and the order of their launches.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/backward/batches.h"
#include "kernels/cuda/backward/matrix.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

constexpr std::int64_t kTileElements = kChunkTokens * kChunkTokens;

// The shard's from block `block` on.
matrix::Prepared prepared_from(matrix::Prepared prepared, std::int64_t block, int heads) {
    const std::int64_t tiles = block * kChunksPerBlock * heads;
    prepared.triangle += tiles * kTileElements;
    prepared.rest += tiles * kTileElements;
    prepared.second += tiles * kTileElements;
    prepared.decays += tiles * 2 * kChunkTokens;
    prepared.gates += tiles * 4 * kChunkTokens;
    prepared.bounds += tiles;
    return prepared;
}

}  // namespace

bool has_matrix_kernels(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block) {
    constexpr int kSharedBytes = 227 * 1024;
    return shape.algebra == TransitionAlgebra::kMatrix && operand == Operand::kBf16 &&
           (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0 && shape.levels <= 64 &&
           (first_block + blocks_of(rows)) >> kMatrixMostSlots == 0 && most_shared_bytes() >= kSharedBytes;
}

Matrix make_matrix(const MixerShape& shape, std::int64_t rows, int slots, const matrix::Kept* kept, Carver& carver) {
    Matrix m;
    set_shape(m, shape, rows, slots);
    m.walks = m.linear ? 1 : kChunkBits + slots;
    m.walk_tiles = m.tiles;
    // Log-linear: the step of the summaries has two walks, the second one of d_k columns.
    std::int64_t places = static_cast<std::int64_t>(m.walks) * m.walk_tiles;
    if (!m.linear) places = std::max(places, 2 * std::max<std::int64_t>(m.tiles, m.key_dim / 64));
    const std::int64_t block_chunks = kChunksPerBlock * m.heads;
    const std::int64_t place_elements = 2 * (m.state_elements() + kTileElements);
    set_blocks_at_once(m, block_chunks * places * place_elements * 2);
    const std::int64_t chunks = m.blocks_at_once * block_chunks;
    if (m.linear) {
        m.prepared = kept->prepared;
    } else {
        m.prepared.triangle = carver.take<__nv_bfloat16>(chunks * kTileElements);
        m.prepared.rest = carver.take<__nv_bfloat16>(chunks * kTileElements);
        m.prepared.second = carver.take<__nv_bfloat16>(chunks * kTileElements);
        m.prepared.decays = carver.take<float>(chunks * 2 * kChunkTokens);
        m.prepared.gates = carver.take<float>(chunks * 4 * kChunkTokens);
        m.prepared.bounds = carver.take<float>(chunks);
    }
    m.memory = carver.take<BlockMemory>(m.blocks_at_once * m.heads);
    if (!m.linear) {
        m.removes = carver.take<__nv_bfloat16>(chunks * m.state_elements());
        m.reads = carver.take<__nv_bfloat16>(chunks * m.state_elements());
        m.writes = carver.take<__nv_bfloat16>(chunks * m.tiles * kTileElements);
    }
    m.states = carver.take<__nv_bfloat16>(chunks * places * m.state_elements());
    m.d_states = carver.take<__nv_bfloat16>(chunks * places * m.state_elements());
    m.values = carver.take<__nv_bfloat16>(chunks * places * kTileElements);
    m.d_values = carver.take<__nv_bfloat16>(chunks * places * kTileElements);
    return m;
}

void launch_matrix_outputs(const Matrix& plan, const Call& call, const Tree& tree) {
    each_batch(plan, call, tree.blocks, [&](Matrix& m) {
        m.entering = tree.entered_by(m.batch_block);
        m.d_entering = tree.d_entered_by(m.batch_block);
        if (m.linear) m.prepared = prepared_from(plan.prepared, m.batch_block, m.heads);
        if (!m.linear || !call.after_outputs) launch_matrix_prepare(m);
        launch_matrix_memory(m);
        if (m.linear) return launch_matrix_entering_gradients(m);
        launch_matrix_expand(m);
        launch_matrix_walks(m);
        launch_matrix_rows(m);
    });
}

void launch_matrix_summaries(const Matrix& plan, const Call& call, const Tree& tree, std::int64_t blocks,
                             const float* d_summaries) {
    // A linear model's rows are formed here: all of them, those of an open block too.
    each_batch(plan, call, plan.linear ? tree.blocks : blocks, [&](Matrix& m) {
        m.summaries = true;
        m.d_summaries = d_summaries + m.batch_block * summary_floats(call.shape);
        m.d_blocks = blocks - m.batch_block;
        if (m.linear) {
            m.entering = tree.entered_by(m.batch_block);
            m.prepared = prepared_from(plan.prepared, m.batch_block, m.heads);
            launch_matrix_walks_linear(m);
            return launch_matrix_rows_linear(m);
        }
        m.walks = 2;
        m.walk_tiles = std::max(m.tiles, m.key_dim / 64);
        if (plan.blocks_at_once < tree.blocks) {  // else what the first step prepared is there still
            launch_matrix_prepare(m);
            launch_matrix_memory(m);
            launch_matrix_expand(m);
        }
        launch_matrix_walks(m);
        launch_matrix_rows(m);
    });
}

}  // namespace fenwick::cuda::backward
