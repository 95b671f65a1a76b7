// The matrix algebra's entry points (kernels/cuda/mixer_algebras.h): the workspace's layout and the order of the
// launches.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda {
namespace {

using namespace matrix;  // NOLINT(google-build-using-namespace): these files are one unit

constexpr std::int64_t kTile = kChunkTokens * kChunkTokens;

// Everything else takes the plain kernels; so does the log-linear read-out where thread blocks have too little shared
// memory (sm_86, sm_89).
bool has_tensor_kernel(const MixerShape& shape, Operand operand) {
    return operand == Operand::kBf16 && (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0 &&
           shape.levels <= 32 && (!shape.log_linear() || most_shared_bytes() >= log_linear_shared_bytes(shape.key_dim));
}

struct Carver {
    unsigned char* memory;
    std::size_t used = 0;

    template <class T>
    T* take(std::int64_t count) {
        T* at = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + used);
        used += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
        return at;
    }
};

struct Layout {
    Prepared prepared;
    Nodes nodes;
    float* entering = nullptr;
    float* partial = nullptr;
    float* states = nullptr;  // the plain path's
    int slots = 1;
    std::size_t bytes = 0;
};

std::int64_t blocks_of(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens;
}

int most_slots(const MixerShape& shape, std::int64_t first_block, std::int64_t blocks) {
    int most = 1;
    if (!shape.log_linear()) return most;
    for (std::int64_t z = first_block; z < first_block + blocks; ++z) {
        most = std::max(most, std::popcount(static_cast<std::uint64_t>(z)));
    }
    return most;
}

Layout lay_out(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block, void* memory) {
    Carver carver{static_cast<unsigned char*>(memory)};
    Layout layout;
    const std::int64_t blocks = blocks_of(rows);
    const std::int64_t last = first_block + blocks - 1;
    layout.slots = most_slots(shape, first_block, blocks);
    if (has_tensor_kernel(shape, operand)) {
        const std::int64_t tiles = (rows + kChunkTokens - 1) / kChunkTokens * shape.heads;
        layout.prepared.triangle = carver.take<__nv_bfloat16>(tiles * kTile);
        layout.prepared.rest = carver.take<__nv_bfloat16>(tiles * kTile);
        layout.prepared.second = carver.take<__nv_bfloat16>(tiles * kTile);
        layout.prepared.decays = carver.take<float>(tiles * 2 * kChunkTokens);
        if (!shape.log_linear()) layout.prepared.gates = carver.take<float>(tiles * 4 * kChunkTokens);
        layout.prepared.bounds = carver.take<float>(tiles);
        if (shape.log_linear()) {
            layout.prepared.scores = carver.take<__nv_bfloat16>(tiles * kTile);
            layout.prepared.removes = carver.take<__nv_bfloat16>(tiles * kChunkTokens * shape.key_dim);
            layout.prepared.reads = carver.take<__nv_bfloat16>(tiles * kChunkTokens * shape.key_dim);
            layout.prepared.writes = carver.take<__nv_bfloat16>(tiles * kChunkTokens * shape.value_dim);
        }
        if (needs_partial_sums(layout.slots)) {
            layout.partial = carver.take<float>(rows * shape.heads * shape.value_dim);
        }
    } else {
        layout.states = carver.take<float>(static_cast<std::int64_t>(plain_state_floats(shape, blocks, layout.slots)));
    }
    layout.nodes.first_block = first_block;
    layout.nodes.last_block = last;
    layout.nodes.layer = summary_floats(shape);
    for (int bit = 1; bit < kMaxBits && last >> bit > 0; ++bit) {
        layout.nodes.formed[bit] = carver.take<float>(formed_nodes(first_block, last, bit) * layout.nodes.layer);
    }
    layout.entering = carver.take<float>(blocks * layout.slots * shape.heads * state_floats(shape));
    layout.bytes = carver.used;
    return layout;
}

std::string describe(const MixerCall& call) {
    const MixerShape& s = call.shape;
    return fmt::format(
        "matrix transitions, {} operands, {} heads, {} key heads, d_k {}, d_v {}, {} levels, {} rows from block {}, "
        "strides {} {} {}",
        call.operand == Operand::kBf16 ? "bf16" : "fp32", s.heads, s.key_heads, s.key_dim, s.value_dim, s.levels,
        call.inputs.rows, call.first_block, call.inputs.q_stride, call.inputs.k_stride, call.inputs.v_stride);
}

bool aligned(const void* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

void check_shape(const MixerCall& call) {
    const MixerShape& s = call.shape;
    constexpr std::int64_t kMostBlocks = std::int64_t{1} << 31;  // of a grid
    const std::int64_t blocks = blocks_of(call.inputs.rows);
    const bool good = s.heads > 0 && s.key_heads > 0 && s.heads % s.key_heads == 0 && s.key_dim > 0 &&
                      s.key_dim <= 256 && s.value_dim > 0 && s.value_dim <= 256 && s.levels >= 0 &&
                      blocks * s.heads * kChunksPerBlock < kMostBlocks;
    const bool placed = !has_tensor_kernel(s, call.operand) ||
                        (aligned(call.inputs.q, call.inputs.q_stride) && aligned(call.inputs.k, call.inputs.k_stride) &&
                         aligned(call.inputs.v, call.inputs.v_stride));
    if (good && placed) return;
    throw InternalError("mixer: no GPU kernel takes " + describe(call) +
                        "; expected heads a multiple of key heads, dims of 1 to 256, and rows of bf16 that start at "
                        "multiples of 16 bytes; use --device cpu for other shapes");
}

}  // namespace

matrix::Kept matrix::kept_in(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block,
                             void* workspace) {
    const Layout layout = lay_out(shape, operand, rows, first_block, workspace);
    return {layout.prepared, layout.nodes, layout.entering};
}

std::size_t matrix_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                   std::int64_t first_block) {
    return lay_out(shape, operand, rows, first_block, nullptr).bytes;
}

void matrix_block_summaries(const MixerCall& call, std::int64_t blocks, float* out) {
    check_shape(call);
    if (blocks == 0) return;
    const MixerShape& shape = call.shape;
    const Layout layout = lay_out(shape, call.operand, call.inputs.rows, call.first_block, call.workspace);
    const Walk walk{shape, call.inputs, layout.prepared, nullptr, call.first_block};
    if (!has_tensor_kernel(shape, call.operand)) {
        return launch_plain_summaries(walk, call.operand, blocks, out, layout.states, call.stream);
    }
    launch_prepare(shape, call.inputs, layout.prepared, call.stream);
    launch_summaries(walk, blocks, out, call.stream);
}

void matrix_prepare_outputs(const MixerCall& call) {
    check_shape(call);
    const MixerShape& shape = call.shape;
    if (!has_tensor_kernel(shape, call.operand)) return;
    const Layout layout = lay_out(shape, call.operand, call.inputs.rows, call.first_block, call.workspace);
    if (!call.after_summaries) launch_prepare(shape, call.inputs, layout.prepared, call.stream);
    if (shape.log_linear()) {
        launch_expand({shape, call.inputs, layout.prepared, nullptr, call.first_block}, call.stream);
    }
}

void matrix_outputs(const MixerCall& call, const ShardNodes& nodes, void* out) {
    check_shape(call);
    const MixerShape& shape = call.shape;
    const bool plain = !has_tensor_kernel(shape, call.operand);
    const std::int64_t blocks = blocks_of(call.inputs.rows);
    Layout layout = lay_out(shape, call.operand, call.inputs.rows, call.first_block, call.workspace);
    place_nodes(nodes, layout.nodes);
    for (const EnteringNode& node : call.entering) {
        if (node.bit >= kMaxBits) throw InternalError("mixer: a document of too many blocks: " + describe(call));
        layout.nodes.entering[node.bit] = node.summary;
    }
    form_nodes(shape, layout.nodes, call.stream);
    if (layout.nodes.last_block > 0) {
        (plain ? launch_plain_enter : launch_enter)(shape, layout.nodes, blocks, layout.slots, layout.entering,
                                                    call.stream);
    }
    const Walk walk{shape,        call.inputs,   layout.prepared, layout.entering, call.first_block,
                    layout.slots, layout.partial};
    if (plain) return launch_plain_outputs(walk, call.operand, out, layout.states, call.stream);
    (shape.log_linear() ? launch_log_linear : launch_linear)(walk, out, call.stream);
}

}  // namespace fenwick::cuda
