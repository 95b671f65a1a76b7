// What scalar_rows.cu's kernel keeps in shared memory, and its work on the chunk's own pairs.
#pragma once

#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/backward/scalar.h"

namespace fenwick::cuda::backward {

inline constexpr int kRingSlots = 4;
inline constexpr int kMostStates = kRunBits + kMostSlots;  // that a chunk reads

/// Of one column: what comes from global memory, one column ahead.
struct RowInputs {
    double cumulative[kChunk];
    double node[kMostStates];                           // G where the state ends
    double start;                                       // G where the chunk starts
    float lambda[(kOwnLevels + kMostStates) * kChunk];  // [entry][row]
};

template <int kPanels>
struct RowShared {
    RowInputs inputs[2];
    float2 in_chunk[kChunk];                    // log2(e) G from the chunk's start, in two floats
    float decay[(kMostStates)*kChunk];          // [state][row]: e_t
    float own[kPanels][kOwnLevels][kChunk];     // row sums of X P D by level
    float columns[8][kChunk];                   // column sums of X P D M over eight rows, below those
    float square[3][kChunk];                    // over the rows of the column's own eight, by level - 1
    float pairs[kOwnLevels - 1][kChunk];        // by level - 1: sums of a right run's row, or of a left run's column
    float inside[kChunk];                       // of these, the pairs that cross a token
    float dots[kPanels][(kMostStates)*kChunk];  // q^T N do; then with lambda e
    float incoming[kChunk];                     // pairs from earlier chunks to a row
    float sums[kChunkSums];
    float d_lambda[kChunk * kMostLevels];
    // What the chunk reads; the same for each column.
    const char* from[kMostStates];  // the tile of column 0
    int level[kMostStates];
    int end[kMostStates];  // first token after the state, in the block
    int sum[kMostStates];  // which of the chunk's sums
    int reads;
};

template <int kKeyDim>
struct RowTiles {
    static constexpr int kPanels = kKeyDim / 64;  // a warpgroup each
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kKeyBytes = kPanels * kPanelBytes;
    static constexpr int kExchangeBytes = kPanels > 1 ? 2 * kPanelBytes : 0;  // fp32 [64, 64]
    // Tiles: q, k, two times v and dO, the ring, the pairs, the exchange; then RowShared.
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + kKeyBytes;
    static constexpr int kV = kK + kKeyBytes;
    static constexpr int kD = kV + 2 * kPanelBytes;
    static constexpr int kRing = kD + 2 * kPanelBytes;
    static constexpr int kPairs = kRing + kRingSlots * kKeyBytes;
    static constexpr int kExchange = kPairs + kPanelBytes;
    static constexpr int kShared = kExchange + kExchangeBytes;
    static constexpr int kBytes = 1024 + kShared + static_cast<int>(sizeof(RowShared<kPanels>));
};
static_assert(RowTiles<128>::kBytes <= 227 * 1024);

// Lists what chunk `chunk` of a block reads; tiles of column 0.
template <int kPanels>
__device__ inline void list_states(const Scalar& s, std::int64_t in_batch, int chunk, RowShared<kPanels>& shared) {
    const std::int64_t node_bytes = s.columns * s.node_elements() * 2;
    const char* nodes = reinterpret_cast<const char*>(s.nodes) + in_batch * kChunks * node_bytes;
    const char* entering = reinterpret_cast<const char*>(s.entering) + in_batch * s.slots * node_bytes;
    int n = 0;
    std::int64_t bits = s.call.first_block + s.batch_block + in_batch;
    for (int slot = 0; bits != 0; ++slot) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        shared.from[n] = entering + slot * node_bytes;
        shared.level[n] = min(kBlockBits + 1 + bit, s.levels - 1);
        shared.end[n] = 0;
        shared.sum[n++] = kRunBits;
        if (s.linear) break;
    }
    for (int bit = kRunBits - 1; bit >= 0; --bit) {
        if ((chunk >> bit & 1) == 0) continue;
        const int end = chunk >> bit << bit;
        shared.from[n] = nodes + end * node_bytes;
        shared.level[n] = min(kChunkBits + 1 + bit, s.levels - 1);
        shared.end[n] = end * kChunk;
        shared.sum[n++] = bit;
    }
    shared.reads = n;
}

__device__ __forceinline__ float sum_rows_of_eight(float x) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
    return x;
}

/// The chunk's own pairs of one column: from X = dO V^T and P = Q K^T (fragments of a warp's 16 rows and kColumns
/// columns from `first` on) adds X D M to `w`, writes P D M in bf16 to `tile` [64 queries, 64 keys], and row and
/// column sums to shared memory. The pairs of an 8 x 8 square off the diagonal have one level.
template <int kColumns, int kPanels>
__device__ __forceinline__ void own_pairs(const float (&x)[kColumns / 2], const float (&p)[kColumns / 2],
                                          float (&w)[kColumns / 2], char* tile, RowShared<kPanels>& shared,
                                          const RowInputs& in, int first, int warp, int lane, int panel) {
    const int in_square = lane / 4;
    const int pair = 2 * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int eighth = 2 * warp + half;
        const int t = 8 * eighth + in_square;
        const float2 at = shared.in_chunk[t];
        float sums[kOwnLevels] = {};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            const int other = first / 8 + n;
            const int i = 4 * n + 2 * half;
            auto* to = reinterpret_cast<std::uint32_t*>(tile + tile_offset(t, other) + 2 * pair);
            if (other > eighth) {
                *to = 0;
                continue;
            }
            float weighted[2];
            float sum[2];  // by column: X P D M
            if (other < eighth) {
                const int apart = other ^ eighth;
                const int level = apart >= 4 ? 6 : apart >= 2 ? 5 : 4;
                const float lambda = in.lambda[level * kChunk + t];
                float row = 0.0F;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float2 from = shared.in_chunk[8 * other + pair + e];
                    const float decay = exp2_fast((at.x - from.x) + (at.y - from.y));
                    const float both = x[i + e] * decay;
                    w[i + e] = fmaf(both, lambda, w[i + e]);
                    const float y = both * p[i + e];
                    row += y;
                    sum[e] = sum_rows_of_eight(y * lambda);
                    weighted[e] = p[i + e] * decay * lambda;
                }
                sums[4] += level == 4 ? row : 0.0F;
                sums[5] += level == 5 ? row : 0.0F;
                sums[6] += level == 6 ? row : 0.0F;
                if (lane < 4) {
                    *reinterpret_cast<float2*>(&shared.columns[eighth][8 * other + pair]) = make_float2(sum[0], sum[1]);
                }
            } else {
                float y[2];
                int level[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int s = pair + e;  // of the square
                    const float2 from = shared.in_chunk[8 * other + s];
                    // A later key has a decay above 1, infinite perhaps: it is dropped, not multiplied by 0.
                    const bool seen = s <= in_square;
                    const float decay = seen ? exp2_fast((at.x - from.x) + (at.y - from.y)) : 0.0F;
                    level[e] = s == in_square ? 0 : 32 - __clz(s ^ in_square);
                    const float lambda = in.lambda[level[e] * kChunk + t];
                    const float both = x[i + e] * decay;
                    w[i + e] = fmaf(both, lambda, w[i + e]);
                    y[e] = both * p[i + e];
                    weighted[e] = p[i + e] * decay * lambda;
                    sum[e] = y[e] * lambda;
                }
#pragma unroll
                for (int l = 0; l < 4; ++l) {
                    sums[l] += (level[0] == l ? y[0] : 0.0F) + (level[1] == l ? y[1] : 0.0F);
                    if (l == 0) continue;
                    const float low = sum_rows_of_eight(level[0] == l ? sum[0] : 0.0F);
                    const float high = sum_rows_of_eight(level[1] == l ? sum[1] : 0.0F);
                    if (lane < 4) {
                        *reinterpret_cast<float2*>(&shared.square[l - 1][8 * other + pair]) = make_float2(low, high);
                    }
                }
            }
            *to = pack_bf16(weighted[0], weighted[1]);
        }
#pragma unroll
        for (int l = 0; l < kOwnLevels; ++l) {
            const float sum = sum_quad(sums[l]);
            if (lane % 4 == 0) shared.own[panel][l][t] = sum;
        }
    }
}

/// After own_pairs and a barrier: row t's (or column t's) sum of the pairs of level `level` >= 1, `row` the row's with
/// lambda.
template <int kPanels>
__device__ __forceinline__ float level_pairs(const RowShared<kPanels>& shared, int level, int t, float row) {
    if ((t >> (level - 1) & 1) != 0) return row;
    if (level < 4) return shared.square[level - 1][t];
    const int run = 1 << (level - 4);  // of eights; the right one follows t's
    const int begin = (t / 8 / run + 1) * run;
    float sum = 0.0F;
    for (int eighth = begin; eighth < begin + run; ++eighth) sum += shared.columns[eighth][t];
    return sum;
}

/// Pairs of `level` that cross token t: in a right run those that end at it or later, in a left run those that start
/// before it.
template <int kPanels>
__device__ __forceinline__ float crossing_pairs(const RowShared<kPanels>& shared, int level, int t) {
    const float* pairs = shared.pairs[level - 1];
    const int run = 1 << (level - 1);
    const int begin = t / run * run;
    float sum = 0.0F;
    if ((t & run) != 0) {
        for (int i = begin + run - 1; i >= t; --i) sum += pairs[i];
    } else {
        for (int i = begin; i < t; ++i) sum += pairs[i];
    }
    return sum;
}

}  // namespace fenwick::cuda::backward
