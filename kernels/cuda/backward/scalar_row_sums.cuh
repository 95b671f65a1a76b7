// What scalar_rows.cu's kernel does with a column's sums: gradients of lambda and of log decays, and the chunk's sums
// for scalar_crossings.cu.
#pragma once

#include "kernels/cuda/backward/scalar_rows.cuh"

namespace fenwick::cuda::backward {

/// A column of work of a chunk.
struct RowColumn {
    std::int64_t in_batch;  // block
    std::int64_t first;     // row of the shard
    int chunk, rows, head, tile;
};

/// Sums of the rows, a thread each: products with states become the pairs' sums, with lambda.
template <int kPanels>
__device__ __forceinline__ void sum_row(const Scalar& s, RowShared<kPanels>& shared, const RowInputs& in, int t) {
    float incoming = shared.incoming[t];
    {
        for (int level = 0; level < kOwnLevels; ++level) {
            float y = 0.0F;
#pragma unroll
            for (int i = 0; i < kPanels; ++i) y += shared.own[i][level][t];
            if (!s.linear) shared.d_lambda[t * s.levels + min(level, s.levels - 1)] += y;
            if (level > 0) {
                shared.pairs[level - 1][t] = level_pairs(shared, level, t, in.lambda[level * kChunk + t] * y);
            }
        }
    }
    for (int state = 0; state < shared.reads; ++state) {
        const int at = state * kChunk + t;
        float y = 0.0F;
#pragma unroll
        for (int i = 0; i < kPanels; ++i) y += shared.dots[i][at];
        y *= shared.decay[at];
        if (!s.linear) shared.d_lambda[t * s.levels + shared.level[state]] += y;
        y *= in.lambda[(kOwnLevels + state) * kChunk + t];
        incoming += y;
        shared.dots[0][at] = y;
    }
    shared.incoming[t] = incoming;
}

/// After all of a column's products and a barrier; all threads. With the last tile of a head, its gradients.
template <int kKeyDim>
__device__ __forceinline__ void sum_column(const Scalar& s, RowShared<kKeyDim / 64>& shared, const RowInputs& in,
                                           const RowColumn& c, int t) {
    constexpr int kThreads = RowTiles<kKeyDim>::kThreads;
    const int lane = t % 32;
    if (t < kChunk) sum_row<kKeyDim / 64>(s, shared, in, t);
    __syncthreads();
    {
        constexpr int kEach = kThreads / kChunk;  // neighbouring threads of a row
        float sum = 0.0F;
        for (int level = kOwnLevels - 1 - t % kEach; level > 0; level -= kEach) {
            sum += crossing_pairs(shared, level, t / kEach);
        }
#pragma unroll
        for (int distance = 1; distance < kEach; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
        if (t % kEach == 0) shared.inside[t / kEach] += sum;
        __syncthreads();
    }
    const bool last_tile = c.tile + 1 == s.tiles;
    const MixerGradients& g = s.call.gradients;
    if (t / 32 == 1) {  // the chunk's sums
        for (int state = 0; state < shared.reads; ++state) {
            const float sum =
                sum_warp(shared.dots[0][state * kChunk + lane] + shared.dots[0][state * kChunk + 32 + lane]);
            if (lane == 0) shared.sums[shared.sum[state]] += sum;
        }
        __syncwarp();
        if (last_tile && lane < kChunkSums) {
            s.sums[((c.in_batch * s.heads + c.head) * kChunks + c.chunk) * kChunkSums + lane] = shared.sums[lane];
        }
    }
    if (t / 32 == 0 && last_tile) {
        const float2 others = crossing_rows(make_float2(shared.incoming[2 * lane], shared.incoming[2 * lane + 1]),
                                            make_float2(0.0F, 0.0F), lane);
        float* to = g.log_decay + (c.first + 2 * lane) * g.decay_stride + c.head;
        if (2 * lane < c.rows) to[0] = shared.inside[2 * lane] + others.x;
        if (2 * lane + 1 < c.rows) to[g.decay_stride] = shared.inside[2 * lane + 1] + others.y;
    }
    if (last_tile && !s.linear) {
        for (int i = t; i < c.rows * s.levels; i += kThreads) {
            g.lambda[(c.first + i / s.levels) * g.lambda_stride + static_cast<std::int64_t>(c.head) * s.levels +
                     i % s.levels] = shared.d_lambda[i];
        }
    }
}

}  // namespace fenwick::cuda::backward
