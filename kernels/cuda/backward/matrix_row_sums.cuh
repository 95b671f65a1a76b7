// What matrix_rows' kernels do with the sums of rows: gradients of lambda, log decays and beta.
#pragma once

#include "kernels/cuda/backward/matrix_rows.cuh"

namespace fenwick::cuda::backward {

/// From shared.pairs, (dO V^T) * P, and shared.dots. All threads; `d_lambda`: shared memory, [64][levels].
template <int kKeyDim>
__device__ __forceinline__ void write_lambda(const Matrix& m, const MatrixChunk& c,
                                             MatrixShared<kKeyDim / 64, MatrixForm::kOutputs>& shared, float* d_lambda,
                                             int t) {
    constexpr int kThreads = MatrixTiles<kKeyDim, MatrixForm::kOutputs>::kThreads;
    constexpr int kEach = kThreads / kChunk;  // threads a row, neighbours
    const int row = t / kEach;
    float* own = d_lambda + row * m.levels;
    for (int i = t % kEach; i < m.levels; i += kEach) own[i] = 0.0F;
    __syncthreads();
    // The top level has as many pairs as all others: a thread's share, one thread after the other.
    constexpr int kTop = kOwnLevels - 1;
    float sums[kOwnLevels] = {};
#pragma unroll
    for (int level = 0; level < kOwnLevels; ++level) {
        if ((level == kTop) != (t % kEach == 0)) continue;
        if (level == 0) {
            sums[level] = shared.pairs[row * kPitch + row];
        } else if ((row >> (level - 1) & 1) != 0) {
            const int first = row >> level << level;
            for (int i = 0; i < 1 << (level - 1); ++i) sums[level] += shared.pairs[row * kPitch + first + i];
        }
    }
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        if (t % kEach == turn) {
#pragma unroll
            for (int level = 0; level < kOwnLevels; ++level) own[min(level, m.levels - 1)] += sums[level];
            for (int e = turn; e < shared.count; e += 2) {
                if (!shared.walks[e].reads_at(c.chunk)) continue;
                float sum = 0.0F;
#pragma unroll
                for (int i = 0; i < kKeyDim / 64; ++i) sum += shared.dots[i][e * kChunk + row];
                own[shared.walks[e].level] += sum;
            }
        }
        __syncwarp();
    }
    __syncthreads();
    const MixerGradients& g = m.call.gradients;
    for (int i = t; i < c.rows * m.levels; i += kThreads) {
        g.lambda[(c.first + i / m.levels) * g.lambda_stride + static_cast<std::int64_t>(c.head) * m.levels +
                 i % m.levels] = d_lambda[i];
    }
    __syncthreads();
}

/// From shared.pairs, the pairs inside the chunk, shared.by_row and shared.across. All threads, after a barrier; all
/// are done with the tiles when the last thread returns.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void write_decays(const Matrix& m, const MatrixChunk& c,
                                             MatrixShared<kKeyDim / 64, kForm>& shared, int t) {
    float* pairs = shared.pairs;
    // Pairs (i, j) inside the chunk that cross a token, j < token <= i: prefix sums of rows, then suffix sums of
    // columns, each row and column by kEach neighbouring threads.
    constexpr int kEach = MatrixTiles<kKeyDim, kForm>::kThreads / kChunk;
    constexpr int kPart = kChunk / kEach;
    const int place = t % kEach;
    float* own_row = pairs + t / kEach * kPitch + place * kPart;
    float part[kPart];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kPart; ++i) part[i] = own_row[i];
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
        const float x = part[i];
        part[i] = sum;
        sum += x;
    }
    float before = 0.0F;
#pragma unroll
    for (int n = 0; n < kEach - 1; ++n) {
        const float other = __shfl_sync(0xffffffffU, sum, t % 32 / kEach * kEach + n);
        if (n < place) before += other;
    }
#pragma unroll
    for (int i = 0; i < kPart; ++i) own_row[i] = before + part[i];
    __syncthreads();
    const int token = t / kEach;
    float inside = 0.0F;
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
        const int r = place + i * kEach;
        const float x = pairs[r * kPitch + token];
        inside += r >= token ? x : 0.0F;
    }
#pragma unroll
    for (int distance = 1; distance < kEach; distance *= 2) inside += __shfl_xor_sync(0xffffffffU, inside, distance);
    if (place == 0) shared.inside[token] = inside;
    __syncthreads();
    if (t >= 32) return;
    const auto sum_panels = [&](int which, int r) {
        float sum = 0.0F;
#pragma unroll
        for (int i = 0; i < kKeyDim / 64; ++i) sum += shared.by_row[which][i][r];
        return sum;
    };
    float everywhere = 0.0F;
    for (int i = 0; i < 4 * (kKeyDim / 64); ++i) everywhere += shared.across[i];
    everywhere *= ChunkDecays{shared.decays}.keep();
    const float2 others = crossing_rows(make_float2(sum_panels(0, 2 * t), sum_panels(0, 2 * t + 1)),
                                        make_float2(sum_panels(1, 2 * t), sum_panels(1, 2 * t + 1)), t);
    const MixerGradients& g = m.call.gradients;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int r = 2 * t + e;
        if (r >= c.rows) continue;
        const float crossing = shared.inside[r] + everywhere + (e == 0 ? others.x : others.y);
        put(g.log_decay + (c.first + r) * g.decay_stride + c.head, crossing, kForm == MatrixForm::kSummaries);
        put(g.beta + (c.first + r) * g.beta_stride + c.head, sum_panels(2, r), kForm == MatrixForm::kSummaries);
    }
}

}  // namespace fenwick::cuda::backward
