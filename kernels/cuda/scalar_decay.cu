// Cumulative log decays, and the nodes of blocks that enter each block of a shard.
#include <cuda_bf16.h>

#include "core/cuda/check.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::scalar {
namespace {

constexpr float kLogDecayFloor = -1000.0F;  // exp of it is 0; sums of it stay finite (kernels/cpu/chunk.h)
constexpr int kHeadThreads = 256;
constexpr int kRun = static_cast<int>(kBlockTokens) / kHeadThreads;  // tokens that a thread sums
constexpr int kRunStride = kRun + 1;                                 // no bank conflicts

// One CTA: several heads of a block. A thread sums 16 tokens, warps scan their threads' sums, then warps are added in
// order. In double: differences of large sums (many forgetful tokens) must keep the small decays between them.
template <int kDecayHeads>
__global__ void __launch_bounds__(kDecayHeads* kHeadThreads)
    decay_kernel(const float* __restrict__ log_decay, std::int64_t stride, int heads, std::int64_t rows,
                 std::int64_t padded_rows, double* __restrict__ cumulative) {
    constexpr int kDecayThreads = kDecayHeads * kHeadThreads;
    extern __shared__ double sums[];  // [heads][256 runs][17]; first the steps, in fp32
    auto* step = reinterpret_cast<float*>(sums);
    __shared__ double total[kDecayThreads / 32];
    const unsigned head_groups = (static_cast<unsigned>(heads) + kDecayHeads - 1) / kDecayHeads;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x / head_groups) * kBlockTokens;
    const int first_head = static_cast<int>(blockIdx.x % head_groups) * kDecayHeads;
    const int t = static_cast<int>(threadIdx.x);
    const auto left = static_cast<int>(min(rows - first, kBlockTokens));
    {
        const int head = t % kDecayHeads;
        const float* from = log_decay + first * stride + first_head + head;
        float x[kRun];
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            const int row = t / kDecayHeads + i * kHeadThreads;
            x[i] = row < left && first_head + head < heads ? __ldg(from + row * stride) : 0.0F;
        }
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            const int row = t / kDecayHeads + i * kHeadThreads;
            step[(head * kHeadThreads + row / kRun) * kRunStride + row % kRun] = fmaxf(x[i], kLogDecayFloor);
        }
    }
    __syncthreads();
    float mine[kRun];
    double own = 0.0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
        mine[i] = step[t * kRunStride + i];
        own += static_cast<double>(mine[i]);
    }
    double sum = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const double earlier = __shfl_up_sync(0xffffffffU, sum, distance);
        if (t % 32 >= distance) sum += earlier;
    }
    if (t % 32 == 31) total[t / 32] = sum;
    __syncthreads();
    double before = 0.0;
    for (int w = t / kHeadThreads * (kHeadThreads / 32); w < t / 32; ++w) before += total[w];
    const double scanned = __shfl_up_sync(0xffffffffU, sum, 1);
    sum = t % 32 == 0 ? before : before + scanned;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
        sum += static_cast<double>(mine[i]);
        sums[t * kRunStride + i] = sum;
    }
    __syncthreads();
    for (int head = 0; head < kDecayHeads && first_head + head < heads; ++head) {
        double* to = cumulative + (first_head + head) * padded_rows + first;
        for (int row = t; row < kBlockTokens; row += kDecayThreads) {
            to[row] = sums[(head * kHeadThreads + row / kRun) * kRunStride + row % kRun];
        }
    }
}

struct BlockNodesParams {
    Plan plan;
    EnteringList entering;
    const float* summaries;  // [blocks][heads][1 + key_dim * value_dim]
    void* nodes;
    float* carries;
    float* states;
};

constexpr int kNodeThreads = 256;
constexpr int kMostNodes = 48;

// A thread walks the shard's blocks for two neighbouring values of one head's state. Stack and merges are those of
// kernels/cpu/entering_stack.h: nodes from their two children alone.
template <bool kTensor, bool kLogLinear>
__global__ void __launch_bounds__(kNodeThreads) block_nodes_kernel(const __grid_constant__ BlockNodesParams p) {
    const Plan& plan = p.plan;
    const std::int64_t half_columns = plan.value_dim / 2;
    const std::int64_t pairs = plan.key_dim * half_columns;
    const std::int64_t id = static_cast<std::int64_t>(blockIdx.x) * kNodeThreads + threadIdx.x;
    if (id >= plan.heads * pairs) return;
    const std::int64_t head = id / pairs;
    const std::int64_t row = id % pairs / half_columns;
    const std::int64_t column = id % half_columns * 2;
    const std::int64_t one = 1 + plan.key_dim * plan.value_dim;
    const std::int64_t element = 1 + row * plan.value_dim + column;
    const bool leader = id % pairs == 0;

    float2 state[kMostNodes];
    float decay[kMostNodes];
    int bit[kMostNodes];
    int count = 0;
    const auto push = [&](int node_bit, float log_decay, float2 value, std::int64_t slot) {
        bit[count] = node_bit;
        decay[count] = log_decay;
        state[count++] = value;
        if constexpr (!kLogLinear) return;
        const std::int64_t tile = kTensor ? head * plan.tiles + column / kTileColumns : head;
        const std::int64_t node = (slot * plan.node_columns + tile) * plan.node_elements;
        if constexpr (kTensor) {
            const int c = static_cast<int>(column % kTileColumns);
            char* to = reinterpret_cast<char*>(static_cast<__nv_bfloat16*>(p.nodes) + node) +
                       tile_offset(static_cast<int>(row), c / 8) + c % 8 * 2;
            *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(value.x, value.y);
        } else {
            float* to = static_cast<float*>(p.nodes) + node + row * plan.value_dim + column;
            to[0] = value.x;
            to[1] = value.y;
        }
    };
    for (int i = 0; i < p.entering.count; ++i) {
        const float* from = p.entering.summary[i] + head * one;
        push(p.entering.bit[i], from[0], make_float2(from[element], from[element + 1]), i);
    }
    float next_log = 0.0F;
    float2 next_value = make_float2(0.0F, 0.0F);
    const auto load_block = [&](std::int64_t b) {
        if (b + 1 >= plan.blocks) return;
        const float* from = p.summaries + (b * plan.heads + head) * one;
        next_log = from[0];
        next_value = make_float2(from[element], from[element + 1]);
    };
    load_block(0);
    for (std::int64_t b = 0;; ++b) {
        // What enters block b, youngest node first: how far each has decayed when the block starts.
        if (kLogLinear ? leader : true) {
            float log_sum = 0.0F;
            float2 sum = make_float2(0.0F, 0.0F);
            for (int i = count - 1; i >= 0; --i) {
                if constexpr (kLogLinear) {
                    p.carries[(b * plan.heads + head) * kMaxNodes + bit[i]] = log_sum;
                } else {
                    const float keep = expf(log_sum);
                    sum.x = fmaf(keep, state[i].x, sum.x);
                    sum.y = fmaf(keep, state[i].y, sum.y);
                }
                log_sum += decay[i];
            }
            if constexpr (!kLogLinear) {
                float* to = p.states + (b * plan.heads + head) * (one - 1) + element - 1;
                to[0] = sum.x;
                to[1] = sum.y;
            }
        }
        if (b + 1 >= plan.blocks) return;
        float log_decay = next_log;
        float2 value = next_value;
        load_block(b + 1);
        int node_bit = 0;
        for (std::int64_t number = plan.first_block + b; (number & 1) != 0; number >>= 1, ++node_bit) {
            --count;
            const float keep = expf(fmaxf(log_decay, kLogDecayFloor));  // as combine_summaries
            value.x = fmaf(keep, state[count].x, value.x);
            value.y = fmaf(keep, state[count].y, value.y);
            log_decay += decay[count];
        }
        push(node_bit, log_decay, value, p.entering.count + b);
    }
}

constexpr int decay_bytes(int heads) {
    return heads * kHeadThreads * kRunStride * static_cast<int>(sizeof(double));
}

template <int kDecayHeads>
void decay_launch(const Plan& plan, const MixerCall& call) {
    allow_shared(decay_kernel<kDecayHeads>, decay_bytes(kDecayHeads));
    const std::int64_t ctas = plan.blocks * ((plan.heads + kDecayHeads - 1) / kDecayHeads);
    decay_kernel<kDecayHeads>
        <<<static_cast<unsigned>(ctas), kDecayHeads * kHeadThreads, decay_bytes(kDecayHeads), call.stream>>>(
            call.inputs.log_decay, call.inputs.decay_stride, static_cast<int>(plan.heads), plan.rows, plan.padded_rows,
            at<double>(call.workspace, plan.cumulative));
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_decay(const Plan& plan, const MixerCall& call) {
    if (most_shared_bytes() >= decay_bytes(4)) {
        decay_launch<4>(plan, call);
    } else {
        decay_launch<2>(plan, call);
    }
}

void launch_block_nodes(const Plan& plan, const MixerCall& call, const float* block_summaries) {
    if (plan.value_dim % 2 != 0) throw InternalError("scalar mixer on the GPU: value dim must be even");
    BlockNodesParams p{};
    p.plan = plan;
    for (const EnteringNode& node : call.entering) {
        p.entering.summary[p.entering.count] = node.summary;
        p.entering.bit[p.entering.count++] = node.bit;
    }
    if (p.entering.count != plan.entering)
        throw InternalError("scalar mixer on the GPU: entering nodes do not match the first block");
    p.summaries = block_summaries;
    p.nodes = at<void>(call.workspace, plan.block_nodes);
    p.carries = at<float>(call.workspace, plan.carries);
    p.states = at<float>(call.workspace, plan.states);
    const std::int64_t threads = plan.heads * plan.key_dim * plan.value_dim / 2;
    const auto ctas = static_cast<unsigned>((threads + kNodeThreads - 1) / kNodeThreads);
    const auto kernel = plan.tensor
                            ? (plan.log_linear ? block_nodes_kernel<true, true> : block_nodes_kernel<true, false>)
                            : (plan.log_linear ? block_nodes_kernel<false, true> : block_nodes_kernel<false, false>);
    kernel<<<ctas, kNodeThreads, 0, call.stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::scalar
