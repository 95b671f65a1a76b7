// What scalar_rows.cu's kernel does with a head's sums: gradients of lambda and of log decays, and the chunk's sums for
// scalar_crossings.cu.
#pragma once

#include "kernels/cuda/backward/scalar_rows.cuh"

namespace fenwick::cuda::backward {

/// A head of a chunk.
struct RowHead {
    std::int64_t in_batch;  // block
    std::int64_t first;     // row of the shard
    int chunk, rows, head;
};

template <int kPanels, int kStates>
__device__ __forceinline__ float entry_sum(const RowShared<kPanels, kStates>& shared, int at) {
    float sum = shared.entries[0][at];
    if constexpr (kPanels == 2) sum += shared.entries[1][at];
    return sum;
}

/// The sum, with lambda, of the pairs of `level` >= 1 that end at row t of a right run, or start at row t of a left
/// run.
template <int kPanels, int kStates>
__device__ __forceinline__ float level_pairs(const RowShared<kPanels, kStates>& shared, const RowInputs<kStates>& in,
                                             int level, int t) {
    if ((t >> (level - 1) & 1) != 0) {
        const int at = level * kEntryStride + t;
        return in.lambda[at] * entry_sum(shared, at);
    }
    if (level < 4) return shared.square[level - 1][t];
    const int run = 1 << (level - 4);  // of eights; the right one follows t's
    const int begin = (t / 8 / run + 1) * run;
    float sum = 0.0F;
    for (int eighth = begin; eighth < begin + run; ++eighth) sum += shared.columns[eighth][t];
    return sum;
}

/// Pairs of `level` that cross each token, by one warp: in a right run those that end at it or later, in a left run
/// those that start before it.
template <int kPanels, int kStates>
__device__ __forceinline__ void cross_level(RowShared<kPanels, kStates>& shared, const RowInputs<kStates>& in,
                                            int level, int lane) {
    const int run = 1 << (level - 1);
    float x[2];
    bool right[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int t = 32 * half + lane;
        right[half] = (t & run) != 0;
        const bool none = !right[half] && t % run == 0;  // a left run's first
        x[half] = none ? 0.0F : level_pairs(shared, in, level, right[half] ? t : t - 1);
    }
    for (int distance = 1; distance < run; distance *= 2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int from = right[half] ? lane + distance : lane - distance;
            const float got = __shfl_sync(0xffffffffU, x[half], from & 31);
            if (((from ^ lane) & -run) == 0) x[half] += got;  // of the same run
        }
    }
    shared.crossing[level - 1][lane] = x[0];
    shared.crossing[level - 1][32 + lane] = x[1];
}

/// Pairs from before the chunk, by one warp: those that cross each token, and the chunk's sums to `sums`.
template <int kPanels, int kStates>
__device__ __forceinline__ void cross_states(RowShared<kPanels, kStates>& shared, const RowInputs<kStates>& in,
                                             float* sums, int lane) {
    float2 incoming = make_float2(0.0F, 0.0F);
    float by_sum[kChunkSums] = {};
    for (int state = 0; state < shared.reads; ++state) {
        const int at = (kOwnLevels + state) * kEntryStride + 2 * lane;
        const float x = in.lambda[at] * entry_sum(shared, at);
        const float y = in.lambda[at + 1] * entry_sum(shared, at + 1);
        incoming.x += x;
        incoming.y += y;
        const int which = shared.sum[state];
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) by_sum[i] += which == i ? x + y : 0.0F;
    }
#pragma unroll
    for (float& sum : by_sum) sum = sum_warp(sum);
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) sums[i] = by_sum[i];
    }
    const float2 across = crossing_rows(incoming, make_float2(0.0F, 0.0F), lane);
    shared.crossing[kOwnLevels - 1][2 * lane] = across.x;
    shared.crossing[kOwnLevels - 1][2 * lane + 1] = across.y;
}

/// After all of a head's products and a barrier; all threads.
template <int kPanels, int kStates>
__device__ __forceinline__ void sum_head(const Scalar& s, RowShared<kPanels, kStates>& shared,
                                         const RowInputs<kStates>& in, const RowHead& h, int t) {
    constexpr int kWarps = 4 * kPanels;
    constexpr int kRows = kChunk / kWarps;
    const int lane = t % 32;
    const int warp = t / 32;
    for (int job = warp; job < kOwnLevels; job += kWarps) {
        if (job == 0) {
            cross_states(shared, in, s.sums + ((h.in_batch * s.heads + h.head) * kChunks + h.chunk) * kChunkSums, lane);
        } else {
            cross_level(shared, in, job, lane);
        }
    }
    if (s.linear) return;
    // A lane has a level: in all but the last of few levels at most one entry.
    const MixerGradients& g = s.call.gradients;
    for (int level = lane; level < s.levels; level += 32) {
        float sum[kRows] = {};
        for (int entry = shared.entry[level]; entry >= 0; entry = shared.next[entry]) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) sum[i] += entry_sum(shared, entry * kEntryStride + warp * kRows + i);
        }
        float* to = g.lambda + (h.first + warp * kRows) * g.lambda_stride +
                    static_cast<std::int64_t>(h.head) * s.levels + level;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (warp * kRows + i < h.rows) to[i * g.lambda_stride] = sum[i];
        }
    }
}

/// After sum_head and a barrier; the first 64 threads.
template <int kPanels, int kStates>
__device__ __forceinline__ void store_decays(const Scalar& s, const RowShared<kPanels, kStates>& shared,
                                             std::int64_t first, int rows, int head, int t) {
    if (t >= rows) return;
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kOwnLevels; ++i) sum += shared.crossing[i][t];
    s.call.gradients.log_decay[(first + t) * s.call.gradients.decay_stride + head] = sum;
}

}  // namespace fenwick::cuda::backward
