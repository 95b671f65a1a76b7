// The scalar algebra's entry points: the plan, then the kernels in order.
#include <string>

#include "core/errors.h"
#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda {
namespace scalar {
namespace {

std::int64_t take(std::int64_t& bytes, std::int64_t size) {
    const std::int64_t at = bytes;
    bytes += (size + 1023) / 1024 * 1024;
    return at;
}

// GPUs with less shared memory (sm_80, sm_86, sm_89) take the plain kernels.
bool has_tensor_kernel(const MixerShape& shape, Operand operand) {
    return operand == Operand::kBf16 && (shape.key_dim == 64 || shape.key_dim == 128) && shape.value_dim % 8 == 0 &&
           most_shared_bytes() >= kTensorSharedBytes;
}

void check_shape(const MixerShape& shape) {
    const bool good = shape.heads > 0 && shape.key_heads > 0 && shape.heads % shape.key_heads == 0 &&
                      shape.key_dim > 0 && shape.key_dim <= 256 && shape.value_dim > 0 && shape.value_dim <= 256 &&
                      shape.levels >= 0;
    if (good) return;
    throw InternalError("scalar mixer on the GPU: no kernel for heads " + std::to_string(shape.heads) + ", key heads " +
                        std::to_string(shape.key_heads) + ", key dim " + std::to_string(shape.key_dim) +
                        ", value dim " + std::to_string(shape.value_dim) + ", levels " + std::to_string(shape.levels) +
                        "; expected heads a multiple of key heads and dims of 1 to 256");
}

// The tensor kernels move 16 bytes at a time.
void check_alignment(const Plan& plan, const MixerInputs& in) {
    if (!plan.tensor) return;
    // A group's 256 rows are addressed with 32 bits.
    constexpr std::int64_t kMostStride = (std::int64_t{1} << 31) / kGroupTokens;
    const auto good = [](const void* p, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride % 8 == 0 && stride < kMostStride;
    };
    if (good(in.q, in.q_stride) && good(in.k, in.k_stride) && good(in.v, in.v_stride) &&
        in.lambda_stride < kMostStride) {
        return;
    }
    throw InternalError(
        "scalar mixer on the GPU: rows must start at multiples of 16 bytes and lie less than 8,388,608 elements apart; "
        "found strides of q, k, v, lambda " +
        std::to_string(in.q_stride) + ", " + std::to_string(in.k_stride) + ", " + std::to_string(in.v_stride) + ", " +
        std::to_string(in.lambda_stride));
}

}  // namespace

Plan make_plan(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block) {
    check_shape(shape);
    Plan p;
    p.tensor = has_tensor_kernel(shape, operand);
    p.log_linear = shape.log_linear();
    p.heads = shape.heads;
    p.heads_per_key = shape.heads / shape.key_heads;
    p.key_dim = shape.key_dim;
    p.value_dim = shape.value_dim;
    p.levels = shape.levels;
    p.rows = rows;
    p.blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    p.groups = (rows + kGroupTokens - 1) / kGroupTokens;
    p.first_block = first_block;
    p.tiles = (shape.value_dim + 63) / 64;
    p.columns = p.heads * p.tiles;
    p.padded_rows = p.blocks * kBlockTokens;
    p.node_columns = p.tensor ? p.columns : p.heads;
    p.node_elements = p.key_dim * (p.tensor ? 64 : p.value_dim);
    for (std::int64_t rest = first_block; rest != 0; rest &= rest - 1) ++p.entering;

    const std::int64_t node_bytes = p.node_columns * p.node_elements * (p.tensor ? 2 : 4);
    if (p.blocks * kChunksPerBlock * p.heads * 8 >= std::int64_t{1} << 31) {  // 8: most thread blocks a chunk and head
        throw InternalError("scalar mixer on the GPU: " + std::to_string(rows) + " rows of " + std::to_string(p.heads) +
                            " heads are more than a launch takes; use smaller passes");
    }
    p.cumulative = take(p.bytes, p.heads * p.padded_rows * 8);
    p.quads = take(p.bytes, p.tensor ? p.blocks * kQuadsPerBlock * p.columns * p.key_dim * 64 * 4 : 0);
    p.group_nodes = take(p.bytes, p.groups * node_bytes);
    p.block_nodes = take(p.bytes, p.log_linear ? (p.entering + p.blocks) * node_bytes : 0);
    p.carries = take(p.bytes, p.log_linear ? p.blocks * p.heads * kMaxNodes * 4 : 0);
    p.states = take(p.bytes, p.log_linear ? 0 : p.blocks * p.heads * p.key_dim * p.value_dim * 4);
    return p;
}

}  // namespace scalar

std::size_t scalar_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                   std::int64_t first_block) {
    return static_cast<std::size_t>(scalar::make_plan(shape, operand, rows, first_block).bytes);
}

void scalar_block_summaries(const MixerCall& call, std::int64_t blocks, float* out) {
    if (blocks == 0) return;
    const scalar::Plan plan = scalar::make_plan(call.shape, call.operand, blocks * kBlockTokens, call.first_block);
    scalar::check_alignment(plan, call.inputs);
    scalar::launch_decay(plan, call);
    (plan.tensor ? scalar::launch_walk : scalar::launch_plain_walk)(plan, call, blocks, out);
}

void scalar_prepare_outputs(const MixerCall& call) {
    const scalar::Plan plan = scalar::make_plan(call.shape, call.operand, call.inputs.rows, call.first_block);
    scalar::check_alignment(plan, call.inputs);
    scalar::launch_decay(plan, call);
    if (plan.log_linear) {  // the one state of a linear read-out starts with what enters
        (plan.tensor ? scalar::launch_walk : scalar::launch_plain_walk)(plan, call, plan.blocks, nullptr);
    }
}

void scalar_outputs(const MixerCall& call, const ShardNodes& nodes, void* out) {
    const scalar::Plan plan = scalar::make_plan(call.shape, call.operand, call.inputs.rows, call.first_block);
    scalar::launch_block_nodes(plan, call, nodes.blocks);  // in bf16: cheaper to form than to read in fp32
    if (!plan.log_linear) {
        (plan.tensor ? scalar::launch_walk : scalar::launch_plain_walk)(plan, call, plan.blocks, nullptr);
    }
    (plan.tensor ? scalar::launch_outputs : scalar::launch_plain_outputs)(plan, call, out);
}

}  // namespace fenwick::cuda
