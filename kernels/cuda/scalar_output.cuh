// What scalar_output.cu's kernel scales its products by: a column's decays and lambda in shared memory, how they get
// there, and their use on blocks of Q K^T.
#pragma once

#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::scalar {

inline constexpr int kChunk = static_cast<int>(kChunkTokens);
inline constexpr int kThreads = kGroupTokens;               // two warpgroups; each has two chunks: 0 and 3, 1 and 2
inline constexpr int kPanelBytes = kChunk * kTileRowBytes;  // 64 rows of 64 columns
inline constexpr int kSlotBytes = 2 * kPanelBytes;
inline constexpr int kSlots = 6;
inline constexpr int kAhead = kSlots - 1;  // tiles in flight
inline constexpr int kScoreBlocks = kGroupChunks * (kGroupChunks + 1) / 2;
inline constexpr int kScoreBytes = kScoreBlocks * kPanelBytes;  // q lies there first
inline constexpr int kOwnLevels = kGroupBits + 1;               // levels inside a group: 0 to 8
inline constexpr int kMostStates = 48;
inline constexpr double kLog2E = 1.4426950408889634;

// What one column's rows are scaled by; two sets, the next column's is prepared while this one's is in use.
struct Factors {
    double cumulative[kGroupTokens];  // G from the block's start
    double carry[kMostStates];        // log decay from each state's end to the block's start
    float2 in_chunk[kGroupTokens];    // log2(e) G from the chunk's start, in two floats
    float to_end[kGroupTokens];       // decay to the chunk's end
    float lambda[kGroupTokens * kOwnLevels];
};
struct Shared {
    Factors factors[2];
    const char* from[kMostStates];  // the state of the first column
    int level[kMostStates];
    int block_bit[kMostStates];   // of a node of blocks, or -1
    int last_group[kMostStates];  // inside the block, of any other state; -1: what enters the block (linear)
};
inline constexpr int kBytes = 1024 + kScoreBytes + kSlots * kSlotBytes + static_cast<int>(sizeof(Shared));
static_assert(kBytes <= kTensorSharedBytes);

struct OutputParams {
    Plan plan;
    const __nv_bfloat16* q;
    const __nv_bfloat16* k;
    const __nv_bfloat16* v;
    std::int64_t q_stride, k_stride;
    int v_stride;
    const float* lambda;
    int lambda_stride;
    const double* cumulative;
    const char* group_nodes;
    const char* block_nodes;
    const float* carries;
    __nv_bfloat16* out;
    int out_stride;
    int columns_per_cta;
};

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_exp(double x) {
    return exp2_fast(static_cast<float>(x) * static_cast<float>(kLog2E));
}

__device__ __forceinline__ void store_shared(std::uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void load_scores(std::uint32_t (&a)[4][4], std::uint32_t at) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                     : "r"(at + i * 2048)
                     : "memory");
    }
}

// The states that enter `group`, oldest first.
inline __device__ void list_states(const Plan& plan, std::int64_t group, const char* group_nodes,
                                   const char* block_nodes, Shared& shared) {
    const std::int64_t node_bytes = plan.columns * plan.node_elements * 2;
    if (!plan.log_linear) {
        shared.from[0] = group_nodes + group * node_bytes;
        shared.level[0] = 0;
        shared.block_bit[0] = -1;
        shared.last_group[0] = static_cast<int>(group % kGroupsPerBlock) - 1;
        return;
    }
    const std::int64_t number = plan.first_block * kGroupsPerBlock + group;
    int i = 0;
    for (int bit = 62; bit >= 0; --bit) {
        if (((number >> bit) & 1) == 0) continue;
        const Plan::NodePlace place = plan.place(group, bit);
        shared.from[i] = (place.inside_block ? group_nodes : block_nodes) + place.slot * node_bytes;
        shared.level[i] = static_cast<int>(min(static_cast<std::int64_t>(kGroupBits + 1 + bit), plan.levels - 1));
        shared.block_bit[i] = place.inside_block ? -1 : bit - kGroupNodeBits;
        shared.last_group[i] = static_cast<int>(place.slot % kGroupsPerBlock);
        ++i;
    }
}

// One thread's share of a column's factors on its way from global to shared memory: nothing is computed from what was
// loaded before store_factors, so that no instruction in between waits for it.
struct LoadedFactors {
    double cumulative, chunk_start, chunk_end, node_end;
    float carry;
    float lambda[kOwnLevels];
};

// What a column's factors are loaded from.
struct FactorSource {
    const double* cumulative;  // of the group's first row
    const float* lambda;       // of this thread's row
};
__device__ __forceinline__ FactorSource factor_source(const OutputParams& p, std::int64_t first, int head, int t) {
    return {p.cumulative + head * p.plan.padded_rows + first,
            p.lambda + first * p.lambda_stride + t * p.lambda_stride + head * static_cast<int>(p.plan.levels)};
}
__device__ __forceinline__ void prefetch(const void* from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

__device__ __forceinline__ LoadedFactors load_factors(const OutputParams& p, const Shared& shared, std::int64_t group,
                                                      int rows, int states, int head, int t) {
    const Plan& plan = p.plan;
    const int group_in_block = static_cast<int>(group % kGroupsPerBlock);
    const FactorSource from = factor_source(p, group * kGroupTokens, head, t);
    const int chunk_start = t / kChunk * kChunk;
    LoadedFactors x;
    x.cumulative = from.cumulative[t];
    x.chunk_start = chunk_start == 0 && group_in_block == 0 ? 0.0 : from.cumulative[chunk_start - 1];
    x.chunk_end = from.cumulative[chunk_start + kChunk - 1];
    const bool live = plan.log_linear && t < rows;
    const int last_level = static_cast<int>(plan.levels) - 1;
#pragma unroll
    for (int level = 0; level < kOwnLevels; ++level) {
        x.lambda[level] = plan.log_linear ? 0.0F : 1.0F;
        if (live) x.lambda[level] = __ldg(from.lambda + min(level, last_level));
    }
    x.carry = 0.0F;
    x.node_end = 0.0;
    if (t < states) {
        const int bit = shared.block_bit[t];
        const int last = shared.last_group[t];
        const std::int64_t block = group / kGroupsPerBlock;
        if (bit >= 0) x.carry = p.carries[(block * plan.heads + head) * kMaxNodes + bit];
        if (bit < 0 && last >= 0) x.node_end = from.cumulative[(last + 1 - group_in_block) * kGroupTokens - 1];
    }
    return x;
}

__device__ __forceinline__ void store_factors(const LoadedFactors& x, Factors& f, int t, int states) {
    const double in_chunk = (x.cumulative - x.chunk_start) * kLog2E;
    const auto high = static_cast<float>(in_chunk);
    f.cumulative[t] = x.cumulative;
    f.in_chunk[t] = make_float2(high, static_cast<float>(in_chunk - static_cast<double>(high)));
    f.to_end[t] = fast_exp(x.chunk_end - x.cumulative);
#pragma unroll
    for (int level = 0; level < kOwnLevels; ++level) f.lambda[t * kOwnLevels + level] = x.lambda[level];
    if (t < states) f.carry[t] = static_cast<double>(x.carry) - x.node_end;
}

// Q K^T with an earlier chunk: decay split at that chunk's end, both factors <= 1; one lambda a row.
__device__ __forceinline__ void scale_earlier(std::uint32_t (&s)[4][4], const Factors& f, int from, int own, int row,
                                              int lane) {
    const int level = from / 2 == own / 2 ? kChunkBits + 1 : kChunkBits + 2;
    const double end = f.cumulative[from * kChunk + kChunk - 1];
    const float row0 = f.lambda[row * kOwnLevels + level] * fast_exp(f.cumulative[row] - end);
    const float row1 = f.lambda[(row + 8) * kOwnLevels + level] * fast_exp(f.cumulative[row + 8] - end);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float2 column = *reinterpret_cast<const float2*>(&f.to_end[from * kChunk + 8 * j + 2 * (lane % 4)]);
        std::uint32_t& s0 = s[j / 2][j % 2 * 2];
        std::uint32_t& s1 = s[j / 2][j % 2 * 2 + 1];
        s0 = pack_bf16(low_bf16(s0) * (column.x * row0), high_bf16(s0) * (column.y * row0));
        s1 = pack_bf16(low_bf16(s1) * (column.x * row1), high_bf16(s1) * (column.y * row1));
    }
}

// Q K^T of the chunk itself: causal mask, decay and lambda of each pair. Rows 8 e + lane / 4 for e = 2 kWarp + {0, 1};
// the pairs of an 8 x 8 square off the diagonal have one level.
template <int kWarp>
__device__ __forceinline__ void scale_own_rows(std::uint32_t (&s)[4][4], const Factors& f, int own, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        constexpr int kFirst = 2 * kWarp;
        const int eighth = kFirst + half;
        const int i = own * kChunk + 8 * eighth + lane / 4;
        const float* lambda = f.lambda + i * kOwnLevels;
        const float2 at = f.in_chunk[i];
        const int in_square = lane / 4;
        const int column = 2 * (lane % 4);
        const float diagonal_low = column <= in_square ? lambda[32 - __clz(in_square ^ column)] : 0.0F;
        const float diagonal_high = column < in_square ? lambda[32 - __clz(in_square ^ (column + 1))] : 0.0F;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            std::uint32_t& both = s[n / 2][n % 2 * 2 + half];
            if (n > eighth) {
                both = 0;
                continue;
            }
            const float4 from = *reinterpret_cast<const float4*>(&f.in_chunk[own * kChunk + 8 * n + column]);
            const float low_decay = exp2_fast((at.x - from.x) + (at.y - from.y));
            const float high_decay = exp2_fast((at.x - from.z) + (at.y - from.w));
            if (n == eighth) {
                // A later key has a decay above 1, infinite perhaps: it is dropped, not multiplied by 0.
                both = pack_bf16(column <= in_square ? low_bf16(both) * (low_decay * diagonal_low) : 0.0F,
                                 column + 1 <= in_square ? high_bf16(both) * (high_decay * diagonal_high) : 0.0F);
            } else {
                const int apart = n ^ eighth;
                const float factor = lambda[apart >= 4 ? 6 : apart >= 2 ? 5 : 4];
                both = pack_bf16(low_bf16(both) * (low_decay * factor), high_bf16(both) * (high_decay * factor));
            }
        }
    }
}
__device__ __forceinline__ void scale_own(std::uint32_t (&s)[4][4], const Factors& f, int own, int warp, int lane) {
    switch (warp) {
        case 0:
            return scale_own_rows<0>(s, f, own, lane);
        case 1:
            return scale_own_rows<1>(s, f, own, lane);
        case 2:
            return scale_own_rows<2>(s, f, own, lane);
        default:
            return scale_own_rows<3>(s, f, own, lane);
    }
}

}  // namespace fenwick::cuda::scalar
