// States of the scalar algebra on the matrix units: S = sum_j exp(G_end - G_j) k_j v_j^T, 64 tokens a step, walked
// group by group with the sum in registers.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/store_tile.cuh"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::scalar {
namespace {

constexpr int kChunk = static_cast<int>(kChunkTokens);
constexpr int kHalfTile = kChunk * kTileRowBytes;  // 64 rows of 64 columns
constexpr int kStages = 4;                         // of keys and raw values, three in flight
constexpr int kScaledStages = 2;

struct WalkParams {
    Plan plan;
    const __nv_bfloat16* k;
    const __nv_bfloat16* v;
    std::int64_t k_stride, v_stride;
    const double* cumulative;
    float* quads;
    __nv_bfloat16* group_nodes;
    const float* states;
    float* summaries;
};

__device__ __forceinline__ float decay_between(double later, double earlier) {
    return __expf(static_cast<float>(later - earlier));
}

// kColumns: columns of work of a CTA, which share the keys; each has kKeyDim / 64 warpgroups.
template <int kKeyDim, bool kRunning, int kColumns>
struct Walk {
    static constexpr int kColumnThreads = 2 * kKeyDim;
    static constexpr int kThreads = kColumnThreads * kColumns;
    static constexpr int kGroups = kRunning ? kGroupsPerBlock : kGroupsPerBlock / kQuadsPerBlock;
    static constexpr int kTokens = kGroups * kGroupTokens;
    static constexpr int kKeyBytes = kKeyDim / 64 * kHalfTile;
    static constexpr int kValueBytes = kColumns * kHalfTile;
    static constexpr int kBytes =
        1024 + kStages * (kKeyBytes + kValueBytes) + kScaledStages * kValueBytes + kColumns * kTokens * 4;
};

// One CTA: one or two columns of work, over four groups from a zero state (a tree of nodes) or over a block from what
// enters it (kRunning: the linear read-out's one state).
template <int kKeyDim, bool kRunning, int kColumns>
__global__ void __launch_bounds__(Walk<kKeyDim, kRunning, kColumns>::kThreads)
    walk_kernel(const __grid_constant__ WalkParams p) {
    using W = Walk<kKeyDim, kRunning, kColumns>;
    const Plan& plan = p.plan;
    extern __shared__ char memory[];
    const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
    const std::uint32_t keys = base;
    const std::uint32_t raw_all = keys + kStages * W::kKeyBytes;
    const std::uint32_t scaled_all = raw_all + kStages * W::kValueBytes;

    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int own = t / W::kColumnThreads;  // column of the CTA
    const int u = t % W::kColumnThreads;
    const int warpgroup = u / 128;
    const int row = 64 * warpgroup + 16 * warp + lane / 4;  // of the state; and row + 8
    const unsigned splits = static_cast<unsigned>(plan.columns) / kColumns;
    const int column = static_cast<int>(blockIdx.x % splits) * kColumns + own;
    const std::int64_t unit = blockIdx.x / splits;
    const int head = column / static_cast<int>(plan.tiles);
    const int tile = column % static_cast<int>(plan.tiles);
    const std::uint32_t raw_values = raw_all + own * kHalfTile;
    const std::uint32_t values = scaled_all + own * kHalfTile;
    auto* weights =
        reinterpret_cast<float*>(memory + (scaled_all + kScaledStages * W::kValueBytes - shared_address(memory))) +
        own * W::kTokens;
    const std::int64_t first = unit * W::kTokens;
    if (first >= plan.rows) return;
    const int groups = static_cast<int>(
        min(static_cast<std::int64_t>(W::kGroups), (plan.rows - first + kGroupTokens - 1) / kGroupTokens));
    const int steps = groups * kGroupChunks;
    // G at the end of the unit's group g - 1; indices from the unit's start, which may lie inside a block.
    const double* cumulative = p.cumulative + head * plan.padded_rows + first;
    const bool block_start = first % kBlockTokens == 0;
    const auto log_at = [&](int group) {
        return group == 0 && block_start ? 0.0 : cumulative[group * kGroupTokens - 1];
    };

    const __nv_bfloat16* key_from = p.k + head / static_cast<int>(plan.heads_per_key) * kKeyDim;
    const __nv_bfloat16* value_from = p.v + head * plan.value_dim + tile * 64;
    // A thread's pieces lie a multiple of eight rows apart, so their places in a tile differ by whole rows.
    constexpr int kPieces = kKeyDim / 8;
    constexpr int kKeyRows = W::kThreads / kPieces;
    constexpr int kValueRows = W::kColumnThreads / 8;
    const int key_row = t / kPieces;
    const int value_row = u / 8;
    const std::uint32_t key_place = t % kPieces / 8 * kHalfTile + tile_offset(key_row, t % 8);
    const std::uint32_t value_place = tile_offset(value_row, t % 8);
    const bool value_column = tile * 64 + t % 8 * 8 < plan.value_dim;
    const __nv_bfloat16* key_next = key_from + (first + key_row) * p.k_stride + t % kPieces * 8;
    const __nv_bfloat16* value_next = value_from + (first + value_row) * p.v_stride + t % 8 * 8;
    int rows_left = static_cast<int>(min(static_cast<std::int64_t>(W::kTokens), plan.rows - first));
    int load_stage = 0;
    const auto load = [&] {
        if (rows_left > 0) {
            const std::uint32_t key_to = keys + load_stage * W::kKeyBytes + key_place;
            const std::uint32_t value_to = raw_values + load_stage * W::kValueBytes + value_place;
#pragma unroll
            for (int i = 0; i < kChunk / kKeyRows; ++i) {
                const bool live = key_row + i * kKeyRows < rows_left;
                copy_async_16(key_to + i * kKeyRows * kTileRowBytes, live ? key_next + i * kKeyRows * p.k_stride : p.k,
                              live);
            }
#pragma unroll
            for (int i = 0; i < kChunk / kValueRows; ++i) {
                const bool live = value_row + i * kValueRows < rows_left && value_column;
                copy_async_16(value_to + i * kValueRows * kTileRowBytes,
                              live ? value_next + i * kValueRows * p.v_stride : p.v, live);
            }
            key_next += kChunk * p.k_stride;
            value_next += kChunk * p.v_stride;
            rows_left -= kChunk;
        }
        if (++load_stage == kStages) load_stage = 0;
        copy_async_commit();
    };
    for (int step = 0; step < kStages - 1; ++step) load();
    for (int j = u; j < groups * kGroupTokens; j += W::kColumnThreads) {
        weights[j] = decay_between(cumulative[(j / kGroupTokens + 1) * kGroupTokens - 1], cumulative[j]);
    }
    // Decay over each group, and over the last two.
    __shared__ float keeps[kColumns][kGroupsPerBlock + 1];
    if (u < groups) keeps[own][u] = decay_between(log_at(u + 1), log_at(u));
    if (!kRunning && u == 0 && groups == W::kGroups) keeps[own][kGroupsPerBlock] = decay_between(log_at(4), log_at(2));
    __syncthreads();

    float state[32] = {};
    float pending[32] = {};
    __nv_bfloat16* node = p.group_nodes == nullptr
                              ? nullptr
                              : p.group_nodes + (first / kGroupTokens * plan.columns + column) * plan.node_elements;
    const std::int64_t node_step = plan.columns * plan.node_elements;
    if constexpr (kRunning) {
        const float* from = p.states + (unit * plan.heads + head) * kKeyDim * plan.value_dim + tile * 64;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int r = row + (i & 2) * 4;
            const int c = i / 4 * 8 + lane % 4 * 2 + (i & 1);
            state[i] = tile * 64 + c < plan.value_dim ? from[r * plan.value_dim + c] : 0.0F;
        }
    }
    // The product of a step runs while the next step's values are scaled.
    for (int step = 0;; ++step) {
        const int stage = step % kStages;
        const int group = step / kGroupChunks;
        const std::uint32_t value_tile = values + step % kScaledStages * W::kValueBytes;
        if (step < steps) {
            copy_async_wait<kStages - 2>();
#pragma unroll
            for (int i = 0; i < kChunk / kValueRows; ++i) {  // each thread scales the pieces that it copied
                const std::uint32_t place = value_place + i * kValueRows * kTileRowBytes;
                const float weight = weights[step * kChunk + value_row + i * kValueRows];
                uint4 x;
                asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                             : "r"(raw_values + stage * W::kValueBytes + place)
                             : "memory");
                const auto scaled = [&](std::uint32_t both) {
                    return pack_bf16(low_bf16(both) * weight, high_bf16(both) * weight);
                };
                asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(value_tile + place), "r"(scaled(x.x)),
                             "r"(scaled(x.y)), "r"(scaled(x.z)), "r"(scaled(x.w))
                             : "memory");
            }
            fence_for_wgmma();
        }
        product_wait<0>();
        product_done(state);
        if (!kRunning && step > 0 && step % kGroupChunks == 0) {
            const int ended = group - 1;
            if (ended == 3) {
                const float older = keeps[own][kGroupsPerBlock];
#pragma unroll
                for (int i = 0; i < 32; ++i) state[i] = fmaf(older, pending[i], state[i]);
            }
            if (ended == 1) {
#pragma unroll
                for (int i = 0; i < 32; ++i) pending[i] = state[i];
            }
            // The second and fourth quads' own states are no nodes: eight groups and the block take their places.
            if (node != nullptr && (ended != 3 || unit % 2 == 0))
                store_tile(state, node + ended * node_step, row, lane);
        }
        if (step == steps) break;
        __syncthreads();
        if (step % kGroupChunks == 0) {
            if constexpr (kRunning) store_tile(state, node + group * node_step, row, lane);
            const float keep = kRunning || group % 2 != 0 ? keeps[own][group] : 0.0F;
#pragma unroll
            for (float& x : state) x *= keep;
        }
        issue_transposed_product(state, keys + stage * W::kKeyBytes + warpgroup * kHalfTile, value_tile, warp, lane);
        product_commit();
        load();
    }
    if (kRunning || groups < W::kGroups) return;
    auto* to = reinterpret_cast<float4*>(p.quads) + (unit * plan.columns + column) * 8 * W::kColumnThreads + u;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        to[i * W::kColumnThreads] = make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
    }
}

// One CTA: one column of work of one block. Four quads to the block's summary, or two to the node of eight groups.
template <int kKeyDim>
__global__ void __launch_bounds__(2 * kKeyDim) quads_kernel(const __grid_constant__ WalkParams p) {
    constexpr int kThreads = 2 * kKeyDim;
    const Plan& plan = p.plan;
    const std::int64_t column = blockIdx.x % plan.columns;
    const std::int64_t block = blockIdx.x / plan.columns;
    const std::int64_t head = column / plan.tiles;
    const int tile = static_cast<int>(column % plan.tiles);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int row = t / 128 * 64 + t / 32 % 4 * 16 + lane / 4;
    const double* cumulative = p.cumulative + head * plan.padded_rows + block * kBlockTokens;
    const auto log_at = [&](int quad) { return cumulative[quad * (kBlockTokens / kQuadsPerBlock) - 1]; };
    const auto* from =
        reinterpret_cast<const float4*>(p.quads) + (block * kQuadsPerBlock * plan.columns + column) * 8 * kThreads + t;
    const std::int64_t quad_step = plan.columns * 8 * kThreads;
    const auto merge = [](float4 state, float4 older, float keep) {
        return make_float4(fmaf(keep, older.x, state.x), fmaf(keep, older.y, state.y), fmaf(keep, older.z, state.z),
                           fmaf(keep, older.w, state.w));
    };
    const bool summary = p.summaries != nullptr;
    const float keep1 = decay_between(log_at(2), log_at(1));
    const float keep3 = summary ? decay_between(log_at(4), log_at(3)) : 0.0F;
    const float keep23 = summary ? decay_between(log_at(4), log_at(2)) : 0.0F;
    float merged[32];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float4 x = merge(from[quad_step + i * kThreads], from[i * kThreads], keep1);
        if (summary) {
            const float4 right = merge(from[3 * quad_step + i * kThreads], from[2 * quad_step + i * kThreads], keep3);
            x = merge(right, x, keep23);
        }
        merged[4 * i] = x.x;
        merged[4 * i + 1] = x.y;
        merged[4 * i + 2] = x.z;
        merged[4 * i + 3] = x.w;
    }
    if (!summary) {
        const std::int64_t group = block * kGroupsPerBlock + kGroupsPerBlock / 2 - 1;
        store_tile(merged, p.group_nodes + (group * plan.columns + column) * plan.node_elements, row, lane);
        return;
    }
    float* to = p.summaries + (block * plan.heads + head) * (1 + kKeyDim * plan.value_dim);
    if (tile == 0 && t == 0) to[0] = static_cast<float>(log_at(4));
    to += 1 + tile * 64;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int r = row + (i & 2) * 4;
        const int c = i / 4 * 8 + lane % 4 * 2 + (i & 1);
        if (tile * 64 + c < plan.value_dim) to[r * plan.value_dim + c] = merged[i];
    }
}

template <int kKeyDim, bool kRunning, int kColumns>
void walk_columns(const WalkParams& p, std::int64_t units, cudaStream_t stream) {
    using W = Walk<kKeyDim, kRunning, kColumns>;
    const auto kernel = walk_kernel<kKeyDim, kRunning, kColumns>;
    allow_shared(kernel, W::kBytes);
    kernel<<<static_cast<unsigned>(units * p.plan.columns / kColumns), W::kThreads, W::kBytes, stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kKeyDim, bool kRunning>
void walk(const WalkParams& p, std::int64_t units, cudaStream_t stream) {
    const bool pairs = p.plan.heads_per_key * p.plan.tiles % 2 == 0;
    (pairs ? walk_columns<kKeyDim, kRunning, 2> : walk_columns<kKeyDim, kRunning, 1>)(p, units, stream);
}

template <int kKeyDim>
void walk_all(const WalkParams& p, std::int64_t blocks, cudaStream_t stream) {
    const Plan& plan = p.plan;
    if (p.summaries == nullptr && !plan.log_linear) {
        walk<kKeyDim, true>(p, blocks, stream);
        return;
    }
    walk<kKeyDim, false>(p, blocks * kQuadsPerBlock, stream);
    // Nodes of eight groups are read where more than eight follow them.
    const std::int64_t merged =
        p.summaries != nullptr ? blocks : (plan.groups + kGroupsPerBlock / 2 - 1) / kGroupsPerBlock;
    if (merged == 0) return;
    quads_kernel<kKeyDim><<<static_cast<unsigned>(merged * plan.columns), 2 * kKeyDim, 0, stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_walk(const Plan& plan, const MixerCall& call, std::int64_t blocks, float* summaries) {
    WalkParams p{};
    p.plan = plan;
    p.k = static_cast<const __nv_bfloat16*>(call.inputs.k);
    p.v = static_cast<const __nv_bfloat16*>(call.inputs.v);
    p.k_stride = call.inputs.k_stride;
    p.v_stride = call.inputs.v_stride;
    p.cumulative = at<double>(call.workspace, plan.cumulative);
    p.quads = at<float>(call.workspace, plan.quads);
    p.group_nodes = summaries == nullptr ? at<__nv_bfloat16>(call.workspace, plan.group_nodes) : nullptr;
    p.states = at<float>(call.workspace, plan.states);
    p.summaries = summaries;
    (plan.key_dim == 64 ? walk_all<64> : walk_all<128>)(p, blocks, call.stream);
}

}  // namespace fenwick::cuda::scalar
