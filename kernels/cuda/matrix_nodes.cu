// The states that enter each block (DESIGN section 3, "Entering states"): chains of products A X (+ S) that each column
// of X takes alone, so a thread block has 64 columns. Products run on the matrix units with A and X split into two bf16
// numbers each (three of the four partial products; the fourth is below 2^-16 of the result), accumulated in fp32.
#include "core/cuda/check.h"
#include "kernels/cuda/matrix_nodes.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_step.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vanished.cuh"

namespace fenwick::cuda::matrix {
namespace {

template <int kDk>
struct Shared {
    alignas(1024) unsigned char high[kDk * kDk * 2];  // panels of 64 columns, d_k rows each
    alignas(1024) unsigned char rest[kDk * kDk * 2];
};

/// A into the tiles. Whether A x is anything but zeros.
template <int kDk, int kThreads>
__device__ __forceinline__ bool load_transition(Shared<kDk>& s, const float* from, const Columns<kDk>& x) {
    ProductsSeen seen;
#pragma unroll
    for (const float value : x) seen.see_x(value);
    __syncthreads();  // the last product is done with the tiles
    for (int i = static_cast<int>(threadIdx.x); i < kDk * kDk / 4; i += kThreads) {
        const int row = i / (kDk / 4);
        const int column = i % (kDk / 4) * 4;
        const float4 f = *reinterpret_cast<const float4*>(from + row * kDk + column);
        for (const float a : {f.x, f.y, f.z, f.w}) seen.see_a(a);
        const std::uint32_t high[2] = {pack(f.x, f.y), pack(f.z, f.w)};
        const int at = (column / 64) * kDk * 128 + ((row * 128 + (column % 64) * 2) ^ ((row % 8) * 16));
        *reinterpret_cast<uint2*>(s.high + at) = make_uint2(high[0], high[1]);
        *reinterpret_cast<uint2*>(s.rest + at) = make_uint2(pack(f.x - low_of(high[0]), f.y - high_of(high[0])),
                                                            pack(f.z - low_of(high[1]), f.w - high_of(high[1])));
    }
    publish_shared();
    return __syncthreads_or(seen.count() ? 1 : 0) != 0;
}

/// x = A x (+ what `x` is to start from: `start`).
template <int kDk>
__device__ __forceinline__ void apply_transition(Columns<kDk>& x, Columns<kDk>& start, const Shared<kDk>& s) {
    std::uint32_t a[kDk / 16][4];
    std::uint32_t rest[kDk / 16][4];
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        pack_step(x, step, a[step]);
        pack_rest(x, step, a[step], rest[step]);
    }
    const std::uint32_t high_tile = shared_address(s.high);
    const std::uint32_t rest_tile = shared_address(s.rest);
    products_begin(start);
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        const int at = (step / 4) * kDk * 128 + (step % 4) * 32;
        product_nt<kDk>(start, rest[step], high_tile, at);
        product_nt<kDk>(start, a[step], rest_tile, at);
        product_nt<kDk>(start, a[step], high_tile, at);
    }
    products_end(start);
#pragma unroll
    for (int i = 0; i < kDk / 2; ++i) x[i] = start[i];
}

// Slot `slot` of a block: its node carried through the younger ones. One slot (linear): each younger node's state is
// added on the way, which is the sum of all that enter. kGroups warpgroups share the transitions, 64 columns each.
template <int kDk, int kGroups>
__global__ void __launch_bounds__(128 * kGroups)
    enter(const Nodes nodes, int slots, bool linear, int heads, int dv, int tiles, float* to) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % tiles);
    work /= tiles;
    const int head = static_cast<int>(work % heads);
    work /= heads;
    const int slot = static_cast<int>(work % slots);
    const std::int64_t place = work / slots;
    std::int64_t left = nodes.first_block + place;  // set bits still to come
    if (__popcll(static_cast<unsigned long long>(left)) <= slot) return;
    std::int64_t done = 0;
    for (int i = 0; i < slot; ++i) {
        const std::int64_t top = std::int64_t{1} << top_bit(left);
        done += top;
        left -= top;
    }
    const std::int64_t one = static_cast<std::int64_t>(kDk) * (kDk + dv);
    const int first = 64 * kGroups * tile + 16 * (static_cast<int>(threadIdx.x) / 32);
    Columns<kDk> x;
    int bit = top_bit(left);
    load_columns<kDk>(x, find_node(nodes, bit, done >> bit) + head * one + kDk * kDk, dv, first, dv);
    done += std::int64_t{1} << bit;
    left -= std::int64_t{1} << bit;
    while (left != 0) {
        bit = top_bit(left);
        const float* node = find_node(nodes, bit, done >> bit) + head * one;
        const bool count = load_transition<kDk, 128 * kGroups>(s, node, x);
        Columns<kDk> start;
        if (linear) {
            load_columns<kDk>(start, node + kDk * kDk, dv, first, dv);
        } else {
            clear(start);
        }
        if (count) {
            apply_transition<kDk>(x, start, s);
        } else {
#pragma unroll
            for (int i = 0; i < kDk / 2; ++i) x[i] = start[i];
        }
        done += std::int64_t{1} << bit;
        left -= std::int64_t{1} << bit;
    }
    store_columns<kDk>(x, to + ((place * slots + slot) * heads + head) * kDk * dv, dv, first, dv);
}

template <int kDk, int kGroups>
void enter_launch(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                  cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    constexpr int kColumns = 64 * kGroups;
    const int tiles = static_cast<int>((shape.value_dim + kColumns - 1) / kColumns);
    allow_shared(enter<kDk, kGroups>, kBytes);
    enter<kDk, kGroups><<<static_cast<unsigned>(blocks * slots * shape.heads * tiles), 128 * kGroups, kBytes, stream>>>(
        nodes, slots, !shape.log_linear(), static_cast<int>(shape.heads), static_cast<int>(shape.value_dim), tiles, to);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kDk>
void pick(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to, cudaStream_t stream) {
    shape.value_dim > 64 ? enter_launch<kDk, 2>(shape, nodes, blocks, slots, to, stream)
                         : enter_launch<kDk, 1>(shape, nodes, blocks, slots, to, stream);
}

}  // namespace

void launch_enter(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                  cudaStream_t stream) {
    if (blocks == 0 || slots == 0) return;
    shape.key_dim == 128 ? pick<128>(shape, nodes, blocks, slots, to, stream)
                         : pick<64>(shape, nodes, blocks, slots, to, stream);
}

}  // namespace fenwick::cuda::matrix
