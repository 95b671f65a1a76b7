// What the plain path's kernels are given (plain.h), and sums over the lanes of a warp.
#pragma once

#include "core/fenwick.h"
#include "kernels/cuda/backward/plain.h"

namespace fenwick::cuda::backward::plain {

inline constexpr int kColumns = 32;  // of a tile: a lane each
inline constexpr int kWarps = 8;     // each has kRows rows of the state
inline constexpr int kThreads = kColumns * kWarps;
inline constexpr int kBatch = 16;  // tokens whose q, k and decays lie in shared memory
inline constexpr int kTokens = static_cast<int>(kBlockTokens);

template <class T>
struct Params {
    const T* q;
    const T* k;
    const T* v;
    const float* log_decay;
    const float* beta;
    const float* lambda;
    const T* d_out;
    std::int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, lambda_stride, d_out_stride, rows;
    MixerGradients gradients;
    TransitionAlgebra algebra;
    int heads, heads_per_key, dk, dv, levels;
    std::int64_t first_block;  // of the shard, in its document
    std::int64_t batch_block;  // of the launch, in the shard
    // Outputs: states that enter, [blocks][slots][heads][d_k, d_v].
    const float* states;
    float* d_states;
    int slots;
    bool linear;
    const float* d_summaries;  // or null: [blocks][heads][A, S]
    std::int64_t transition;
    PlainWorkspace workspace;
};

// One walk of one block and head (plain.h).
struct WalkOf {
    int bit = -1;  // of a token's number; -1: one run
    bool reads = false;
    bool writes = false;
    int level = 0;                  // of lambda
    int columns = 0;                // of the state
    const float* first = nullptr;   // X before the block [d_k, columns], or null
    bool identity = false;          // X before the block is I
    float* d_first = nullptr;       // gets dX before the block, or null
    const float* d_last = nullptr;  // dX after the block, or null
};

// Sums kRows values over the lanes of a warp: lane i gets that of value i % kRows.
template <int kRows>
__device__ float sum_rows(float (&x)[kRows], int lane) {
#pragma unroll
    for (int half = kRows / 2; half > 0; half /= 2) {
        const bool upper = (lane & half) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float send = upper ? x[i] : x[i + half];
            const float keep = upper ? x[i + half] : x[i];
            x[i] = keep + __shfl_xor_sync(0xffffffffU, send, half);
        }
    }
    float sum = x[0];
#pragma unroll
    for (int distance = kRows; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, distance);
    return sum;
}

__device__ float sum_lanes(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
    return x;
}

}  // namespace fenwick::cuda::backward::plain
