// The pairs of tokens of a chunk, from the gradient of their product: what a linear model's rows
// (matrix_rows_linear.cu) take of a [64, 64] sum in a warpgroup's registers.
#pragma once

#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::backward {

/// What rows take of a chunk's decays and beta, in shared memory: the first of Prepared::decays, then Prepared::gates.
inline constexpr int kDecayFloats = 5 * kChunk;
struct ChunkDecays {
    const float* from;

    [[nodiscard]] __device__ __forceinline__ const float* until() const { return from; }            // e^G
    [[nodiscard]] __device__ __forceinline__ const float* writes() const { return from + kChunk; }  // e^(G_C - G)
    [[nodiscard]] __device__ __forceinline__ const float* beta() const { return from + 2 * kChunk; }
    [[nodiscard]] __device__ __forceinline__ const float2* logs() const {  // G / ln 2 as two floats
        return reinterpret_cast<const float2*>(from + 3 * kChunk);
    }
    [[nodiscard]] __device__ __forceinline__ float keep() const { return from[kChunk - 1]; }  // e^(G_C)
};

/// What comes of the gradients of one kind of pairs. With d a warpgroup's [64, 64] gradients of ((B K^T) * D) diag(b),
/// `scores` B K^T and F = d * D, zero right of the diagonal (`below`: and on it):
///   `tile`      F as a tile [64, 64] of shared memory, but for the 16 x 16 blocks right of the diagonal
///   `weighed`   F diag(b) as an A operand
///   `crossing`  [64] what the warp's rows add to each token's log decay: F diag(b) * scores over the pairs (i, j) with
///               j < token <= i
__device__ __forceinline__ void form_pairs(const float (&d)[32], const float (&scores)[32], bool below,
                                           const ChunkDecays& decays, char* tile, std::uint32_t (&weighed)[4][4],
                                           float* crossing, int warp, int lane) {
    const int row = lane / 4;  // of the warp's; and row + 8
    const int quad = lane % 4;
    const float2* logs = decays.logs() + 16 * warp;
    const float2 at[2] = {logs[row], logs[row + 8]};
    char* const rows[2] = {tile + (16 * warp + row) * kTileRowBytes + quad * 4,
                           tile + (16 * warp + row + 8) * kTileRowBytes + quad * 4};
    const auto put = [&](int half, int n, float f0, float f1) {
        *reinterpret_cast<std::uint32_t*>(rows[half] + ((n ^ row) << 4)) = pack_bf16(f0, f1);
    };
    // Left of the diagonal block D is e^(G_i - G_s) e^(G_s - G_j) with s the warp's first token: neither can be large.
    const float2 start = logs[0];
    const float from_start[2] = {exp2_fast((at[0].x - start.x) + (at[0].y - start.y)),
                                 exp2_fast((at[1].x - start.x) + (at[1].y - start.y))};
    float before[2] = {};   // of each row: its pairs left of the diagonal block, then left of what comes next
    float sums[2][8] = {};  // of columns 8 n + 2 quad + e: there their pairs; in the block what crosses the column
    float own_d[8];         // the diagonal block's
    float own_scores[8];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
        if (block == warp) {
#pragma unroll
            for (int i = 0; i < 8; ++i) own_d[i] = d[8 * block + i];
#pragma unroll
            for (int i = 0; i < 8; ++i) own_scores[i] = scores[8 * block + i];
        }
#pragma unroll
        for (int n = 2 * block; n < 2 * block + 2; ++n) {
            weighed[block][n % 2 * 2] = weighed[block][n % 2 * 2 + 1] = 0;
            if (block == 3 || block >= warp) continue;
            const int column = 8 * n + 2 * quad;
            const float4 from = *reinterpret_cast<const float4*>(decays.logs() + column);
            const float2 beta = *reinterpret_cast<const float2*>(decays.beta() + column);
            const float decay0 = exp2_fast((start.x - from.x) + (start.y - from.y));
            const float decay1 = exp2_fast((start.x - from.z) + (start.y - from.w));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = 4 * n + 2 * half;
                const float f0 = d[i] * (from_start[half] * decay0);
                const float f1 = d[i + 1] * (from_start[half] * decay1);
                const float w0 = f0 * beta.x;
                const float w1 = f1 * beta.y;
                put(half, n, f0, f1);
                weighed[block][n % 2 * 2 + half] = pack_bf16(w0, w1);
                sums[0][n] = fmaf(w0, scores[i], sums[0][n]);
                sums[1][n] = fmaf(w1, scores[i + 1], sums[1][n]);
                before[half] = fmaf(w0, scores[i], fmaf(w1, scores[i + 1], before[half]));
            }
        }
    }
#pragma unroll
    for (float& x : before) x = sum_quad(x);
    std::uint32_t own_weighed[2][2];
    float own_sums[2][2] = {};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        const int column = 8 * n + 2 * quad;  // of the block
        const float4 from = *reinterpret_cast<const float4*>(logs + column);
        const float2 beta = *reinterpret_cast<const float2*>(decays.beta() + 16 * warp + column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + 8 * half;
            const int i = 4 * n + 2 * half;
            const int end = below ? r : r + 1;
            const float decay0 = exp2_fast((at[half].x - from.x) + (at[half].y - from.y));
            const float decay1 = exp2_fast((at[half].x - from.z) + (at[half].y - from.w));
            const float f0 = column < end ? own_d[i] * decay0 : 0.0F;
            const float f1 = column + 1 < end ? own_d[i + 1] * decay1 : 0.0F;
            const float w0 = f0 * beta.x;
            const float w1 = f1 * beta.y;
            put(half, 2 * warp + n, f0, f1);
            own_weighed[n][half] = pack_bf16(w0, w1);
            // Columns of the block before this one: of the quad's other lanes, then of this lane.
            const float p0 = w0 * own_scores[i];
            const float own = fmaf(w1, own_scores[i + 1], p0);
            const float last = __shfl_up_sync(0xffffffffU, own, 1, 4);
            float left = quad >= 1 ? last : 0.0F;
            const float others = __shfl_up_sync(0xffffffffU, own + left, 2, 4);
            if (quad >= 2) left += others;
            const float all = __shfl_sync(0xffffffffU, left + own, 3, 4);
            left += before[half];
            before[half] += all;
            own_sums[0][n] += column <= r ? left : 0.0F;
            own_sums[1][n] += column < r ? left + p0 : 0.0F;
        }
    }
#pragma unroll
    for (int block = 0; block < 4; ++block) {
        if (block != warp) continue;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                weighed[block][2 * n + e] = own_weighed[n][e];
                sums[e][2 * block + n] = own_sums[e][n];
            }
        }
    }
    float even = sum_rows_of_eight(sums[0], lane);  // of columns 2 lane, and 2 lane + 1
    float odd = sum_rows_of_eight(sums[1], lane);
    // Left of the block all of the warp's rows are later: what crosses a column is the sum of those before it.
    float left = even + odd;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_up_sync(0xffffffffU, left, distance);
        if (lane >= distance) left += other;
    }
    left = __shfl_up_sync(0xffffffffU, left, 1);
    if (lane / 8 < warp) {
        odd = (lane == 0 ? 0.0F : left) + even;
        even = lane == 0 ? 0.0F : left;
    }
    *reinterpret_cast<float2*>(crossing + 2 * lane) = make_float2(even, odd);
}

}  // namespace fenwick::cuda::backward
