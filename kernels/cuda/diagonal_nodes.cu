// The tree above the block, fp32: the states that enter each block, and the nodes as operands for the log-linear
// read-out.
#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_step.cuh"
#include "kernels/cuda/matrix_nodes.cuh"

namespace fenwick::cuda::diagonal {
namespace {

using matrix::find_node;
using matrix::top_bit;

constexpr int kThreads = 256;

__device__ __forceinline__ float decay_of(float log_decay) {
    return expf(fmaxf(log_decay, kLogDecayFloor));
}

// Slot `slot` of a block: its node carried through the younger ones. One slot (linear): each younger node's state is
// added on the way, which is the sum of all that enter. A thread has kCount neighbouring columns.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    enter(const Nodes nodes, int slots, bool linear, int heads, int dk, int dv, float* to) {
    const int size = dk * dv;
    const int parts = (size / kCount + kThreads - 1) / kThreads;
    const int i = (static_cast<int>(blockIdx.x % parts) * kThreads + static_cast<int>(threadIdx.x)) * kCount;
    std::int64_t work = blockIdx.x / parts;
    if (i >= size) return;
    const int head = static_cast<int>(work % heads);
    work /= heads;
    const int slot = static_cast<int>(work % slots);
    const std::int64_t place = work / slots;
    std::int64_t left = nodes.first_block + place;  // set bits still to come
    if (__popcll(static_cast<unsigned long long>(left)) <= slot) return;
    const std::int64_t at = static_cast<std::int64_t>(head) * (dk + size);
    const int row = i / dv;
    std::int64_t done = 0;
    float x[kCount] = {};
    for (int n = 0; left != 0; ++n) {
        const int bit = top_bit(left);
        if (n >= slot) {
            const float* node = find_node(nodes, bit, done >> bit) + at;
            float own[kCount] = {};
            if (n == slot || linear) {
#pragma unroll
                for (int c = 0; c < kCount; ++c) own[c] = node[dk + i + c];
            }
            const float decay = n == slot ? 0.0F : decay_of(node[row]);
#pragma unroll
            for (int c = 0; c < kCount; ++c) x[c] = fmaf(decay, x[c], own[c]);
        }
        done += std::int64_t{1} << bit;
        left -= std::int64_t{1} << bit;
    }
    float* out = to + ((place * slots + slot) * heads + head) * static_cast<std::int64_t>(size) + i;
#pragma unroll
    for (int c = 0; c < kCount; ++c) out[c] = x[c];
}

// One CTA: 64 value columns of one head of one node.
template <int kDk>
__global__ void __launch_bounds__(kWalkThreads)
    to_operands(const Nodes nodes, int heads, int dv, int tiles, int entering_nodes, Operands to) {
    const int t = static_cast<int>(threadIdx.x);
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % tiles);
    work /= tiles;
    const int head = static_cast<int>(work % heads);
    const std::int64_t slot = work / heads;
    const float* node = nullptr;
    if (slot < entering_nodes) {
        std::int64_t rest = nodes.first_block;
        for (std::int64_t n = 0; n < slot; ++n) rest -= std::int64_t{1} << top_bit(rest);
        node = nodes.entering[top_bit(rest)];
    } else {
        const std::int64_t end = nodes.first_block + slot - entering_nodes + 1;
        const int bit = __ffsll(static_cast<long long>(end)) - 1;
        node = find_node(nodes, bit, (end >> bit) - 1);
    }
    node += static_cast<std::int64_t>(head) * kDk * (1 + dv);
    Columns<kDk> x;
    matrix::load_columns<kDk>(x, node + kDk, dv, 64 * tile + 16 * (t / 32), dv);
    const std::int64_t columns = static_cast<std::int64_t>(heads) * tiles;
    store_operand<kDk>(x, to.states + (slot * columns + head * tiles + tile) * (kDk / 16 * kWalkThreads));
    if (tile == 0 && t < kDk) to.decays[(slot * heads + head) * kDk + t] = decay_of(node[t]);
}

}  // namespace

void launch_enter(const Work& work, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const int count = shape.value_dim % 4 == 0 ? 4 : 1;
    const std::int64_t parts = (shape.key_dim * shape.value_dim / count + kThreads - 1) / kThreads;
    const auto kernel = count == 4 ? enter<4> : enter<1>;
    kernel<<<static_cast<unsigned>(work.blocks * work.slots * shape.heads * parts), kThreads, 0, stream>>>(
        work.nodes, work.slots, !shape.log_linear(), static_cast<int>(shape.heads), static_cast<int>(shape.key_dim),
        static_cast<int>(shape.value_dim), work.entering);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_block_operands(const Work& work, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const std::int64_t slots = work.entering_nodes + work.blocks - 1;  // nothing follows the last block
    if (slots == 0) return;
    const auto ctas = static_cast<unsigned>(slots * shape.heads * work.tiles);
    const auto kernel = shape.key_dim == 128 ? to_operands<128> : to_operands<64>;
    kernel<<<ctas, kWalkThreads, 0, stream>>>(work.nodes, static_cast<int>(shape.heads),
                                              static_cast<int>(shape.value_dim), work.tiles, work.entering_nodes,
                                              work.block_nodes);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::diagonal
