// The diagonal algebra in plain fp32, token by token: the checking path, and head shapes that have no matrix-unit
// kernel. One CTA: four value columns of one head of one block, a thread a channel. States of tokens of the open chunk
// decay with every token; older ones are read through the chunk's decay so far and carried at its end, so that a sum is
// never longer than in kernels/cpu: 64 tokens, 64 chunks, the nodes.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_plan.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::diagonal {
namespace {

constexpr int kColumns = 4;
constexpr int kMostWarps = 8;
constexpr int kChunk = static_cast<int>(kChunkTokens);
constexpr int kOwnSlots = 7 + 7;  // buckets of tokens in a chunk, of chunks in a block, each with the new one

template <class T>
struct Arguments {
    const T* q;
    const T* k;
    const T* v;
    const float* log_decay;
    const float* lambda;
    std::int64_t q_stride, k_stride, v_stride, decay_stride, lambda_stride, rows, first_block;
    int heads, heads_per_key, dk, dv, levels, slices, slots;
    const float* entering;
    float* summaries;
    T* out;
};

struct Four {
    float at[kColumns];
};

/// What one thread needs of a token.
struct Token {
    float decay, log_decay, q, k;
    Four v;
};

struct Position {
    std::int64_t block;
    int head, column, channel;
};

template <class T>
__device__ Position position_of(const Arguments<T>& args) {
    std::int64_t work = blockIdx.x;
    const int column = static_cast<int>(work % args.slices) * kColumns;
    work /= args.slices;
    return {work / args.heads, static_cast<int>(work % args.heads), column, static_cast<int>(threadIdx.x)};
}

template <class T>
__device__ Token load_token(const Arguments<T>& args, const Position& at, std::int64_t row) {
    Token token{1.0F, 0.0F, 0.0F, 0.0F, {}};
    if (at.channel < args.dk) {
        const int key_column = at.head / args.heads_per_key * args.dk + at.channel;
        token.log_decay =
            fmaxf(args.log_decay[row * args.decay_stride + at.head * args.dk + at.channel], kLogDecayFloor);
        token.decay = expf(token.log_decay);
        if (args.q != nullptr) token.q = to_float(args.q[row * args.q_stride + key_column]);
        token.k = to_float(args.k[row * args.k_stride + key_column]);
    }
    for (int c = 0; c < kColumns; ++c) {
        const int column = at.column + c;
        token.v.at[c] = column < args.dv ? to_float(args.v[row * args.v_stride + at.head * args.dv + column]) : 0.0F;
    }
    return token;
}

/// Sums over the CTA's channels, in a fixed order, and writes the token's outputs. `sums`: two places in turn.
template <class T>
__device__ void store_token(const Arguments<T>& args, const Position& at, std::int64_t row, Four part,
                            float (&sums)[2][kMostWarps][kColumns]) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    for (int c = 0; c < kColumns; ++c) {
        for (int mask = 16; mask > 0; mask /= 2) part.at[c] += __shfl_xor_sync(0xFFFFFFFFU, part.at[c], mask);
        if (threadIdx.x % 32 == 0) sums[row % 2][threadIdx.x / 32][c] = part.at[c];
    }
    __syncthreads();
    if (threadIdx.x >= kColumns || at.column + static_cast<int>(threadIdx.x) >= args.dv) return;
    float sum = 0.0F;
    for (int w = 0; w < warps; ++w) sum += sums[row % 2][w][threadIdx.x];
    args.out[(row * args.heads + at.head) * args.dv + at.column + threadIdx.x] = from_float<T>(sum);
}

template <class T>
__device__ Four load_entering(const Arguments<T>& args, const Position& at, int slot) {
    Four state{};
    if (at.channel >= args.dk) return state;
    const float* from =
        args.entering + (((at.block * args.slots + slot) * args.heads + at.head) * args.dk + at.channel) *
                            static_cast<std::int64_t>(args.dv);
    for (int c = 0; c < kColumns; ++c) state.at[c] = at.column + c < args.dv ? from[at.column + c] : 0.0F;
    return state;
}

// One state: summaries from zero, or outputs from what enters.
template <class T, bool kSummary>
__global__ void __launch_bounds__(32 * kMostWarps) one_state(const Arguments<T> args) {
    __shared__ float sums[2][kMostWarps][kColumns];
    const Position at = position_of(args);
    Four older{};
    Four own{};
    float keep = 1.0F;  // the chunk's decay so far
    double log_sum = 0.0;
    if (!kSummary && args.first_block + at.block > 0) older = load_entering(args, at, 0);
    const std::int64_t first = at.block * kBlockTokens;
    const std::int64_t end = min(args.rows, first + kBlockTokens);
    for (std::int64_t row = first; row < end; ++row) {
        const Token token = load_token(args, at, row);
        keep *= token.decay;
        log_sum += token.log_decay;
        Four part{};
        for (int c = 0; c < kColumns; ++c) {
            own.at[c] = fmaf(token.decay, own.at[c], token.k * token.v.at[c]);
            part.at[c] = token.q * fmaf(keep, older.at[c], own.at[c]);
        }
        if constexpr (!kSummary) store_token(args, at, row, part, sums);
        if ((row + 1) % kChunk != 0) continue;
        for (int c = 0; c < kColumns; ++c) {
            older.at[c] = fmaf(keep, older.at[c], own.at[c]);
            own.at[c] = 0.0F;
        }
        keep = 1.0F;
    }
    if constexpr (kSummary) {
        if (at.channel >= args.dk) return;
        float* to =
            args.summaries + (at.block * args.heads + at.head) * (static_cast<std::int64_t>(args.dk) * (1 + args.dv));
        if (at.column == 0) to[at.channel] = static_cast<float>(log_sum);
        for (int c = 0; c < kColumns; ++c) {
            if (at.column + c < args.dv) to[args.dk + at.channel * args.dv + at.column + c] = older.at[c];
        }
    }
}

// One state for each bucket, oldest first: those that enter the block, those of its chunks, those of the chunk's
// tokens. Slots follow the set bits of block, chunk and token numbers, as a binary counter's digits.
template <class T>
__global__ void __launch_bounds__(32 * kMostWarps) buckets(const Arguments<T> args) {
    extern __shared__ Four slots[];  // [slots][threads]: a thread reads its own alone
    __shared__ float sums[2][kMostWarps][kColumns];
    const Position at = position_of(args);
    const auto slot = [&](int n) -> Four& { return slots[n * static_cast<int>(blockDim.x) + at.channel]; };
    const std::int64_t number = args.first_block + at.block;
    const int entering = __popcll(static_cast<unsigned long long>(number));
    for (int n = 0; n < entering; ++n) slot(n) = load_entering(args, at, n);
    int count = entering;
    int older = entering;  // slots from before the open chunk
    const std::int64_t first = at.block * kBlockTokens;
    const std::int64_t end = min(args.rows, first + kBlockTokens);
    float keep = 1.0F;
    for (std::int64_t row = first; row < end; ++row) {
        const Token token = load_token(args, at, row);
        const float* lambda = args.lambda + row * args.lambda_stride + at.head * args.levels;
        const auto lambda_of = [&](int level) { return lambda[min(level, args.levels - 1)]; };
        const int in_block = static_cast<int>(row - first);
        const int in_chunk = in_block % kChunk;
        keep *= token.decay;
        Four past{};
        Four near{};
        Four now{};
        int n = 0;
        const auto add = [&](std::int64_t bits, int first_level, Four& sum) {
            for (std::int64_t rest = bits; rest != 0; ++n) {
                const int bit = 63 - __clzll(static_cast<long long>(rest));
                rest -= std::int64_t{1} << bit;
                const float factor = lambda_of(first_level + bit);
                for (int c = 0; c < kColumns; ++c) sum.at[c] = fmaf(factor, slot(n).at[c], sum.at[c]);
            }
        };
        for (int m = older; m < count; ++m) {
            for (int c = 0; c < kColumns; ++c) slot(m).at[c] *= token.decay;
        }
        add(number, kBlockBits + 1, past);
        add(in_block / kChunk, kChunkBits + 1, past);
        add(in_chunk, 1, near);
        const float factor = lambda_of(0);
        Four part{};
        for (int c = 0; c < kColumns; ++c) {
            now.at[c] = token.k * token.v.at[c];
            near.at[c] = fmaf(factor, now.at[c], near.at[c]);
            part.at[c] = token.q * fmaf(keep, past.at[c], near.at[c]);
        }
        store_token(args, at, row, part, sums);
        const auto merge = [&](int index) {  // the digit below carries into this one
            for (; (index & 1) != 0; index >>= 1) {
                --count;
                for (int c = 0; c < kColumns; ++c) slot(count - 1).at[c] += slot(count).at[c];
            }
        };
        slot(count++) = now;
        merge(in_chunk);
        if (in_chunk != kChunk - 1) continue;
        for (int m = 0; m < older; ++m) {
            for (int c = 0; c < kColumns; ++c) slot(m).at[c] *= keep;
        }
        keep = 1.0F;
        merge(in_block / kChunk);
        older = count;
    }
}

template <class T>
Arguments<T> arguments_of(const Work& work) {
    const MixerShape& shape = work.shape;
    const MixerInputs& in = work.inputs;
    return {static_cast<const T*>(in.q),
            static_cast<const T*>(in.k),
            static_cast<const T*>(in.v),
            in.log_decay,
            in.lambda,
            in.q_stride,
            in.k_stride,
            in.v_stride,
            in.decay_stride,
            in.lambda_stride,
            in.rows,
            work.first_block,
            static_cast<int>(shape.heads),
            static_cast<int>(shape.heads / shape.key_heads),
            static_cast<int>(shape.key_dim),
            static_cast<int>(shape.value_dim),
            static_cast<int>(shape.levels),
            static_cast<int>((shape.value_dim + kColumns - 1) / kColumns),
            work.slots,
            work.entering,
            nullptr,
            nullptr};
}

unsigned threads_of(const MixerShape& shape) {
    return static_cast<unsigned>((shape.key_dim + 31) / 32 * 32);
}

}  // namespace

void launch_plain_summaries(const Work& work, Operand operand, float* out, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        Arguments<T> args = arguments_of<T>(work);
        args.q = nullptr;
        args.summaries = out;
        const auto ctas = static_cast<unsigned>(work.blocks * args.heads * args.slices);
        one_state<T, true><<<ctas, threads_of(work.shape), 0, stream>>>(args);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_outputs(const Work& work, Operand operand, void* out, cudaStream_t stream) {
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        Arguments<T> args = arguments_of<T>(work);
        args.out = static_cast<T*>(out);
        const auto ctas = static_cast<unsigned>(work.blocks * args.heads * args.slices);
        const unsigned threads = threads_of(work.shape);
        if (!work.shape.log_linear()) {
            one_state<T, false><<<ctas, threads, 0, stream>>>(args);
            return;
        }
        const int bytes = (work.slots + kOwnSlots) * static_cast<int>(threads * sizeof(Four));
        allow_shared(buckets<T>, bytes);
        buckets<T><<<ctas, threads, static_cast<std::size_t>(bytes), stream>>>(args);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::diagonal
