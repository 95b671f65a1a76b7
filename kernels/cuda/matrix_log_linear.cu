// Outputs of the log-linear read-out. A thread block walks a block's chunks for 16 columns of one head; each of its
// warps holds those columns of one level's state ("slot"), so the levels' products are the rows of the same warpgroup
// products.
//
// The slots are a binary counter, as in kernels/cpu/block_walk.cc: entering states oldest first, then the buckets
// inside the block, then the chunk's own new state, which starts from zero and alone receives U~. After the chunk each
// trailing one of its number merges the two rightmost slots. The parts of an output are added in the order of the
// slots, the chunk's own part (lambda * P) V last, so its bits depend on the block's number alone.
//
// A block with more than kMainEntering entering states has its oldest read by earlier passes over the chunks, which
// leave their fp32 sum to the next.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/matrix_nodes.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_step.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kSlots = 12;
constexpr int kThreads = 32 * kSlots;
constexpr int kInBlock = 7;  // six set bits of a chunk number and the new state
constexpr int kMainEntering = kSlots - kInBlock;
constexpr int kColumns = 16;
constexpr int kPitch = 20;                 // floats of a token's row of partial outputs
constexpr int kLambdaPitch = 33;           // at most 32 levels
constexpr int kFirstOwnWarp = kSlots - 4;  // the four warps that also compute the chunk's own part, 16 tokens each

struct Arguments {
    const bf16* k;
    const bf16* v;
    const float* lambda;
    std::int64_t k_stride, v_stride, lambda_stride, rows, first_block;
    int heads, heads_per_key, value_dim, levels, tiles, slots;
    int pass;  // of older entering states; -1: the main pass
    Prepared prepared;
    const float* entering;
    float* partial;  // [rows, heads * d_v]
    bf16* out;
};

template <int kDk>
struct Stage {
    alignas(1024) unsigned char k[kPanelBytes * kDk / 64];
    alignas(1024) unsigned char reads[kPanelBytes * kDk / 64];    // Q~
    alignas(1024) unsigned char removes[kPanelBytes * kDk / 64];  // W~
    alignas(1024) unsigned char scores[kPanelBytes];              // lambda * (P M)
    alignas(1024) unsigned char values[kPanelBytes];              // 16 columns of V, 16 of U~ in the next pieces
    float decay;                                                  // exp(G_C)
    float lambda[kC * kLambdaPitch];
};

// Two stages, the next chunk being loaded while one is worked on, or one where the GPU has too little memory for two.
template <int kDk, int kStages>
struct Shared {
    Stage<kDk> stages[kStages];
    // Partial outputs by slot, [slot][token][column]; the chunk's own part is the last. Merging states pass through
    // here too.
    float parts[(kSlots + 1) * kC * kPitch];
};

// What a thread block knows of its block's slots.
struct Slots {
    std::int64_t block;  // number in the document
    int first;           // of the entering states' list
    int entering;        // taken by this pass
    bool adds;           // earlier passes left a sum
};

__device__ __forceinline__ int set_bit(std::int64_t block, int slot) {
    for (; slot > 0; --slot) block &= ~(std::int64_t{1} << top_bit(block));
    return top_bit(block);
}

template <int kDk>
__device__ __forceinline__ void load_stage(const Arguments& args, Stage<kDk>& stage, std::int64_t chunk, int head,
                                           int first_column) {
    const int key_head = head / args.heads_per_key;
    const std::int64_t tile = opaque(chunk * args.heads + head);
    const std::int64_t row = opaque(chunk * kC);
    const int rows = args.rows - row < kC ? static_cast<int>(args.rows - row) : kC;
    load_panels<kDk / 8, kThreads>(shared_address(stage.k), args.k + row * args.k_stride + key_head * kDk,
                                   args.k_stride, rows, kDk);
    load_panels<kDk / 8, kThreads>(shared_address(stage.reads), args.prepared.reads + tile * kC * kDk, kDk, kC, kDk);
    load_panels<kDk / 8, kThreads>(shared_address(stage.removes), args.prepared.removes + tile * kC * kDk, kDk, kC,
                                   kDk);
    load_triangle<kThreads>(shared_address(stage.scores), args.prepared.scores + tile * kC * kC);
    const int pair = static_cast<int>(threadIdx.x);  // 16 columns are two pieces: a thread copies one of V or of U~
    if (pair < 4 * kC) {
        const int at = pair / 4;
        const int column = first_column + pair % 2 * 8;
        const bool own = pair % 4 >= 2;
        const bool valid = at < rows && column < args.value_dim;
        const bf16* from = own ? args.prepared.writes + (tile * kC + at) * args.value_dim + column
                               : args.v + (row + at) * args.v_stride + head * args.value_dim + column;
        copy_16(swizzled(shared_address(stage.values) + static_cast<std::uint32_t>(at * 128 + pair % 4 * 16)),
                valid ? from : args.v, valid);
    }
    if (threadIdx.x == kThreads - 1) {
        copy_4(shared_address(&stage.decay), args.prepared.decays + tile * 2 * kC + kC - 1, true);
    }
    constexpr int kEach = kThreads / kC;  // threads for a token's lambda
    const int token = static_cast<int>(threadIdx.x) / kEach;
    const bool valid = token < rows;
    const float* lambda = args.lambda + (row + (valid ? token : 0)) * args.lambda_stride + head * args.levels;
    for (int level = static_cast<int>(threadIdx.x) % kEach; level < args.levels; level += kEach) {
        copy_4(shared_address(stage.lambda + token * kLambdaPitch + level), lambda + level, valid);
    }
    copies_commit();
}

// One level's part of the chunk's output into `part`, and with `advance` its state past the chunk. `fresh`: the new
// state.
template <int kDk>
__device__ __forceinline__ void step(Columns<kDk>& x, Stage<kDk>& stage, bool fresh, bool advance, const float* lambda,
                                     float* part) {
    constexpr int kGroup = 2;  // steps in flight: their operands are registers
    const std::uint32_t removes = shared_address(stage.removes);
    const std::uint32_t reads = shared_address(stage.reads);
    float y[32];
    float o[32];
    clear(y);
    clear(o);
#pragma unroll
    for (int first = 0; first < kDk / 16; first += kGroup) {
        std::uint32_t a[kGroup][4];
#pragma unroll
        for (int step = 0; step < kGroup; ++step) pack_step(x, first + step, a[step]);
        products_begin(y);
        products_begin(o);
#pragma unroll
        for (int step = 0; step < kGroup; ++step) {
            product_nt<64>(y, a[step], removes, step_offset(first + step));
            product_nt<64>(o, a[step], reads, step_offset(first + step));
        }
        products_end(y);
        products_end(o);
    }
    if (part != nullptr) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int token = 8 * n + 2 * (lane % 4) + e;
                const float factor = lambda[token * kLambdaPitch];
                part[token * kPitch + lane / 4] = factor * o[4 * n + e];
                part[token * kPitch + lane / 4 + 8] = factor * o[4 * n + 2 + e];
            }
        }
    }
    if (!advance) return;
    std::uint32_t write[4][4];
    if (fresh) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
            load_a_transposed(write[step], shared_address(stage.values), 16 * step, 32);
    } else {
        pack_tokens(y, write);
    }
    write_state<kDk>(x, stage.decay, write, shared_address(stage.k));
}

// (lambda * P) V for tokens [16 group, 16 group + 16), by one warp.
template <int kDk>
__device__ __forceinline__ void own_part(const Stage<kDk>& stage, int group, float* part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t mine =
        shared_address(stage.scores) +
        static_cast<std::uint32_t>((16 * group + lane % 8 + (lane / 16) * 8) * 128 + (lane / 8 % 2) * 16);
    float o[8] = {};
    for (int s = 0; s <= group; ++s) {
        std::uint32_t a[4];
        std::uint32_t b[4];
        load_a_transposed(a, shared_address(stage.values), 16 * s, 0);
        ldmatrix(b, swizzled(mine + static_cast<std::uint32_t>(32 * s)));
        mma(o[0], o[1], o[2], o[3], a, b[0], b[1]);
        mma(o[4], o[5], o[6], o[7], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int token = 16 * group + (i / 4) * 8 + 2 * (lane % 4) + i % 2;
        part[token * kPitch + lane / 4 + (i % 4 / 2) * 8] = o[i];
    }
}

// Adds the parts of slots [0, live), then (main pass) the chunk's own, and stores the rows.
__device__ __forceinline__ void store_sum(const Arguments& args, const Slots& slots, const float* parts, int live,
                                          std::int64_t row, int head, int first_column) {
    const int token = static_cast<int>(threadIdx.x) / 4;
    const int column = first_column + static_cast<int>(threadIdx.x) % 4 * 4;
    if (token >= kC || row + token >= args.rows || column >= args.value_dim) return;
    const std::int64_t at = ((row + token) * args.heads + head) * args.value_dim + column;
    float4 sum = slots.adds ? *reinterpret_cast<const float4*>(args.partial + at) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    const float* mine = parts + token * kPitch + static_cast<int>(threadIdx.x) % 4 * 4;
    const auto add = [&](int slot) {
        const float4 f = *reinterpret_cast<const float4*>(mine + slot * kC * kPitch);
        sum = make_float4(sum.x + f.x, sum.y + f.y, sum.z + f.z, sum.w + f.w);
    };
    for (int s = 0; s < live; ++s) add(s);
    if (args.pass >= 0) {
        *reinterpret_cast<float4*>(args.partial + at) = sum;
        return;
    }
    add(kSlots);
    *reinterpret_cast<uint2*>(args.out + at) = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
}

// Slots [to, from] become slot `to`: the newest two first. All threads of the block take part.
template <int kDk>
__device__ __forceinline__ void merge(Columns<kDk>& x, int to, int from, float* space) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kOne = kDk / 2 * 32;
    __syncthreads();  // the parts have been read
    if (warp > to && warp <= from) {
        float* mine = space + (warp - to - 1) * kOne + lane;
#pragma unroll
        for (int i = 0; i < kDk / 2; ++i) {
            mine[i * 32] = x[i];
            x[i] = 0.0F;
        }
    }
    __syncthreads();
    if (warp == to) {
        float sum[kDk / 2];
        const float* newest = space + (from - to - 1) * kOne + lane;
#pragma unroll
        for (int i = 0; i < kDk / 2; ++i) sum[i] = newest[i * 32];
        for (const float* older = newest - kOne; older >= space; older -= kOne) {
#pragma unroll
            for (int i = 0; i < kDk / 2; ++i) sum[i] = older[i * 32] + sum[i];
        }
#pragma unroll
        for (int i = 0; i < kDk / 2; ++i) x[i] += sum[i];
    }
}

template <int kDk, int kStages>
__global__ void __launch_bounds__(kThreads, 1) read_levels(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    auto& s = *reinterpret_cast<Shared<kDk, kStages>*>(raw);
    const unsigned work = blockIdx.x;  // 32-bit divisions
    const auto tiles = static_cast<unsigned>(args.tiles);
    const auto heads = static_cast<unsigned>(args.heads);
    const int first_column = static_cast<int>(work % tiles) * kColumns;
    const int head = static_cast<int>(work / tiles % heads);
    const std::int64_t place = work / tiles / heads;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const bool main_pass = args.pass < 0;

    Slots slots{args.first_block + place, 0, 0, false};
    const int all = __popcll(static_cast<unsigned long long>(slots.block));
    const int older = all > kMainEntering ? all - kMainEntering : 0;
    slots.first = main_pass ? older : kSlots * args.pass;
    slots.entering = main_pass ? all - older : min(kSlots, older - slots.first);
    slots.adds = main_pass ? older > 0 : args.pass > 0;
    if (!main_pass && slots.entering <= 0) return;

    Columns<kDk> x;
    clear(x);
    int level = 0;  // of the warp's slot, where it is an entering one
    if (warp < slots.entering) {
        const int slot = slots.first + warp;
        level = kBlockBits + 1 + set_bit(slots.block, slot);
        load_columns<kDk>(x, args.entering + ((place * args.slots + slot) * args.heads + head) * kDk * args.value_dim,
                          args.value_dim, first_column, args.value_dim);
    }
    const std::int64_t left = args.rows - place * kBlockTokens;
    const int chunks = static_cast<int>((left < kBlockTokens ? left + kC - 1 : kBlockTokens) / kC);
    const auto load = [&](int c) { load_stage<kDk>(args, s.stages[c % kStages], place * kC + c, head, first_column); };
    if (kStages > 1) load(0);
    for (int c = 0; c < chunks; ++c) {
        const bool advance = c + 1 < chunks;
        if (kStages == 1) {
            load(c);
            copies_wait<0>();
        } else if (advance) {
            load(c + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        publish_shared();
        __syncthreads();
        Stage<kDk>& stage = s.stages[c % kStages];
        const int live = slots.entering + (main_pass ? __popc(static_cast<unsigned>(c)) : 0);
        const bool group_works = 4 * (warp / 4) < live + (main_pass ? 1 : 0);
        if (group_works) {
            int slot_level = level;
            if (warp >= slots.entering) {  // the (warp - entering)-th set bit of the chunk's number, largest first
                int bits = c;
                for (int i = slots.entering; i < warp && bits != 0; ++i) bits &= ~(1 << (31 - __clz(bits)));
                slot_level = bits == 0 ? 0 : kChunkBits + 1 + 31 - __clz(bits);
            }
            step<kDk>(x, stage, main_pass && warp == live, advance, stage.lambda + min(slot_level, args.levels - 1),
                      warp < live ? s.parts + warp * kC * kPitch : nullptr);
        }
        if (main_pass && warp >= kFirstOwnWarp)
            own_part<kDk>(stage, warp - kFirstOwnWarp, s.parts + kSlots * kC * kPitch);
        __syncthreads();
        store_sum(args, slots, s.parts, live, (place * kC + c) * kC, head, first_column);
        const int ones = __ffs(~c) - 1;
        if (main_pass && advance && ones > 0) merge<kDk>(x, live - ones, live, s.parts);
    }
}

template <int kDk, int kStages>
constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk, kStages>));

template <int kDk, int kStages>
void launch(Arguments args, std::int64_t blocks, cudaStream_t stream) {
    allow_shared(read_levels<kDk, kStages>, kBytes<kDk, kStages>);
    const auto grid = static_cast<unsigned>(blocks * args.heads * args.tiles);
    const int passes = (std::max(0, args.slots - kMainEntering) + kSlots - 1) / kSlots;
    for (int pass = 0; pass <= passes; ++pass) {
        args.pass = pass == passes ? -1 : pass;
        read_levels<kDk, kStages><<<grid, kThreads, kBytes<kDk, kStages>, stream>>>(args);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    }
}

template <int kDk>
void pick(const Arguments& args, std::int64_t blocks, cudaStream_t stream) {
    most_shared_bytes() >= kBytes<kDk, 2> ? launch<kDk, 2>(args, blocks, stream) : launch<kDk, 1>(args, blocks, stream);
}

}  // namespace

bool needs_partial_sums(int slots) {
    return slots > kMainEntering;
}

int log_linear_shared_bytes(std::int64_t key_dim) {
    return key_dim == 128 ? kBytes<128, 1> : kBytes<64, 1>;
}

void launch_log_linear(const Walk& walk, void* out, cudaStream_t stream) {
    const MixerShape& shape = walk.shape;
    const MixerInputs& in = walk.inputs;
    const Arguments args{static_cast<const bf16*>(in.k),
                         static_cast<const bf16*>(in.v),
                         in.lambda,
                         in.k_stride,
                         in.v_stride,
                         in.lambda_stride,
                         in.rows,
                         walk.first_block,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.value_dim),
                         static_cast<int>(shape.levels),
                         static_cast<int>((shape.value_dim + kColumns - 1) / kColumns),
                         walk.slots,
                         -1,
                         walk.prepared,
                         walk.entering,
                         walk.partial,
                         static_cast<bf16*>(out)};
    const std::int64_t blocks = (in.rows + kBlockTokens - 1) / kBlockTokens;
    shape.key_dim == 128 ? pick<128>(args, blocks, stream) : pick<64>(args, blocks, stream);
}

}  // namespace fenwick::cuda::matrix
