// The diagonal algebra's entry points (kernels/cuda/mixer_algebras.h): the workspace's layout and the order of the
// launches.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/diagonal_plan.h"
#include "kernels/summary.h"

namespace fenwick::cuda {
namespace {

using diagonal::Work;

struct Carver {
    unsigned char* memory;
    std::size_t used = 0;

    template <class T>
    void take(T*& at, std::int64_t count) {
        if (memory != nullptr) at = reinterpret_cast<T*>(memory + used);
        used += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    }
};

bool has_tensor_kernel(const MixerShape& shape, Operand operand) {
    return operand == Operand::kBf16 && (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0;
}

std::string describe(const MixerCall& call) {
    const MixerShape& s = call.shape;
    return fmt::format(
        "diagonal transitions, {} operands, {} heads, {} key heads, d_k {}, d_v {}, {} levels, {} rows from block {}, "
        "strides {} {} {} {}",
        call.operand == Operand::kBf16 ? "bf16" : "fp32", s.heads, s.key_heads, s.key_dim, s.value_dim, s.levels,
        call.inputs.rows, call.first_block, call.inputs.q_stride, call.inputs.k_stride, call.inputs.v_stride,
        call.inputs.decay_stride);
}

bool aligned(const void* data, std::int64_t stride, std::uintptr_t bytes, std::int64_t elements) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0 && stride % elements == 0;
}

void check_call(const MixerCall& call) {
    const MixerShape& s = call.shape;
    const MixerInputs& in = call.inputs;
    constexpr std::int64_t kMostCtas = std::int64_t{1} << 31;  // of a grid
    constexpr std::int64_t kMostBlocks = std::int64_t{1} << (diagonal::kMostGroupBits - diagonal::kGroupNodeBits);
    const std::int64_t chunks = in.rows / kChunkTokens + 2;
    bool good = s.heads > 0 && s.key_heads > 0 && s.heads % s.key_heads == 0 && s.key_dim > 0 && s.key_dim <= 256 &&
                s.value_dim > 0 && s.value_dim <= 256 && s.levels >= 0 && chunks * s.heads * 8 < kMostCtas &&
                call.first_block + chunks / kChunksPerBlock + 1 < kMostBlocks;
    if (has_tensor_kernel(s, call.operand)) {
        good = good && aligned(in.q, in.q_stride, 4, 2) && aligned(in.k, in.k_stride, 4, 2) &&
               aligned(in.v, in.v_stride, 16, 8) && aligned(in.log_decay, in.decay_stride, 8, 2);
    }
    if (good) return;
    throw InternalError("mixer: no GPU kernel takes " + describe(call) +
                        "; expected heads a multiple of key heads, dims of 1 to 256, and rows of bf16 q, k that start "
                        "at multiples of 4 bytes, of decays 8, of v 16; use --device cpu for other shapes");
}

int most_slots(std::int64_t first_block, std::int64_t blocks) {
    int most = 1;
    for (std::int64_t z = first_block; z < first_block + blocks; ++z) {
        most = std::max(most, std::popcount(static_cast<std::uint64_t>(z)));
    }
    return most;
}

// Sizes, and with `memory` the pointers. `outputs`: for diagonal_outputs; else for the summaries.
Work lay_out(const MixerShape& shape, Operand operand, const MixerInputs& inputs, std::int64_t first_block,
             bool outputs, void* memory, std::size_t& bytes) {
    Carver carver{static_cast<unsigned char*>(memory)};
    Work w;
    w.shape = shape;
    w.inputs = inputs;
    w.first_block = first_block;
    w.blocks = (inputs.rows + kBlockTokens - 1) / kBlockTokens;
    w.groups = (inputs.rows + diagonal::kGroupTokens - 1) / diagonal::kGroupTokens;
    w.chunks = w.groups * diagonal::kGroupChunks;
    w.tiles = static_cast<int>((shape.value_dim + 63) / 64);
    w.entering_nodes = std::popcount(static_cast<std::uint64_t>(first_block));
    w.slots = shape.log_linear() ? most_slots(first_block, w.blocks) : 1;
    const bool tensor = has_tensor_kernel(shape, operand);
    const std::int64_t dk = shape.key_dim;
    const std::int64_t columns = shape.heads * w.tiles;
    const std::int64_t chunk_heads = w.chunks * shape.heads;
    const bool levels = tensor && outputs && shape.log_linear();
    if (tensor && outputs) {
        carver.take(w.prepared.queries, chunk_heads * kChunkTokens * dk);
        carver.take(w.prepared.keys, chunk_heads * kChunkTokens * dk);
        carver.take(w.prepared.scores, chunk_heads * kChunkTokens * kChunkTokens);
        carver.take(w.prepared.decays, chunk_heads * dk);
    }
    if (levels || (tensor && !outputs)) {
        const std::int64_t spans = w.blocks * diagonal::kSpansPerBlock;
        carver.take(w.spans.states, spans * columns * dk * 64);
        carver.take(outputs ? w.spans.decays : w.spans.logs, spans * shape.heads * dk);
    }
    if (outputs) {
        w.nodes.first_block = first_block;
        w.nodes.last_block = first_block + w.blocks - 1;
        w.nodes.layer = summary_floats(shape);
        for (int bit = 1; bit < diagonal::kMaxBits && w.nodes.last_block >> bit > 0; ++bit) {
            const std::int64_t formed = matrix::formed_nodes(first_block, w.nodes.last_block, bit);
            carver.take(w.nodes.formed[bit], formed * w.nodes.layer);
        }
        if (levels) {
            // Places of whole spans: a group past the end may have one.
            const std::int64_t groups = w.blocks * diagonal::kGroupsPerBlock;
            carver.take(w.group_nodes.states, groups * columns * dk * 8);
            carver.take(w.group_nodes.decays, groups * shape.heads * dk);
            carver.take(w.block_nodes.states, (w.entering_nodes + w.blocks) * columns * dk * 8);
            carver.take(w.block_nodes.decays, (w.entering_nodes + w.blocks) * shape.heads * dk);
        } else {
            carver.take(w.entering, w.blocks * w.slots * shape.heads * state_floats(shape));
        }
    }
    bytes = carver.used;
    return w;
}

}  // namespace

std::size_t diagonal_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                     std::int64_t first_block) {
    MixerInputs inputs;
    inputs.rows = rows;
    std::size_t summaries = 0;
    std::size_t outputs = 0;
    (void)lay_out(shape, operand, inputs, first_block, true, nullptr, outputs);
    inputs.rows = rows / kBlockTokens * kBlockTokens;
    (void)lay_out(shape, operand, inputs, 0, false, nullptr, summaries);
    return std::max(summaries, outputs);
}

void diagonal_block_summaries(const MixerCall& call, std::int64_t blocks, float* out) {
    if (blocks == 0) return;
    check_call(call);
    std::size_t bytes = 0;
    MixerInputs inputs = call.inputs;
    inputs.rows = blocks * kBlockTokens;
    const Work work = lay_out(call.shape, call.operand, inputs, 0, false, call.workspace, bytes);
    if (!has_tensor_kernel(call.shape, call.operand)) {
        diagonal::launch_plain_summaries(work, call.operand, out, call.stream);
        return;
    }
    diagonal::launch_summaries(work, out, call.stream);
}

void diagonal_prepare_outputs(const MixerCall& call) {
    check_call(call);
    if (!has_tensor_kernel(call.shape, call.operand)) return;
    std::size_t bytes = 0;
    const Work work = lay_out(call.shape, call.operand, call.inputs, call.first_block, true, call.workspace, bytes);
    diagonal::launch_prepare(work, call.stream);
    if (call.shape.log_linear()) diagonal::launch_group_nodes(work, call.stream);
}

void diagonal_outputs(const MixerCall& call, const ShardNodes& nodes, void* out) {
    check_call(call);
    std::size_t bytes = 0;
    Work work = lay_out(call.shape, call.operand, call.inputs, call.first_block, true, call.workspace, bytes);
    const bool tensor = has_tensor_kernel(call.shape, call.operand);
    if (!tensor && work.slots > diagonal::kPlainMostSlots) {
        throw InternalError("mixer: too many states enter a block of " + describe(call));
    }
    matrix::place_nodes(nodes, work.nodes);
    for (const EnteringNode& node : call.entering) work.nodes.entering[node.bit] = node.summary;
    matrix::form_nodes(call.shape, work.nodes, call.stream);
    if (tensor && call.shape.log_linear()) {
        diagonal::launch_block_operands(work, call.stream);
        return diagonal::launch_log_linear(work, out, call.stream);
    }
    if (work.nodes.last_block > 0) diagonal::launch_enter(work, call.stream);
    if (!tensor) return diagonal::launch_plain_outputs(work, call.operand, out, call.stream);
    diagonal::launch_linear(work, out, call.stream);
}

}  // namespace fenwick::cuda
