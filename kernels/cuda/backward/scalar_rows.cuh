// What scalar_rows.cu's kernel keeps in shared memory, and its work on the chunk's own pairs.
#pragma once

#include "kernels/cuda/backward/scalar.h"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kPanelBytes = kChunk * kTileRowBytes;  // 64 rows of 64 columns
inline constexpr int kRingSlots = 4;
inline constexpr int kMostStates = kRunBits + kMostSlots;  // that a chunk reads, or that its gradients come from
inline constexpr float kLog2E = 1.4426950408889634F;

/// Of one column: what comes from global memory, one column ahead.
struct RowInputs {
    double cumulative[kChunk];
    double node[kMostStates + kRunBits];                // G where the state ends (or the left run)
    double start;                                       // G where the chunk starts
    float lambda[(kOwnLevels + kMostStates) * kChunk];  // [entry][row]
};

template <int kPanels>
struct RowShared {
    RowInputs inputs[2];
    float2 in_chunk[kChunk];                                 // log2(e) G from the chunk's start, in two floats
    float decay[(kMostStates + kRunBits) * kChunk];          // [state][row]: e_t or e_s
    float own[kPanels][kOwnLevels][kChunk];                  // row sums of X P D by level
    float columns[4][kChunk];                                // column sums of X P D M, by warp
    float dots[kPanels][(kMostStates + kRunBits) * kChunk];  // q^T N do, or k^T dN v; then with lambda e, or e
    float crossing[kChunk];                                  // pairs that end, less those that start inside the chunk
    float outgoing[kChunk];                                  // pairs from a row to later chunks
    float sums[kChunkSums];
    float d_lambda[kChunk * kMostLevels];
    // What the chunk reads, then where its gradients come from; the same for each column.
    const char* from[kMostStates + kRunBits];  // the tile of column 0
    int level[kMostStates];
    int end[kMostStates + kRunBits];  // first token after the state or run, in the block
    int sum[kMostStates + kRunBits];  // which of the chunk's sums
    int reads, gradients;
};

__device__ __forceinline__ float exp2_fast(float x) {
#if defined(__CUDA_ON_HOST__)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

__device__ __forceinline__ float sum_quad(float x) {
    x += __shfl_xor_sync(0xffffffffU, x, 1);
    return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

__device__ __forceinline__ float sum_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
    return x;
}

/// acc[64, kColumns] += A[64, 64] B^T for one warp's 16 rows: B's rows [first, + kColumns) of a tile.
template <int kColumns>
__device__ __forceinline__ void scores(float (&acc)[kColumns / 2], const std::uint32_t (&a)[4][4], std::uint32_t tile,
                                       int first, int lane) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
            std::uint32_t b[4];
            load_matrices(
                b, tile + tile_offset(first + 16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * s + ((lane >> 3) & 1)));
            mma_16x8x16(acc + 8 * n, a[s], b[0], b[1]);
            mma_16x8x16(acc + 8 * n + 4, a[s], b[2], b[3]);
        }
    }
}

/// The A fragment of a tile's transpose: rows are the tile's columns [16 warp, + 16), the depth its rows [16 step, +
/// 16).
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], std::uint32_t tile, int warp, int step,
                                                  int lane) {
    load_matrices_transposed(
        a, tile + tile_offset(16 * step + (lane & 7) + ((lane >> 4) << 3), 2 * warp + ((lane >> 3) & 1)));
}

/// The chunk's own pairs of one column: from X = dO V^T and P = Q K^T (fragments of a warp's 16 rows and kColumns
/// columns from `first` on) adds X D M to `w`, writes P D M in bf16 to `pairs` [64 queries, 64 keys], and row and
/// column sums to shared memory.
template <int kColumns, int kPanels>
__device__ __forceinline__ void own_pairs(const float (&x)[kColumns / 2], const float (&p)[kColumns / 2],
                                          float (&w)[kColumns / 2], char* pairs, RowShared<kPanels>& shared,
                                          const RowInputs& in, int first, int warp, int lane, int panel) {
    const int in_square = lane / 4;
    const int pair = 2 * (lane % 4);
    float to_later[kColumns / 4] = {};  // column sums
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int eighth = 2 * warp + half;
        const int t = 8 * eighth + in_square;
        const float2 at = shared.in_chunk[t];
        const float far[3] = {in.lambda[4 * kChunk + t], in.lambda[5 * kChunk + t], in.lambda[6 * kChunk + t]};
        float sums[kOwnLevels] = {};
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            const int other = first / 8 + n;
            float weighted[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int i = 4 * n + 2 * half + e;
                const int s = 8 * other + pair + e;
                const float2 from = shared.in_chunk[s];
                // A later key has a decay above 1, infinite perhaps: it is dropped, not multiplied by 0.
                const float decay = s <= t ? exp2_fast((at.x - from.x) + (at.y - from.y)) : 0.0F;
                const int apart = other ^ eighth;
                const int level = apart >= 4 ? 6 : apart >= 2 ? 5 : apart == 1 ? 4 : s == t ? 0 : 32 - __clz(s ^ t);
                const float lambda = apart >= 4   ? far[2]
                                     : apart >= 2 ? far[1]
                                     : apart == 1 ? far[0]
                                     : s <= t     ? in.lambda[level * kChunk + t]
                                                  : 0.0F;
                const float both = x[i] * decay;
                w[i] = fmaf(both, lambda, w[i]);
                const float y = both * p[i];
                weighted[e] = p[i] * decay * lambda;
                if (s < t) to_later[2 * n + e] = fmaf(y, lambda, to_later[2 * n + e]);
#pragma unroll
                for (int l = 0; l < kOwnLevels; ++l) sums[l] += level == l ? y : 0.0F;
            }
            *reinterpret_cast<std::uint32_t*>(pairs + tile_offset(t, other) + 2 * pair) =
                pack_bf16(weighted[0], weighted[1]);
        }
#pragma unroll
        for (int l = 0; l < kOwnLevels; ++l) {
            const float sum = sum_quad(sums[l]);
            if (lane % 4 == 0) shared.own[panel][l][t] = sum;
        }
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
        float sum = to_later[i];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
        if (lane < 4) shared.columns[warp][first + i / 2 * 8 + 2 * lane + i % 2] = sum;
    }
}

}  // namespace fenwick::cuda::backward
