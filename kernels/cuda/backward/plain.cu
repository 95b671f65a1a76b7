#include <algorithm>

#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/backward/plain.h"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kColumns = 32;  // of a tile: a lane each
constexpr int kWarps = 8;     // each has kRows rows of the state
constexpr int kThreads = kColumns * kWarps;
constexpr int kBatch = 16;  // tokens whose q, k and decays lie in shared memory
constexpr int kTokens = static_cast<int>(kBlockTokens);

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

// One walk of one block and head; the kernel's header has the kinds.
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

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) outputs_kernel(const __grid_constant__ Params<T> p) {
    extern __shared__ float shared[];
    Walker<T, kRows> walker(p, shared);
    for (int bit = 0; bit < kBlockBits; ++bit) {
        if (walker.rows <= 1 << bit) break;
        WalkOf walk;
        walk.bit = bit;
        walk.reads = walk.writes = true;
        walk.level = min(bit + 1, p.levels - 1);
        walk.columns = p.dv;
        walker.run(walk);
    }
    const std::int64_t number = p.first_block + walker.block;
    std::int64_t bits = number;
    for (int slot = 0; bits != 0; ++slot) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        const std::int64_t at =
            ((walker.block * p.slots + slot) * p.heads + walker.head) * static_cast<std::int64_t>(p.dk) * p.dv;
        WalkOf walk;
        walk.reads = true;
        walk.level = min(kBlockBits + 1 + bit, p.levels - 1);
        walk.columns = p.dv;
        walk.first = p.states + at;
        walk.d_first = p.d_states + at;
        walker.run(walk);
        if (p.linear) break;
    }
}

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) summaries_kernel(const __grid_constant__ Params<T> p) {
    extern __shared__ float shared[];
    __shared__ float scratch[32];
    Walker<T, kRows> walker(p, shared);
    const std::int64_t state = static_cast<std::int64_t>(p.dk) * p.dv;
    const float* d = p.d_summaries + (walker.block * p.heads + walker.head) * (p.transition + state);
    WalkOf walk;
    walk.writes = true;
    walk.columns = p.dv;
    walk.d_last = d + p.transition;
    walker.run(walk);
    if (p.first_block + walker.block == 0) return;  // nothing is older than the document's first block
    float everywhere = 0.0F;                        // what every log decay of the block gets
    if (walker.matrix) {
        WalkOf transition;
        transition.columns = p.dk;
        transition.identity = true;
        transition.d_last = d;
        // <dA, A> before the block: the trace of what comes back, which takes the place of a d_q that nobody needs.
        transition.d_first = walker.d_q_row(0);
        walker.run(transition);
        __syncthreads();
        float sum = 0.0F;
        for (int i = static_cast<int>(threadIdx.x); i < p.dk; i += kThreads) sum += walker.d_q_row(0)[i * p.dk + i];
        everywhere = block_sum(sum, scratch);
    }
    for (int i = static_cast<int>(threadIdx.x); i < walker.rows * walker.channels(); i += kThreads) {
        const int channel = i % walker.channels();
        p.gradients.log_decay[(walker.first + i / walker.channels()) * p.gradients.decay_stride +
                              (walker.diagonal ? std::int64_t{walker.head} * p.dk + channel : walker.head)] +=
            walker.matrix ? everywhere : d[channel];
    }
}

// Level 0: a warp for each token and head.
template <class T>
__global__ void __launch_bounds__(kThreads) own_kernel(const __grid_constant__ Params<T> p, int blocks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t begin = p.batch_block * kTokens;
    const std::int64_t end = min(p.rows, begin + static_cast<std::int64_t>(blocks) * kTokens);
    const std::int64_t work = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    const std::int64_t token = begin + work / p.heads;
    if (token >= end) return;
    const auto head = static_cast<int>(work % p.heads);
    const T* q = p.q + token * p.q_stride + static_cast<std::int64_t>(head / p.heads_per_key) * p.dk;
    const T* k = p.k + token * p.k_stride + static_cast<std::int64_t>(head / p.heads_per_key) * p.dk;
    const T* v = p.v + token * p.v_stride + static_cast<std::int64_t>(head) * p.dv;
    const T* d = p.d_out + token * p.d_out_stride + static_cast<std::int64_t>(head) * p.dv;
    float q_k = 0.0F;
    for (int c = lane; c < p.dk; c += 32) q_k = fmaf(to_float(q[c]), to_float(k[c]), q_k);
    q_k = sum_lanes(q_k);
    float d_v = 0.0F;
    for (int c = lane; c < p.dv; c += 32) d_v = fmaf(to_float(d[c]), to_float(v[c]), d_v);
    d_v = sum_lanes(d_v);
    const bool matrix = p.algebra == TransitionAlgebra::kMatrix;
    const float b = matrix ? p.beta[token * p.beta_stride + head] : 1.0F;
    const float lambda =
        p.linear ? 1.0F : p.lambda[token * p.lambda_stride + static_cast<std::int64_t>(head) * p.levels];
    if (lane == 0) {
        if (matrix) p.gradients.beta[token * p.gradients.beta_stride + head] += lambda * q_k * d_v;
        if (!p.linear) {
            p.gradients.lambda[token * p.gradients.lambda_stride + static_cast<std::int64_t>(head) * p.levels] +=
                b * q_k * d_v;
        }
    }
    const std::int64_t block = token / kTokens - p.batch_block;
    const std::int64_t row = ((block * p.heads + head) * kTokens + token % kTokens) * p.dk;
    for (int c = lane; c < p.dk; c += 32) {
        p.workspace.d_q[row + c] += lambda * b * d_v * to_float(k[c]);
        p.workspace.d_k[row + c] += lambda * b * d_v * to_float(q[c]);
    }
    float* to = p.gradients.v + token * p.gradients.v_stride + static_cast<std::int64_t>(head) * p.dv;
    for (int c = lane; c < p.dv; c += 32) to[c] += lambda * b * q_k * to_float(d[c]);
}

template <class T>
Params<T> params_of(const Call& call, const PlainWorkspace& workspace) {
    const MixerInputs& in = call.inputs;
    Params<T> p{};
    p.q = static_cast<const T*>(in.q);
    p.k = static_cast<const T*>(in.k);
    p.v = static_cast<const T*>(in.v);
    p.log_decay = in.log_decay;
    p.beta = in.beta;
    p.lambda = in.lambda;
    p.d_out = static_cast<const T*>(call.d_out);
    p.q_stride = in.q_stride;
    p.k_stride = in.k_stride;
    p.v_stride = in.v_stride;
    p.decay_stride = in.decay_stride;
    p.beta_stride = in.beta_stride;
    p.lambda_stride = in.lambda_stride;
    p.d_out_stride = call.d_out_stride;
    p.rows = in.rows;
    p.gradients = call.gradients;
    p.algebra = call.shape.algebra;
    p.heads = static_cast<int>(call.shape.heads);
    p.heads_per_key = static_cast<int>(call.shape.heads / call.shape.key_heads);
    p.dk = static_cast<int>(call.shape.key_dim);
    p.dv = static_cast<int>(call.shape.value_dim);
    p.levels = static_cast<int>(call.shape.levels);
    p.first_block = call.first_block;
    p.linear = !call.shape.log_linear();
    p.transition = transition_floats(call.shape);
    p.workspace = workspace;
    return p;
}

// body(params, blocks): the blocks of the shard, as many at a time as the workspace takes; their d_q and d_k are
// zero before it and go to the key heads after it.
template <class T, class Body>
void in_batches(const Call& call, const PlainWorkspace& workspace, std::int64_t blocks, const Body& body) {
    Params<T> p = params_of<T>(call, workspace);
    for (std::int64_t b = 0; b < blocks; b += workspace.blocks_at_once) {
        const std::int64_t count = std::min(workspace.blocks_at_once, blocks - b);
        const std::int64_t floats = count * call.shape.heads * kBlockTokens * call.shape.key_dim;
        for (float* part : {workspace.d_q, workspace.d_k}) {
            FENWICK_CUDA_CHECK(cudaMemsetAsync(part, 0, static_cast<std::size_t>(floats) * sizeof(float), call.stream));
        }
        p.batch_block = b;
        body(p, count);
        FENWICK_CUDA_CHECK(cudaGetLastError());
        const std::int64_t rows = std::min(count * kBlockTokens, call.inputs.rows - b * kBlockTokens);
        const HeadShares shares{call.shape, kBlockTokens, rows};
        if (call.d_out != nullptr) {
            launch_sum_heads(shares, workspace.d_q, call.gradients.q + b * kBlockTokens * call.gradients.q_stride,
                             call.gradients.q_stride, call.stream);
        }
        launch_sum_heads(shares, workspace.d_k, call.gradients.k + b * kBlockTokens * call.gradients.k_stride,
                         call.gradients.k_stride, call.stream);
    }
}

// body(a number as a type): rows of the state for each warp.
template <class Body>
void with_rows(std::int64_t key_dim, const Body& body) {
    if (key_dim <= 4 * kWarps) return body(std::integral_constant<int, 4>());
    if (key_dim <= 8 * kWarps) return body(std::integral_constant<int, 8>());
    if (key_dim <= 16 * kWarps) return body(std::integral_constant<int, 16>());
    body(std::integral_constant<int, 32>());
}

template <class T, int kRows, class Kernel>
void launch_walks(Kernel* kernel, const Params<T>& p, std::int64_t blocks, cudaStream_t stream) {
    constexpr int kBytes = Walker<T, kRows>::kSharedFloats * static_cast<int>(sizeof(float));
    allow_shared(kernel, kBytes);
    kernel<<<static_cast<unsigned>(blocks * p.heads), kThreads, kBytes, stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

PlainWorkspace make_plain_workspace(const MixerShape& shape, std::int64_t rows, Carver& carver) {
    constexpr std::int64_t kMostFloats = std::int64_t{1} << 28;  // 1 GiB, or what one block takes
    const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
    const std::int64_t channels = shape.algebra == TransitionAlgebra::kDiagonal ? shape.key_dim : 1;
    const std::int64_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    const std::int64_t token = shape.heads * (2 * shape.key_dim + channels + (matrix ? 2 * kColumns : 0));
    PlainWorkspace w;
    w.blocks_at_once =
        std::clamp<std::int64_t>(kMostFloats / (token * kBlockTokens), 1, std::max<std::int64_t>(blocks, 1));
    const std::int64_t tokens = w.blocks_at_once * shape.heads * kBlockTokens;
    w.d_q = carver.take<float>(tokens * shape.key_dim);
    w.d_k = carver.take<float>(tokens * shape.key_dim);
    w.pairs = carver.take<float>(tokens * channels);
    if (matrix) {
        w.p = carver.take<float>(tokens * kColumns);
        w.r = carver.take<float>(tokens * kColumns);
    }
    return w;
}

void launch_plain_outputs(const Call& call, const Tree& tree, const PlainWorkspace& workspace) {
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        in_batches<T>(call, workspace, tree.blocks, [&](Params<T>& p, std::int64_t blocks) {
            p.states = tree.states + tree.place(0);
            p.d_states = tree.d_states + tree.place(0);
            p.slots = tree.slots;
            const std::int64_t warps = blocks * kBlockTokens * call.shape.heads;
            own_kernel<T>
                <<<static_cast<unsigned>(warps / kWarps), kThreads, 0, call.stream>>>(p, static_cast<int>(blocks));
            FENWICK_CUDA_CHECK(cudaGetLastError());
            with_rows(call.shape.key_dim, [&](auto rows) {
                launch_walks<T, rows.value>(outputs_kernel<T, rows.value>, p, blocks, call.stream);
            });
        });
    });
}

void launch_plain_summaries(const Call& call, std::int64_t blocks, const float* d_summaries,
                            const PlainWorkspace& workspace) {
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        in_batches<T>(call, workspace, blocks, [&](Params<T>& p, std::int64_t count) {
            p.d_summaries = d_summaries;
            with_rows(call.shape.key_dim, [&](auto rows) {
                launch_walks<T, rows.value>(summaries_kernel<T, rows.value>, p, count, call.stream);
            });
        });
    });
}

}  // namespace fenwick::cuda::backward
