// One block and head of the plain path on the device: its walks (plain.h), token by token.
#pragma once

#include "kernels/cuda/backward/plain_params.cuh"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda::backward::plain {

// A thread block: one head of one block. Thread (warp, lane) has rows [warp kRows, + kRows) of column `lane`.
template <class T, int kRows>
struct Walker {
    static constexpr int kDepth = kRows * kWarps;  // d_k, padded with zeros
    static constexpr int kSharedFloats = 3 * kBatch * kDepth + 2 * kWarps * kColumns + kBatch * kWarps + 3 * kBatch;

    const Params<T>& p;
    float* q;        // [batch][depth]
    float* k;        // the same
    float* a;        // the same: decays (scalar, matrix: alike in a row)
    float* partial;  // [2][warps][columns]
    float* shares;   // [batch][warps]
    float* beta;     // [batch]
    float* lambda;   // [batch]
    int turn = 0;
    int warp, lane, head, rows;
    std::int64_t block, first, cta;
    bool matrix, diagonal;

    __device__ Walker(const Params<T>& params, float* shared) : p(params) {
        q = shared;
        k = q + kBatch * kDepth;
        a = k + kBatch * kDepth;
        partial = a + kBatch * kDepth;
        shares = partial + 2 * kWarps * kColumns;
        beta = shares + kBatch * kWarps;
        lambda = beta + kBatch;
        warp = static_cast<int>(threadIdx.x) / 32;
        lane = static_cast<int>(threadIdx.x) % 32;
        cta = blockIdx.x;
        head = static_cast<int>(cta % p.heads);
        block = p.batch_block + cta / p.heads;
        first = block * kTokens;
        rows = static_cast<int>(min(p.rows - first, static_cast<std::int64_t>(kTokens)));
        matrix = p.algebra == TransitionAlgebra::kMatrix;
        diagonal = p.algebra == TransitionAlgebra::kDiagonal;
    }

    __device__ int channels() const { return diagonal ? p.dk : 1; }
    __device__ float* d_q_row(int t) const { return p.workspace.d_q + (cta * kTokens + t) * p.dk; }
    __device__ float* d_k_row(int t) const { return p.workspace.d_k + (cta * kTokens + t) * p.dk; }
    __device__ float* pairs_row(int t) const { return p.workspace.pairs + (cta * kTokens + t) * channels(); }
    __device__ float* p_row(int t) const { return p.workspace.p + (cta * kTokens + t) * kColumns; }
    __device__ float* r_row(int t) const { return p.workspace.r + (cta * kTokens + t) * kColumns; }
    __device__ bool owner() const { return lane < kRows && warp * kRows + lane < p.dk; }
    __device__ int own_row() const { return warp * kRows + lane; }

    // q, k, decays, beta and lambda of tokens [from, from + kBatch) into shared memory; zeros past the end.
    __device__ void load(int from, const WalkOf& walk) {
        __syncthreads();
        const int t0 = static_cast<int>(threadIdx.x);
        const std::int64_t key_head = head / p.heads_per_key;
        for (int i = t0; i < kBatch * kDepth; i += kThreads) {
            const int t = from + i / kDepth;
            const int c = i % kDepth;
            const bool there = t < rows && c < p.dk;
            const std::int64_t token = first + t;
            q[i] = there ? to_float(p.q[token * p.q_stride + key_head * p.dk + c]) : 0.0F;
            k[i] = there ? to_float(p.k[token * p.k_stride + key_head * p.dk + c]) : 0.0F;
            const std::int64_t at = token * p.decay_stride + (diagonal ? std::int64_t{head} * p.dk + c : head);
            a[i] = there ? expf(fmaxf(p.log_decay[at], -1000.0F)) : 0.0F;
        }
        if (t0 < kBatch) {
            const std::int64_t token = first + from + t0;
            const bool there = from + t0 < rows;
            beta[t0] = there && matrix ? p.beta[token * p.beta_stride + head] : 1.0F;
            lambda[t0] = there && walk.reads && !p.linear
                             ? p.lambda[token * p.lambda_stride + std::int64_t{head} * p.levels + walk.level]
                             : 1.0F;
        }
        __syncthreads();
    }

    __device__ float value(const T* from, std::int64_t stride, int t, int column) const {
        if (column >= p.dv) return 0.0F;
        return to_float(from[(first + t) * stride + std::int64_t{head} * p.dv + column]);
    }

    // Sum over all rows of k_c x_c: the same in every warp.
    __device__ float against_key(const float (&x)[kRows], const float* key) {
        float sum = 0.0F;
#pragma unroll
        for (int i = 0; i < kRows; ++i) sum = fmaf(key[i], x[i], sum);
        float* here = partial + turn * kWarps * kColumns;
        turn ^= 1;
        here[warp * kColumns + lane] = sum;
        __syncthreads();
        sum = 0.0F;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += here[w * kColumns + lane];
        return sum;
    }

    __device__ bool right(const WalkOf& walk, int t) const {
        return walk.bit >= 0 ? (t >> walk.bit & 1) != 0 : true;
    }
    __device__ bool reads(const WalkOf& walk, int t) const {
        return walk.reads && right(walk, t);
    }
    __device__ bool writes(const WalkOf& walk, int t) const {
        return walk.writes && (walk.bit < 0 || !right(walk, t));
    }
    __device__ int pair_mask(const WalkOf& walk) const {
        return (2 << walk.bit) - 1;
    }

    __device__ void start(const WalkOf& walk, int tile, float (&x)[kRows]) const {
        const int column = tile * kColumns + lane;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int c = warp * kRows + i;
            const bool there = c < p.dk && column < walk.columns;
            x[i] = 0.0F;
            if (there && walk.first != nullptr) x[i] = walk.first[c * walk.columns + column];
            if (there && walk.identity && c == column) x[i] = 1.0F;
        }
    }

    // X = a (X - b p k), or a X.
    __device__ void carry(float (&x)[kRows], const float* key, const float* decay, float b_p) const {
#pragma unroll
        for (int i = 0; i < kRows; ++i) x[i] = decay[i] * (matrix ? fmaf(-b_p, key[i], x[i]) : x[i]);
    }

    __device__ void forward(const WalkOf& walk, int tile) {
        float x[kRows];
        start(walk, tile, x);
        const int column = tile * kColumns + lane;
        for (int from = 0; from < rows; from += kBatch) {
            load(from, walk);
            for (int n = 0; n < kBatch && from + n < rows; ++n) {
                const int t = from + n;
                const float* key = k + n * kDepth + warp * kRows;
                if (walk.bit >= 0 && (t & pair_mask(walk)) == 0) {
#pragma unroll
                    for (float& e : x) e = 0.0F;
                }
                float b_p = 0.0F;
                if (matrix) {
                    const float sum = against_key(x, key);
                    if (warp == 0) p_row(t)[lane] = sum;
                    b_p = beta[n] * sum;
                }
                carry(x, key, a + n * kDepth + warp * kRows, b_p);
                if (reads(walk, t)) {
                    const float d = value(p.d_out, p.d_out_stride, t, column);
                    float z[kRows];
#pragma unroll
                    for (int i = 0; i < kRows; ++i) z[i] = x[i] * d;
                    const float sum = sum_rows(z, lane);
                    float share = 0.0F;
                    if (owner()) {
                        d_q_row(t)[own_row()] += lambda[n] * sum;
                        share = q[n * kDepth + own_row()] * sum;
                        if (diagonal) add_pair(t, own_row(), lambda[n] * share, tile);
                    }
                    share = sum_lanes(share);
                    if (lane == 0) shares[n * kWarps + warp] = share;
                }
                if (writes(walk, t)) {
                    const float v = beta[n] * value(p.v, p.v_stride, t, column);
#pragma unroll
                    for (int i = 0; i < kRows; ++i) x[i] = fmaf(key[i], v, x[i]);
                }
            }
            __syncthreads();
            const int n = static_cast<int>(threadIdx.x);
            if (n < kBatch && from + n < rows && reads(walk, from + n)) {
                float y = 0.0F;
                for (int w = 0; w < kWarps; ++w) y += shares[n * kWarps + w];
                if (!p.linear) {
                    p.gradients.lambda[(first + from + n) * p.gradients.lambda_stride + std::int64_t{head} * p.levels +
                                       walk.level] += y;
                }
                if (!diagonal) add_pair(from + n, 0, lambda[n] * y, tile);
            }
        }
    }

    __device__ void add_pair(int t, int channel, float x, int tile) const {
        float* to = pairs_row(t) + channel;
        *to = tile == 0 ? x : *to + x;
    }

    __device__ void back(const WalkOf& walk, int tile) {
        float x[kRows];  // dX
        const int column = tile * kColumns + lane;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int c = warp * kRows + i;
            const bool there = walk.d_last != nullptr && c < p.dk && column < walk.columns;
            x[i] = there ? walk.d_last[c * walk.columns + column] : 0.0F;
        }
        for (int from = (rows - 1) / kBatch * kBatch; from >= 0; from -= kBatch) {
            load(from, walk);
            for (int n = min(kBatch, rows - from) - 1; n >= 0; --n) {
                const int t = from + n;
                const float* key = k + n * kDepth + warp * kRows;
                if (walk.bit >= 0 && (t & pair_mask(walk)) == pair_mask(walk)) {
#pragma unroll
                    for (float& e : x) e = 0.0F;
                }
                if (reads(walk, t)) {
                    const float d = lambda[n] * value(p.d_out, p.d_out_stride, t, column);
                    const float* query = q + n * kDepth + warp * kRows;
#pragma unroll
                    for (int i = 0; i < kRows; ++i) x[i] = fmaf(query[i], d, x[i]);
                }
                const bool written = writes(walk, t);
                float b_r = 0.0F;
                if (matrix || written) {
                    const float v = written ? value(p.v, p.v_stride, t, column) : 0.0F;
                    const float r = against_key(x, key);
                    b_r = beta[n] * r;
                    const float decay = a[n * kDepth];
                    const float old = matrix ? p_row(t)[lane] : 0.0F;
                    if (warp == 0) {
                        if (written && column < p.dv) {
                            p.gradients.v[(first + t) * p.gradients.v_stride + std::int64_t{head} * p.dv + column] +=
                                b_r;
                        }
                        const float own = sum_lanes(r * v);
                        if (matrix) {
                            r_row(t)[lane] = r;
                            const float removed = sum_lanes(r * old);
                            if (lane == 0) {
                                p.gradients.beta[(first + t) * p.gradients.beta_stride + head] += own - decay * removed;
                            }
                        }
                        if (lane == 0 && written && !diagonal) add_pair(t, 0, beta[n] * own, tile);
                    }
                    const float u = beta[n] * (matrix ? fmaf(-decay, old, v) : v);
                    float z[kRows];
#pragma unroll
                    for (int i = 0; i < kRows; ++i) z[i] = x[i] * u;
                    const float sum = sum_rows(z, lane);
                    if (owner()) {
                        d_k_row(t)[own_row()] += sum;
                        if (diagonal) add_pair(t, own_row(), k[n * kDepth + own_row()] * sum, tile);
                    }
                }
                carry(x, key, a + n * kDepth + warp * kRows, b_r);
            }
        }
        if (walk.d_first == nullptr) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const int c = warp * kRows + i;
            if (c < p.dk && column < walk.columns) walk.d_first[c * walk.columns + column] = x[i];
        }
    }

    // Matrix: what the keys of the transitions get of the states before them.
    __device__ void forward_again(const WalkOf& walk, int tile) {
        float x[kRows];
        start(walk, tile, x);
        const int column = tile * kColumns + lane;
        for (int from = 0; from < rows; from += kBatch) {
            load(from, walk);
            for (int n = 0; n < kBatch && from + n < rows; ++n) {
                const int t = from + n;
                const float* key = k + n * kDepth + warp * kRows;
                if (walk.bit >= 0 && (t & pair_mask(walk)) == 0) {
#pragma unroll
                    for (float& e : x) e = 0.0F;
                }
                const float r = r_row(t)[lane];
                float z[kRows];
#pragma unroll
                for (int i = 0; i < kRows; ++i) z[i] = x[i] * r;
                const float sum = sum_rows(z, lane);
                if (owner()) d_k_row(t)[own_row()] -= a[n * kDepth] * beta[n] * sum;
                carry(x, key, a + n * kDepth + warp * kRows, beta[n] * p_row(t)[lane]);
                if (writes(walk, t)) {
                    const float v = beta[n] * value(p.v, p.v_stride, t, column);
#pragma unroll
                    for (int i = 0; i < kRows; ++i) x[i] = fmaf(key[i], v, x[i]);
                }
            }
        }
    }

    // Sums the pairs that cross each token into the log decays' gradient: a thread for each run and channel.
    __device__ void cross(const WalkOf& walk) {
        __syncthreads();
        const int length = walk.bit >= 0 ? 1 << walk.bit : kTokens;
        const int runs = (rows + length - 1) / length;
        for (int i = static_cast<int>(threadIdx.x); i < runs * channels(); i += kThreads) {
            const int run = i / channels();
            const int channel = i % channels();
            const int begin = run * length;
            const int end = min(begin + length, rows);
            const auto add = [&](int t, float x) {
                p.gradients.log_decay[(first + t) * p.gradients.decay_stride +
                                      (diagonal ? std::int64_t{head} * p.dk + channel : head)] += x;
            };
            float sum = 0.0F;
            if (walk.bit >= 0 ? (run & 1) != 0 : walk.reads) {
                for (int t = end - 1; t >= begin; --t) {
                    sum += pairs_row(t)[channel];
                    add(t, sum);
                }
            } else if (walk.bit < 0 || end < rows) {  // else nobody reads it
                for (int t = begin; t < end; ++t) {
                    add(t, sum);
                    sum += pairs_row(t)[channel];
                }
            }
        }
        __syncthreads();
    }

    __device__ void run(const WalkOf& walk) {
        for (int tile = 0; tile * kColumns < walk.columns; ++tile) {
            if (walk.reads || matrix) forward(walk, tile);
            __syncthreads();  // p
            back(walk, tile);
            __syncthreads();  // r
            if (matrix) forward_again(walk, tile);
        }
        if (walk.reads || walk.writes) cross(walk);
    }
};

}  // namespace fenwick::cuda::backward::plain
