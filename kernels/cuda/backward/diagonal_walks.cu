// Walks over a block's chunks with 64 columns of a state in registers: X = Diag(decay) X + K^T V forward, or
// Diag(decay) X + Q^T (lambda dO) back. Log-linear: the runs of one bit of the chunks' numbers, each from 0, kept where
// the pair's two runs meet; dE: the whole block. Linear: the state before (back: its gradient after) every chunk.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/diagonal.h"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

template <int kKeyDim>
struct WalkTiles {
    static constexpr int kThreads = 2 * kKeyDim;  // a warpgroup for 64 rows of the state
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    static constexpr int kStageBytes = kKeyBytes + kPanelBytes;
    static constexpr int kStages = 4;
    static constexpr int kBytes = 1024 + kStages * kStageBytes;
};

// Which walks a launch does.
enum class Walks { kRuns, kAll, kEntering };

struct Walk {
    int bit = kChunkBits;          // of the chunks' numbers; kChunkBits: the whole block is one run
    int side = 0;                  // 0: left runs, 1: right runs
    int steps = 0;                 // chunks in all
    int level = 0;                 // of lambda
    bool keeps = false;            // the state at every chunk
    const float* first = nullptr;  // the state at the walk's start [d_k, d_v], or null: 0
    float* last = nullptr;         // gets the state at its end, or null

    __device__ __forceinline__ int chunk(int step) const {
        if (bit == kChunkBits) return step;
        return ((2 * (step >> bit) + side) << bit) + (step & ((1 << bit) - 1));
    }
};

// Walk `number` of a block and head: the bits, then the slots.
template <bool kBack>
__device__ __forceinline__ Walk walk_of(const Diagonal& s, Walks walks, int number, std::int64_t in_batch, int head,
                                        int chunks) {
    const std::int64_t state = static_cast<std::int64_t>(s.key_dim) * s.value_dim;
    const std::int64_t z = s.call.first_block + s.batch_block + in_batch;
    Walk w;
    w.side = kBack ? 1 : 0;
    if (walks == Walks::kAll) {
        w.steps = chunks;
        w.keeps = true;
        if (!kBack) {
            if (z != 0) w.first = s.states + (in_batch * s.slots * s.heads + head) * state;
        } else if (in_batch < s.d_blocks) {
            w.first = s.d_summaries + (in_batch * s.heads + head) * (s.key_dim + state) + s.key_dim;
        }
        return w;
    }
    if (walks == Walks::kRuns && number < kChunkBits) {
        w.bit = number;
        w.level = min(kChunkBits + 1 + number, s.levels - 1);
        const int pairs = (((chunks - 1) >> number) + 1) >> 1;  // those with a token on the right
        w.steps = pairs << number;
        if (kBack) w.steps -= max(0, ((2 * pairs) << number) - chunks);
        return w;
    }
    const int which = walks == Walks::kRuns ? number - kChunkBits : number;
    std::int64_t bits = z;
    for (int slot = 0; bits != 0; ++slot) {  // set bits, largest first
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        if (slot == which) {
            w.steps = chunks;
            w.level = min(kBlockBits + 1 + bit, s.levels - 1);
            w.last = s.d_entering + ((in_batch * s.slots + slot) * s.heads + head) * state;
            break;
        }
        if (s.linear) break;
    }
    return w;
}

// A thread block: one walk of one block and column of work.
template <int kKeyDim, bool kBack>
__global__ void __launch_bounds__(WalkTiles<kKeyDim>::kThreads, 256 / kKeyDim)
    walks_kernel(const __grid_constant__ Diagonal s, Walks walks, int count) {
    using C = WalkTiles<kKeyDim>;
    constexpr int kStages = C::kStages;
    constexpr int kOwnRows = kChunk * 8 / C::kThreads;  // of a tile of values: those that a thread copies
    extern __shared__ char memory[];
    const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (base - shared_address(memory));
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int warpgroup = t / 128;

    const auto columns = static_cast<unsigned>(s.columns);
    const auto column = static_cast<int>(blockIdx.x % columns);
    const int head = column / s.tiles;
    const int tile = column % s.tiles * 64;
    const int number =
        count - 1 - static_cast<int>(blockIdx.x / columns % static_cast<unsigned>(count));  // longest first
    const std::int64_t in_batch = blockIdx.x / (columns * static_cast<unsigned>(count));
    const std::int64_t first = (s.batch_block + in_batch) * kBlockTokens;
    const int rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const Walk walk = walk_of<kBack>(s, walks, number, in_batch, head, (rows + kChunk - 1) / kChunk);
    if (walk.steps <= 0) return;

    const auto chunk_of = [&](int step) { return walk.chunk(kBack ? walk.steps - 1 - step : step); };
    const std::int64_t prepared = in_batch * kChunks * s.heads + head;  // tile of the block's first chunk
    const __nv_bfloat16* keys = (kBack ? s.prepared.queries : s.prepared.keys) + prepared * kChunk * kKeyDim;
    const std::int64_t stride = kBack ? s.call.d_out_stride : s.call.inputs.v_stride;
    const __nv_bfloat16* values = static_cast<const __nv_bfloat16*>(kBack ? s.call.d_out : s.call.inputs.v) +
                                  first * stride + static_cast<std::int64_t>(head) * s.value_dim + tile;
    const auto load = [&](int step) {
        if (step < walk.steps) {
            const int chunk = chunk_of(step);
            const std::uint32_t to = base + step % kStages * C::kStageBytes;
            copy_rows<kKeyDim / 8, C::kThreads>(to,
                                                keys + static_cast<std::int64_t>(chunk) * s.heads * kChunk * kKeyDim,
                                                kKeyDim, kChunk, kKeyDim / 8, t);
            copy_rows<8, C::kThreads>(to + C::kKeyBytes, values + static_cast<std::int64_t>(chunk) * kChunk * stride,
                                      stride, rows - chunk * kChunk, (s.value_dim - tile) / 8, t);
        }
        copy_async_commit();
    };
    for (int step = 0; step < kStages - 1; ++step) load(step);

    // A step ahead: the chunk's decays of the thread's two rows of the state, and lambda of the rows that it copies.
    const int row = 64 * warpgroup + 16 * warp + lane / 4;  // and row + 8
    const bool weighted = !s.linear;                        // back
    float next_decay[2] = {};
    float next_lambda[kOwnRows] = {};
    const auto load_factors = [&](int step) {
        if (step >= walk.steps) return;
        const int chunk = chunk_of(step);
        const float* decays = s.prepared.decays + (prepared + static_cast<std::int64_t>(chunk) * s.heads) * kKeyDim;
        next_decay[0] = __ldg(decays + row);
        next_decay[1] = __ldg(decays + row + 8);
        if constexpr (kBack) {
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) {
                const int token = chunk * kChunk + t / 8 + i * (C::kThreads / 8);
                next_lambda[i] = weighted && token < rows
                                     ? __ldg(s.call.inputs.lambda + (first + token) * s.call.inputs.lambda_stride +
                                             static_cast<std::int64_t>(head) * s.levels + walk.level)
                                     : 0.0F;
            }
        }
    };
    load_factors(0);

    // The accumulator's element j of a thread: its place in a state [d_k, d_v].
    const auto each_element = [&](const auto& body) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            const int c = tile + j / 4 * 8 + lane % 4 * 2 + (j & 1);
            if (c < s.value_dim) body(j, (row + (j & 2) * 4) * s.value_dim + c);
        }
    };
    float state[32] = {};
    if (walk.first != nullptr) each_element([&](int j, int at) { state[j] = walk.first[at]; });
    __nv_bfloat16* to = (kBack ? s.d_nodes : s.nodes) + (in_batch * kChunks * s.columns + column) * s.state_elements();
    const auto keep = [&](int place) {
        store_tile(state, to + static_cast<std::int64_t>(place) * s.columns * s.state_elements(), row, lane);
    };
    for (int step = 0; step < walk.steps; ++step) {
        const int stage = step % kStages * C::kStageBytes;
        const int chunk = chunk_of(step);
        const float decay[2] = {next_decay[0], next_decay[1]};
        copy_async_wait<kStages - 2>();
        if (kBack && weighted) {
#pragma unroll
            for (int i = 0; i < kOwnRows; ++i) {  // each thread scales what it copied
                auto* at = reinterpret_cast<uint4*>(aligned + stage + C::kKeyBytes +
                                                    tile_offset(t / 8 + i * (C::kThreads / 8), t % 8));
                const uint4 x = *at;
                const float weight = next_lambda[i];
                const auto scaled = [&](std::uint32_t both) {
                    return pack_bf16(low_bf16(both) * weight, high_bf16(both) * weight);
                };
                *at = make_uint4(scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w));
            }
        }
        load_factors(step + 1);
        fence_for_wgmma();
        __syncthreads();
        if (walk.keeps) keep(chunk);
#pragma unroll
        for (int j = 0; j < 32; ++j) state[j] *= decay[j / 2 % 2];
        product_done(state);  // scaled before the next product starts
        issue_transposed_product(state, base + stage + warpgroup * kPanelBytes, base + stage + C::kKeyBytes, warp,
                                 lane);
        product_commit();
        load(step + kStages - 1);  // the stage of the step before, which every warp has left
        product_wait<0>();
        product_done(state);
        if (walk.bit == kChunkBits) continue;
        const int mask = (1 << walk.bit) - 1;
        const bool ends = kBack ? (chunk & mask) == 0 : (chunk & mask) == mask;
        if (!ends) continue;
        keep(kBack ? chunk : chunk + 1);
#pragma unroll
        for (float& x : state) x = 0.0F;
    }
    if (walk.last != nullptr) each_element([&](int j, int at) { walk.last[at] = state[j]; });
}

template <int kKeyDim, bool kBack>
void launch_dim(const Diagonal& s, Walks walks, int count) {
    using C = WalkTiles<kKeyDim>;
    const auto kernel = walks_kernel<kKeyDim, kBack>;
    allow_shared(kernel, C::kBytes);
    const auto blocks = static_cast<unsigned>(s.batch_blocks * count * s.columns);
    kernel<<<blocks, C::kThreads, C::kBytes, s.call.stream>>>(s, walks, count);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <bool kBack>
void launch(const Diagonal& s, Walks walks, int count) {
    (s.key_dim == 64 ? launch_dim<64, kBack> : launch_dim<128, kBack>)(s, walks, count);
}

}  // namespace

void launch_diagonal_walks(const Diagonal& s) {
    launch<false>(s, s.linear ? Walks::kAll : Walks::kRuns, s.linear ? 1 : kChunkBits);
}

void launch_diagonal_walks_back(const Diagonal& s) {
    launch<true>(s, s.linear ? Walks::kAll : Walks::kRuns, s.linear ? 1 : kChunkBits + s.slots);
}

void launch_diagonal_entering_gradients(const Diagonal& s) {
    launch<true>(s, Walks::kEntering, s.slots);
}

}  // namespace fenwick::cuda::backward
