// The checking path of the matrix algebra, and head shapes that have no matrix-unit kernel: fp32 sums on the CUDA
// cores, token by token as DESIGN section 3 defines it. Plain, and slow. A thread has one column of the states, kept in
// the workspace as [slot][d_k][64 columns]; the tokens of a block are a binary counter of slots, after the states that
// enter the block.
#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/matrix_nodes.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/operand.h"
#include "kernels/summary.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kColumns = 64;
constexpr int kMaxKeyDim = 256;
constexpr int kInBlock = kBlockBits + 2;  // twelve set bits of a token's number, the new token, and room to merge

template <class T>
struct Arguments {
    const T* q;
    const T* k;
    const T* v;
    const float* log_decay;
    const float* beta;
    const float* lambda;
    std::int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, lambda_stride, rows, first_block;
    int heads, key_heads, dk, dv, levels, tiles, slots;
    const float* entering;
    float* states;
    float* summaries;
    T* out;
};

struct Token {
    float decay, beta;
};

template <class T>
__device__ Token load_token(const Arguments<T>& args, std::int64_t row, int head, float* k, float* q) {
    const int key_head = head / (args.heads / args.key_heads);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < args.dk; i += kColumns) {
        k[i] = to_float(args.k[row * args.k_stride + key_head * args.dk + i]);
        if (q != nullptr) q[i] = to_float(args.q[row * args.q_stride + key_head * args.dk + i]);
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
template <class T>
__global__ void summarise_plain(const Arguments<T> args) {
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
        const float v = writes ? to_float(args.v[row * args.v_stride + head * args.dv + value]) : 0.0F;
        step(x, dk, token, k, nullptr, token.beta * v);
    }
    float* out = args.summaries + (block * args.heads + head) * dk * (dk + args.dv);
    for (int i = 0; i < dk; ++i) {
        if (column < dk) out[i * dk + column] = x[i * kColumns];
        if (writes) out[dk * dk + i * args.dv + value] = x[i * kColumns];
    }
}

template <class T>
__global__ void read_plain(const Arguments<T> args) {
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
        const float v = valid ? to_float(args.v[row * args.v_stride + head * args.dv + column]) : 0.0F;
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
        if (valid) args.out[(row * args.heads + head) * args.dv + column] = from_float<T>(o);
    }
}

// The states that enter a block: 32 columns of one slot of one head a thread block, for columns evolve alone.
constexpr int kEnterColumns = 32;

__global__ void enter_plain(const Nodes nodes, int slots, bool linear, int heads, int dk, int dv, float* to) {
    __shared__ float x[kMaxKeyDim * kEnterColumns];  // [d_k][32]
    const int tiles = (dv + kEnterColumns - 1) / kEnterColumns;
    std::int64_t work = blockIdx.x;
    const int first_column = static_cast<int>(work % tiles) * kEnterColumns;
    work /= tiles;
    const int head = static_cast<int>(work % heads);
    work /= heads;
    const int slot = static_cast<int>(work % slots);
    const std::int64_t place = work / slots;
    const std::int64_t block = nodes.first_block + place;
    const std::int64_t at = static_cast<std::int64_t>(head) * dk * (dk + dv);
    float* out = to + ((place * slots + slot) * heads + head) * dk * dv + first_column;
    const int columns = min(kEnterColumns, dv - first_column);
    const auto each = [&](const auto& body) {  // element (row, column) of the tile
        for (int e = static_cast<int>(threadIdx.x); e < dk * kEnterColumns; e += static_cast<int>(blockDim.x)) {
            if (e % kEnterColumns < columns) body(e, e / kEnterColumns, e % kEnterColumns);
        }
    };
    std::int64_t done = 0;
    for (int i = 0; done != block; ++i) {
        const int bit = top_bit(block - done);
        const float* a = find_node(nodes, bit, done >> bit) + at;  // A, then S
        const float* s = a + dk * dk + first_column;
        done += std::int64_t{1} << bit;
        if (i < slot) continue;
        if (i == slot) {
            each([&](int, int row, int column) { out[row * dv + column] = s[row * dv + column]; });
            continue;
        }
        __syncthreads();                                                           // x has been read
        each([&](int e, int row, int column) { x[e] = out[row * dv + column]; });  // the thread's own
        __syncthreads();
        each([&](int, int row, int column) {
            float sum = linear ? s[row * dv + column] : 0.0F;
            for (int c = 0; c < dk; ++c) sum = fmaf(a[row * dk + c], x[c * kEnterColumns + column], sum);
            out[row * dv + column] = sum;
        });
    }
}

template <class T>
Arguments<T> arguments_of(const Walk& walk, int tiles, float* states) {
    const MixerShape& shape = walk.shape;
    const MixerInputs& in = walk.inputs;
    return {static_cast<const T*>(in.q),
            static_cast<const T*>(in.k),
            static_cast<const T*>(in.v),
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
            nullptr,
            nullptr};
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

void launch_plain_summaries(const Walk& walk, Operand operand, std::int64_t blocks, float* out, float* states,
                            cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        Arguments<T> args = arguments_of<T>(walk, tiles_of(walk.shape.key_dim + walk.shape.value_dim), states);
        args.summaries = out;
        summarise_plain<<<static_cast<unsigned>(blocks * args.heads * args.tiles), kColumns, 0, stream>>>(args);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_outputs(const Walk& walk, Operand operand, void* out, float* states, cudaStream_t stream) {
    const std::int64_t blocks = (walk.inputs.rows + kBlockTokens - 1) / kBlockTokens;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        Arguments<T> args = arguments_of<T>(walk, tiles_of(walk.shape.value_dim), states);
        args.out = static_cast<T*>(out);
        read_plain<<<static_cast<unsigned>(blocks * args.heads * args.tiles), kColumns, 0, stream>>>(args);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_enter(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                        cudaStream_t stream) {
    if (blocks == 0 || slots == 0) return;
    const std::int64_t tiles = (shape.value_dim + kEnterColumns - 1) / kEnterColumns;
    enter_plain<<<static_cast<unsigned>(blocks * slots * shape.heads * tiles), 256, 0, stream>>>(
        nodes, slots, !shape.log_linear(), static_cast<int>(shape.heads), static_cast<int>(shape.key_dim),
        static_cast<int>(shape.value_dim), to);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::matrix
