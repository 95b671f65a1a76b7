// Block summaries: a warpgroup walks the block's chunks with 64 columns of [A | S] in its registers, from [I | 0].
//
// The columns of A are a chain of 64 transitions, so every operand of theirs is split into two bf16 numbers (X, U' and
// M; keys are bf16 exactly). Those of S carry what the bf16 operands V, M and K carry, and use single ones.
//
// Decays make A vanish within a block more often than not. Where what prepare knows of the chunks (Prepared::bounds)
// keeps A below kVanished, it is not formed but taken for zero, and S is walked from the last chunk on whose state
// before it the chunks to come leave less than that of (vanished.cuh). Else, once no element of a thread block's
// columns of A reaches kVanished they are taken for zero and the walk ends.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_step.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/vanished.cuh"
#include "kernels/summary.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kThreads = 128;
constexpr int kLookEvery = 4;  // chunks

struct Arguments {
    const bf16* k;
    const bf16* v;
    std::int64_t k_stride, v_stride;
    int heads, heads_per_key, value_dim;
    unsigned pairs, group;  // of blocks and heads
    bool starts_document;
    Prepared prepared;
    float* out;
};

template <int kDk>
struct Stage {
    alignas(1024) unsigned char k[kPanelBytes * kDk / 64];
    alignas(1024) unsigned char triangle[kPanelBytes];
    alignas(1024) unsigned char other[kPanelBytes];  // the rest of M, or V
    float decays[2 * kC];
};

template <int kDk>
__device__ __forceinline__ void load_stage(const Arguments& args, Stage<kDk>& stage, std::int64_t chunk, int head,
                                           bool transition, int first_column) {
    const int key_head = head / args.heads_per_key;
    const std::int64_t tile = opaque(chunk * args.heads + head);
    const std::int64_t row = opaque(chunk * kC);
    load_panels<kDk / 8, kThreads>(shared_address(stage.k), args.k + row * args.k_stride + key_head * kDk,
                                   args.k_stride, kC, kDk);
    load_triangle<kThreads>(shared_address(stage.triangle), args.prepared.triangle + tile * kC * kC);
    if (transition) {
        load_triangle<kThreads>(shared_address(stage.other), args.prepared.rest + tile * kC * kC);
    } else {
        load_panels<8, kThreads>(shared_address(stage.other),
                                 args.v + row * args.v_stride + head * args.value_dim + first_column, args.v_stride, kC,
                                 args.value_dim - first_column);
    }
    if (threadIdx.x < 32) {
        copy_16(shared_address(stage.decays + 4 * threadIdx.x), args.prepared.decays + tile * 2 * kC + 4 * threadIdx.x,
                true);
    }
    copies_commit();
}

template <int kDk, class Meanwhile>
__device__ __forceinline__ void step_transition(Columns<kDk>& x, const Stage<kDk>& stage, const Meanwhile& meanwhile) {
    const std::uint32_t keys = shared_address(stage.k);
    float y[32];
    read_state_split<kDk>(x, keys, y, meanwhile);
    negate(y);
    scale_tokens(y, stage.decays);
    std::uint32_t a[4][4];
    std::uint32_t rest[4][4];
    pack_tokens(y, a);
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_rest(y, step, a[step], rest[step]);
    clear(y);
    products_begin(y);
    add_triangle(rest, shared_address(stage.triangle), y);
    add_triangle(a, shared_address(stage.other), y);
    add_triangle(a, shared_address(stage.triangle), y);
    products_commit();
    scale_state<kDk>(x, stage.decays[kC - 1]);
    products_wait<0>();
    keep(y);
    scale_tokens(y, stage.decays + kC);
    pack_tokens(y, a);
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_rest(y, step, a[step], rest[step]);
    products_begin(x);
    add_to_state<kDk>(x, rest, keys);
    add_to_state<kDk>(x, a, keys);
    products_end(x);
}

/// Whether no element of the thread block's columns, which then become zeros, reaches kVanished. NaN does.
template <int kDk>
__device__ __forceinline__ bool vanished(Columns<kDk>& x) {
    bool reached = false;
#pragma unroll
    for (const float value : x) reached |= !(fabsf(value) < kVanished);
    if (__syncthreads_or(reached ? 1 : 0) != 0) return false;
    copies_wait<0>();
    clear(x);
    return true;
}

template <int kDk>
__global__ void __launch_bounds__(kThreads, 3) summarise(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    auto* stages = reinterpret_cast<Stage<kDk>*>(raw);
    // Pairs come in groups of about what the GPU holds at once; a group's transitions, which take longer, go first.
    constexpr unsigned kTransitions = kDk / 64;
    const unsigned states = (static_cast<unsigned>(args.value_dim) + 63) / 64;
    const unsigned before = blockIdx.x / (args.group * (kTransitions + states)) * args.group;
    unsigned work = blockIdx.x % (args.group * (kTransitions + states));
    const unsigned transitions = min(args.group, args.pairs - before) * kTransitions;
    const bool transition = work < transitions;
    if (!transition) work -= transitions;
    const unsigned tiles = transition ? kTransitions : states;
    const unsigned pair = before + work / tiles;
    const auto heads = static_cast<unsigned>(args.heads);
    const int head = static_cast<int>(pair % heads);
    const std::int64_t block = pair / heads;
    const int first_column = 64 * static_cast<int>(work % tiles);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int dv = args.value_dim;
    float* out = args.out + (block * args.heads + head) * static_cast<std::int64_t>(kDk * (kDk + dv));

    Columns<kDk> x;
    const BlockMemory memory = memory_of(args.prepared.bounds + block * kC * args.heads + head, args.heads, kC);
    const bool oldest = block == 0 && args.starts_document;
    if (transition && (oldest || memory.vanishes)) {
        clear(x);
        return store_columns<kDk>(x, out, kDk, first_column + 16 * warp, kDk);
    }
#pragma unroll
    for (int i = 0; i < kDk / 2; ++i) {
        const int column = first_column + 16 * warp + lane / 4 + (i % 4 / 2) * 8;
        x[i] = transition && column == (i / 4) * 8 + 2 * (lane % 4) + i % 2 ? 1.0F : 0.0F;
    }
    const int first_chunk = transition ? 0 : memory.first_chunk;
    load_stage<kDk>(args, stages[first_chunk % 2], block * kC + first_chunk, head, transition, first_column);
    for (int c = first_chunk; c < kC; ++c) {
        copies_wait<0>();
        publish_shared();
        __syncthreads();  // the chunk is there, and everyone is done with the one before it
        const auto load_next = [&] {
            if (c + 1 == kC) return;
            load_stage<kDk>(args, stages[(c + 1) % 2], block * kC + c + 1, head, transition, first_column);
        };
        if (transition) {
            step_transition<kDk>(x, stages[c % 2], load_next);
            if (c % kLookEvery == kLookEvery - 1 && vanished<kDk>(x)) break;
        } else {
            const Stage<kDk>& stage = stages[c % 2];
            step_state<kDk>(x, shared_address(stage.k), shared_address(stage.other), shared_address(stage.triangle),
                            stage.decays, warp, load_next);
        }
    }
    if (transition) {
        store_columns<kDk>(x, out, kDk, first_column + 16 * warp, kDk);
    } else {
        store_columns<kDk>(x, out + kDk * kDk, dv, first_column + 16 * warp, dv);
    }
}

template <int kDk>
void launch(Arguments args, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(2 * sizeof(Stage<kDk>));
    allow_shared(summarise<kDk>, kBytes);
    const unsigned tiles = static_cast<unsigned>(kDk + args.value_dim + 63) / 64;
    const unsigned held = std::max(1U, static_cast<unsigned>(3 * multiprocessors()) / tiles);
    args.group = args.pairs <= 2 * held ? args.pairs : held;
    summarise<kDk><<<args.pairs * tiles, kThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_summaries(const Walk& walk, std::int64_t blocks, float* out, cudaStream_t stream) {
    const MixerShape& shape = walk.shape;
    const Arguments args{static_cast<const bf16*>(walk.inputs.k),
                         static_cast<const bf16*>(walk.inputs.v),
                         walk.inputs.k_stride,
                         walk.inputs.v_stride,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.value_dim),
                         static_cast<unsigned>(blocks * shape.heads),
                         1,
                         walk.first_block == 0,
                         walk.prepared,
                         out};
    shape.key_dim == 128 ? launch<128>(args, stream) : launch<64>(args, stream);
}

}  // namespace fenwick::cuda::matrix
