// The checking path of the matrix algebra: fp32 operands and sums on the CUDA cores, token by token as DESIGN section 3
// defines it. Slow on purpose. A thread has one column of the states, kept in the workspace as [slot][d_k][64 columns];
// the tokens of a block are a binary counter of slots, after the states that enter the block.
#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/matrix_launch.h"
#include "kernels/cuda/matrix_nodes.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/summary.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kColumns = 64;
constexpr int kMaxKeyDim = 256;
constexpr int kInBlock = kBlockBits + 2;  // twelve set bits of a token's number, the new token, and room to merge

struct Arguments {
    const float* q;
    const float* k;
    const float* v;
    const float* log_decay;
    const float* beta;
    const float* lambda;
    std::int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, lambda_stride, rows, first_block;
    int heads, key_heads, dk, dv, levels, tiles, slots;
    const float* entering;
    float* states;
    float* out;
};

struct Token {
    float decay, beta;
};

__device__ Token load_token(const Arguments& args, std::int64_t row, int head, float* k, float* q) {
    const int key_head = head / (args.heads / args.key_heads);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < args.dk; i += kColumns) {
        k[i] = args.k[row * args.k_stride + key_head * args.dk + i];
        if (q != nullptr) q[i] = args.q[row * args.q_stride + key_head * args.dk + i];
    }
    __syncthreads();
    return {expf(args.log_decay[row * args.decay_stride + head]), args.beta[row * args.beta_stride + head]};
}

// x <- decay (x - beta k (k^T x)) + k write; returns q^T x when there is a q.
__device__ float step(float* x, int dk, const Token& token, const float* k, const float* q, float write) {
    float dot = 0.0F;
    for (int i = 0; i < dk; ++i) dot = fmaf(k[i], x[i * kColumns], dot);
    dot *= token.beta;
    float read = 0.0F;
    for (int i = 0; i < dk; ++i) {
        const float next = fmaf(token.decay, x[i * kColumns] - dot * k[i], k[i] * write);
        x[i * kColumns] = next;
        if (q != nullptr) read = fmaf(q[i], next, read);
    }
    return read;
}

// Columns of [A | S].
__global__ void summarise_plain(const Arguments args) {
    __shared__ float k[kMaxKeyDim];
    const std::int64_t work = blockIdx.x;
    const int column = static_cast<int>(work % args.tiles) * kColumns + static_cast<int>(threadIdx.x);
    const int head = static_cast<int>(work / args.tiles % args.heads);
    const std::int64_t block = work / args.tiles / args.heads;
    const int dk = args.dk;
    float* x = args.states + work * dk * kColumns + threadIdx.x;
    for (int i = 0; i < dk; ++i) x[i * kColumns] = i == column ? 1.0F : 0.0F;
    const int value = column - dk;
    const bool writes = value >= 0 && value < args.dv;
    for (std::int64_t t = 0; t < kBlockTokens; ++t) {
        const std::int64_t row = block * kBlockTokens + t;
        const Token token = load_token(args, row, head, k, nullptr);
        const float v = writes ? args.v[row * args.v_stride + head * args.dv + value] : 0.0F;
        step(x, dk, token, k, nullptr, token.beta * v);
    }
    float* out = args.out + (block * args.heads + head) * dk * (dk + args.dv);
    for (int i = 0; i < dk; ++i) {
        if (column < dk) out[i * dk + column] = x[i * kColumns];
        if (writes) out[dk * dk + i * args.dv + value] = x[i * kColumns];
    }
}

__global__ void read_plain(const Arguments args) {
    __shared__ float k[kMaxKeyDim];
    __shared__ float q[kMaxKeyDim];
    const std::int64_t work = blockIdx.x;
    const int column = static_cast<int>(work % args.tiles) * kColumns + static_cast<int>(threadIdx.x);
    const int head = static_cast<int>(work / args.tiles % args.heads);
    const std::int64_t place = work / args.tiles / args.heads;
    const std::int64_t block = args.first_block + place;
    const int dk = args.dk;
    const bool linear = args.levels == 0;
    const bool valid = column < args.dv;
    const int one = dk * kColumns;
    float* states = args.states + work * (args.slots + kInBlock) * one + threadIdx.x;
    const int entering = linear ? 1 : __popcll(static_cast<unsigned long long>(block));
    for (int s = 0; s < entering; ++s) {
        const float* from = args.entering + ((place * args.slots + s) * args.heads + head) * dk * args.dv + column;
        for (int i = 0; i < dk; ++i) states[s * one + i * kColumns] = valid && block > 0 ? from[i * args.dv] : 0.0F;
    }
    const std::int64_t left = args.rows - place * kBlockTokens;
    const std::int64_t count = left < kBlockTokens ? left : kBlockTokens;
    for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t row = place * kBlockTokens + t;
        const Token token = load_token(args, row, head, k, q);
        const float v = valid ? args.v[row * args.v_stride + head * args.dv + column] : 0.0F;
        float o = 0.0F;
        if (linear) {
            o = step(states, dk, token, k, q, token.beta * v);
        } else {
            const float* lambda = args.lambda + row * args.lambda_stride + head * args.levels;
            int live = 0;
            // Bits above the block's are those of the entering states; both lists are largest first.
            for (std::int64_t bits = block << kBlockBits | t; bits != 0; ++live) {
                const int bit = top_bit(bits);
                bits ^= std::int64_t{1} << bit;
                o += lambda[min(bit + 1, args.levels - 1)] * step(states + live * one, dk, token, k, q, 0.0F);
            }
            float* own = states + live * one;
            for (int i = 0; i < dk; ++i) own[i * kColumns] = 0.0F;
            o += lambda[0] * step(own, dk, token, k, q, token.beta * v);
            for (int ones = __ffsll(~t) - 1; ones > 0; --ones, --live) {
                for (int i = 0; i < dk; ++i)
                    states[(live - 1) * one + i * kColumns] += states[live * one + i * kColumns];
            }
        }
        if (valid) args.out[(row * args.heads + head) * args.dv + column] = o;
    }
}

// out = A x (+ add), one element a thread; x and out [d_k][columns].
__device__ void transition_plain(const float* a, const float* x, const float* add, float* out, int dk, int columns) {
    for (int i = static_cast<int>(threadIdx.x); i < dk * columns; i += static_cast<int>(blockDim.x)) {
        const int row = i / columns;
        const int column = i % columns;
        float sum = add != nullptr ? add[i] : 0.0F;
        for (int c = 0; c < dk; ++c) sum = fmaf(a[row * dk + c], x[c * columns + column], sum);
        out[i] = sum;
    }
}

__global__ void enter_plain(const Nodes nodes, int slots, bool linear, int heads, int dk, int dv, float* to) {
    std::int64_t work = blockIdx.x;
    const int head = static_cast<int>(work % heads);
    work /= heads;
    const int slot = static_cast<int>(work % slots);
    const std::int64_t place = work / slots;
    const std::int64_t block = nodes.first_block + place;
    const std::int64_t at = static_cast<std::int64_t>(head) * dk * (dk + dv);
    float* out = to + ((place * slots + slot) * heads + head) * dk * dv;
    extern __shared__ float x[];  // [d_k, d_v]
    std::int64_t done = 0;
    for (int i = 0; done != block; ++i) {
        const int bit = top_bit(block - done);
        const float* node = find_node(nodes, bit, done >> bit) + at;
        done += std::int64_t{1} << bit;
        if (i < slot) continue;
        if (i == slot) {
            for (int e = static_cast<int>(threadIdx.x); e < dk * dv; e += static_cast<int>(blockDim.x))
                out[e] = node[dk * dk + e];
            __syncthreads();
            continue;
        }
        for (int e = static_cast<int>(threadIdx.x); e < dk * dv; e += static_cast<int>(blockDim.x)) x[e] = out[e];
        __syncthreads();
        transition_plain(node, x, linear ? node + dk * dk : nullptr, out, dk, dv);
        __syncthreads();
    }
}

Arguments arguments_of(const Walk& walk, int tiles, float* states, float* out) {
    const MixerShape& shape = walk.shape;
    const MixerInputs& in = walk.inputs;
    return {static_cast<const float*>(in.q),
            static_cast<const float*>(in.k),
            static_cast<const float*>(in.v),
            in.log_decay,
            in.beta,
            in.lambda,
            in.q_stride,
            in.k_stride,
            in.v_stride,
            in.decay_stride,
            in.beta_stride,
            in.lambda_stride,
            in.rows,
            walk.first_block,
            static_cast<int>(shape.heads),
            static_cast<int>(shape.key_heads),
            static_cast<int>(shape.key_dim),
            static_cast<int>(shape.value_dim),
            static_cast<int>(shape.levels),
            tiles,
            walk.slots,
            walk.entering,
            states,
            out};
}

int tiles_of(std::int64_t columns) {
    return static_cast<int>((columns + kColumns - 1) / kColumns);
}

}  // namespace

std::size_t plain_state_floats(const MixerShape& shape, std::int64_t blocks, int slots) {
    const std::int64_t summary = tiles_of(shape.key_dim + shape.value_dim);
    const std::int64_t outputs = static_cast<std::int64_t>(tiles_of(shape.value_dim)) * (slots + kInBlock);
    const std::int64_t most = summary > outputs ? summary : outputs;
    return static_cast<std::size_t>(blocks * shape.heads * most * shape.key_dim * kColumns);
}

void launch_plain_summaries(const Walk& walk, std::int64_t blocks, float* out, float* states, cudaStream_t stream) {
    const Arguments args = arguments_of(walk, tiles_of(walk.shape.key_dim + walk.shape.value_dim), states, out);
    summarise_plain<<<static_cast<unsigned>(blocks * args.heads * args.tiles), kColumns, 0, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_outputs(const Walk& walk, float* out, float* states, cudaStream_t stream) {
    const Arguments args = arguments_of(walk, tiles_of(walk.shape.value_dim), states, out);
    const std::int64_t blocks = (walk.inputs.rows + kBlockTokens - 1) / kBlockTokens;
    read_plain<<<static_cast<unsigned>(blocks * args.heads * args.tiles), kColumns, 0, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_enter(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                        cudaStream_t stream) {
    if (blocks == 0 || slots == 0) return;
    const int bytes = static_cast<int>(shape.key_dim * shape.value_dim * 4);
    allow_shared(enter_plain, bytes);
    enter_plain<<<static_cast<unsigned>(blocks * slots * shape.heads), 256, bytes, stream>>>(
        nodes, slots, !shape.log_linear(), static_cast<int>(shape.heads), static_cast<int>(shape.key_dim),
        static_cast<int>(shape.value_dim), to);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::matrix
