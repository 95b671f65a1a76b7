// The chunk's own pairs.
#pragma once

#include "kernels/cuda/backward/scalar_rows.cuh"

namespace fenwick::cuda::backward {

__device__ __forceinline__ void store_sum(float& to, float x, bool more) {
    to = more ? to + x : x;
}

/// The chunk's own pairs of one column: from X = dO V^T and P = Q K^T (fragments of a warp's 16 rows and kColumns
/// columns from `first` on) adds X D M to `w`, writes P D M in bf16 to `tile` [64 queries, 64 keys], and row and
/// column sums to shared memory (`more`: added to those of the head's earlier value columns). The pairs of an 8 x 8
/// square off the diagonal have one level.
template <int kColumns, int kPanels, int kStates>
__device__ __forceinline__ void own_pairs(const float (&x)[kColumns / 2], const float (&p)[kColumns / 2],
                                          float (&w)[kColumns / 2], char* tile, RowShared<kPanels, kStates>& shared,
                                          const RowInputs<kStates>& in, bool more, int first, int warp, int lane,
                                          int panel) {
    const int in_square = lane / 4;
    const int pair = 2 * (lane % 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int eighth = 2 * warp + half;
        const int t = 8 * eighth + in_square;
        const float2 at = shared.in_chunk[t];
        float sums[kOwnLevels] = {};
        float by_column[kColumns / 4] = {};  // X P D M of two columns of a square
        float in_own_square[8] = {};         // the same of the square on the diagonal by level, from 1
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
            if (other < eighth) {
                const int apart = other ^ eighth;
                const int level = apart >= 4 ? 6 : apart >= 2 ? 5 : 4;
                const float lambda = in.lambda[level * kEntryStride + t];
                float row = 0.0F;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float2 from = shared.in_chunk[8 * other + pair + e];
                    const float decay = exp2_fast((at.x - from.x) + (at.y - from.y));
                    const float both = x[i + e] * decay;
                    w[i + e] = fmaf(both, lambda, w[i + e]);
                    const float y = both * p[i + e];
                    row += y;
                    by_column[2 * n + e] = y * lambda;
                    weighted[e] = p[i + e] * decay * lambda;
                }
                sums[4] += level == 4 ? row : 0.0F;
                sums[5] += level == 5 ? row : 0.0F;
                sums[6] += level == 6 ? row : 0.0F;
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
                    const float lambda = in.lambda[level[e] * kEntryStride + t];
                    const float both = x[i + e] * decay;
                    w[i + e] = fmaf(both, lambda, w[i + e]);
                    y[e] = both * p[i + e];
                    weighted[e] = p[i + e] * decay * lambda;
#pragma unroll
                    for (int l = 1; l < 4; ++l) in_own_square[2 * (l - 1) + e] = level[e] == l ? y[e] * lambda : 0.0F;
                }
#pragma unroll
                for (int l = 0; l < 4; ++l) {
                    sums[l] += (level[0] == l ? y[0] : 0.0F) + (level[1] == l ? y[1] : 0.0F);
                }
            }
            *to = pack_bf16(weighted[0], weighted[1]);
        }
        // A lane stores a column: of squares left of the diagonal, and of the one on it where it is among these.
        const int of_pair = in_square % 2;
#pragma unroll
        for (int n = 0; n < kColumns / 8; n += 4) {
            const float sum = sum_rows_of_eight(reinterpret_cast<float(&)[8]>(by_column[2 * n]), lane);
            const int other = first / 8 + n + in_square / 2;
            if (other < eighth) store_sum(shared.columns[eighth][8 * other + pair + of_pair], sum, more);
        }
        const bool has_own = eighth >= first / 8 && eighth < (first + kColumns) / 8;
        const float sum_of_own = sum_rows_of_eight(in_own_square, lane);
        if (has_own && in_square < 6) {
            store_sum(shared.square[in_square / 2][8 * eighth + pair + of_pair], sum_of_own, more);
        }
#pragma unroll
        for (int l = 0; l < kOwnLevels; ++l) {
            const float sum = sum_quad(sums[l]);
            float& to = shared.entries[panel][l * kEntryStride + t];
            if (lane % 4 == 0) to = more ? to + sum : sum;
        }
    }
}

}  // namespace fenwick::cuda::backward
