// X and Z of every chunk of a log-linear model's walks, forward, then dX' and -dZ, back: one thread block for 64
// columns of a walk of one block and head, back also for twice as many, which share K, W and Q~; the state in
// registers.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

// kSides: tiles of 64 columns, each of its own threads.
template <int kKeyDim, bool kBack, int kSides>
struct WalkTiles {
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kSideThreads = 128 * kPanels;
    static constexpr int kThreads = kSideThreads * kSides;
    static constexpr int kKeyBytes = kPanels * kPanelBytes;
    // A stage: K and W, and U; or K, W, Q~ and dO.
    static constexpr int kK = 0;
    static constexpr int kW = kK + kKeyBytes;
    static constexpr int kQ = kW + kKeyBytes;
    static constexpr int kValues = kQ + (kBack ? kKeyBytes : 0);
    static constexpr int kStageBytes = kValues + kSides * kPanelBytes;
    static constexpr int kState = 2 * kStageBytes;
    static constexpr int kOut = kState + kSides * kKeyBytes;
    static constexpr int kBytes = 1024 + kOut + kSides * kPanelBytes;
};

// Forward two thread blocks share a multiprocessor.
template <int kKeyDim, bool kBack, int kSides>
__global__ void __launch_bounds__(WalkTiles<kKeyDim, kBack, kSides>::kThreads, kBack ? 1 : 2)
    walks_kernel(const __grid_constant__ Matrix m) {
    using C = WalkTiles<kKeyDim, kBack, kSides>;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwn = 64 / kPanels;  // columns of a 64 x 64 product that a warp forms
    extern __shared__ char memory[];
    __shared__ float writes[2][kChunk];  // b e^(G_C - G)
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128 % kPanels;
    const int side = t / C::kSideThreads;
    const int row = 16 * warp + lane / 4;  // of a chunk, or of the panel's rows of the state; and row + 8

    const auto groups = static_cast<unsigned>((m.walk_tiles + kSides - 1) / kSides);
    const int first_tile = static_cast<int>(blockIdx.x % groups) * kSides;
    const int tile = first_tile + side;
    unsigned rest = blockIdx.x / groups;
    const int head = static_cast<int>(rest % static_cast<unsigned>(m.heads));
    rest /= static_cast<unsigned>(m.heads);
    const int number = static_cast<int>(rest % static_cast<unsigned>(m.walks));
    const std::int64_t in_batch = rest / static_cast<unsigned>(m.walks);
    const MatrixWalk walk = walk_of(m, number, in_batch, head);
    if (!walk.there || first_tile >= walk.tiles) return;
    const bool live = tile < walk.tiles;  // a last side without columns only keeps step
    const std::int64_t first_chunk = in_batch * kChunks;
    const int chunks = chunk_of(m, first_chunk, head).chunks;
    const int end_chunk = min(walk.end_chunk, chunks);
    const int steps = end_chunk - walk.first_chunk;
    const MixerInputs& in = m.call.inputs;
    const std::int64_t key_column = static_cast<std::int64_t>(head / m.heads_per_key) * kKeyDim;

    // From the first chunk on, or from the last one back.
    const auto chunk_at = [&](int step) { return kBack ? end_chunk - 1 - step : walk.first_chunk + step; };
    const auto load = [&](int step) {
        if (step < steps && walk.has_pair(chunk_at(step), chunks)) {
            const MatrixChunk c = chunk_of(m, first_chunk + chunk_at(step), head);
            const std::uint32_t to = start + step % 2 * C::kStageBytes;
            const auto* k = static_cast<const __nv_bfloat16*>(in.k) + c.first * in.k_stride + key_column;
            copy_rows<kKeyDim / 8, C::kThreads>(to + C::kK, k, in.k_stride, c.rows, kKeyDim / 8, t);
            const auto copy = [&](int at, const __nv_bfloat16* from, auto bytes) {
                copy_pieces<C::kThreads>(to + at, from, bytes, t);
            };
            copy(C::kW, m.removes + c.place * m.state_elements(), Bytes<C::kKeyBytes>{});
            if (kBack && walk.reads_at(c.chunk))
                copy(C::kQ, m.reads + c.place * m.state_elements(), Bytes<C::kKeyBytes>{});
#pragma unroll
            for (int i = 0; i < kSides; ++i) {
                const int own = first_tile + i;
                if (own >= walk.tiles) continue;
                const int at = C::kValues + i * kPanelBytes;
                if (!kBack && walk.writes_at(c.chunk)) {
                    copy(at, m.writes + (c.place * m.tiles + own) * kChunk * kChunk, Bytes<kPanelBytes>{});
                }
                if (kBack && walk.reads_at(c.chunk)) {
                    const auto* d = static_cast<const __nv_bfloat16*>(m.call.d_out) + c.first * m.call.d_out_stride +
                                    static_cast<std::int64_t>(head) * m.value_dim + own * 64;
                    copy_rows<8, C::kThreads>(to + at, d, m.call.d_out_stride, c.rows, (m.value_dim - own * 64) / 8, t);
                }
            }
        }
        copy_async_commit();
    };
    load(0);
    // Decays come a step ahead too.
    struct Decays {
        float keep, write;
    };
    const auto decays_of = [&](int step) {
        const std::int64_t at = (first_chunk + chunk_at(min(step, steps - 1))) * m.heads + head;
        const float* decays = m.prepared.decays + at * 2 * kChunk;
        return Decays{decays[kChunk - 1], decays[kChunk + t % kChunk]};
    };
    Decays next = decays_of(0);

    float state[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        const int r = 64 * panel + row + (i & 2) * 4;
        const int column = tile * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1);
        const float* from = kBack ? walk.last : walk.first;
        state[i] = from != nullptr && column < walk.columns ? from[r * walk.columns + column] : 0.0F;
        if (!kBack && walk.identity && r == column) state[i] = 1.0F;
    }
    for (int step = 0; step < steps; ++step) {
        const int chunk = chunk_at(step);
        load(step + 1);
        const Decays decays = next;
        next = decays_of(step + 1);
        if (!walk.has_pair(chunk, chunks)) continue;  // the last chunks of the block, which nobody follows
        if (walk.bit >= 0) {
            const int in_pair = chunk & ((2 << walk.bit) - 1);
            if (in_pair == (kBack ? (2 << walk.bit) - 1 : 0)) {
#pragma unroll
                for (float& x : state) x = 0.0F;
            }
        }
        const std::uint32_t stage = start + step % 2 * C::kStageBytes;
        char* stage_at = aligned + step % 2 * C::kStageBytes;
        if (t < kChunk) writes[step % 2][t] = decays.write;
        const std::int64_t place = walk_place(m, first_chunk + chunk, number, head, tile);
        store_tile(state, aligned + C::kState + side * C::kKeyBytes, 64 * panel + row, lane);
        if (live) {
            store_tile(state, (kBack ? m.d_states : m.states) + place * m.state_elements(), 64 * panel + row, lane);
        }
        copy_async_wait<1>();
        if (kBack && walk.reads_at(chunk)) {
            // lambda * dO; each thread its own pieces.
            const std::int64_t first =
                (m.batch_block + in_batch) * kBlockTokens + static_cast<std::int64_t>(chunk) * kChunk;
            for (int i = t; i < kSides * kChunk * 8; i += C::kThreads) {
                const int r = i / 8 % kChunk;
                const std::int64_t token = first + r;
                const float lambda = token < m.rows ? __ldg(in.lambda + token * in.lambda_stride +
                                                            static_cast<std::int64_t>(head) * m.levels + walk.level)
                                                    : 0.0F;
                auto* at = reinterpret_cast<uint4*>(stage_at + C::kValues + i / (kChunk * 8) * kPanelBytes +
                                                    tile_offset(r, i % 8));
                const auto scaled = [&](std::uint32_t both) {
                    return pack_bf16(low_bf16(both) * lambda, high_bf16(both) * lambda);
                };
                *at = make_uint4(scaled(at->x), scaled(at->y), scaled(at->z), scaled(at->w));
            }
        }
        fence_for_wgmma();
        __syncthreads();

        // W X, or K dX': [64, 64] over the depth of the keys.
        float values[kOwn / 2] = {};
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            multiply_tiles<kOwn, Rows::kDepth, false>(values, stage + (kBack ? C::kK : C::kW) + i * kPanelBytes,
                                                      start + C::kState + side * C::kKeyBytes + i * kPanelBytes,
                                                      panel * kOwn, warp, lane);
        }
        const bool writing = !kBack && walk.writes_at(chunk);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = row + (i & 2) * 4;
            const int piece = panel * kOwn / 8 + i / 4;
            const std::uint32_t in_tile = side * kPanelBytes + tile_offset(r, piece) + lane % 4 * 4;
            values[i] = -values[i];
            values[i + 1] = -values[i + 1];
            if (writing) {
                const std::uint32_t own = *reinterpret_cast<const std::uint32_t*>(stage_at + C::kValues + in_tile);
                values[i] += low_bf16(own);
                values[i + 1] += high_bf16(own);
            }
            const float write = writes[step % 2][r];
            *reinterpret_cast<std::uint32_t*>(aligned + C::kOut + in_tile) =
                pack_bf16(values[i] * write, values[i + 1] * write);
        }
        if (!kBack && live) store_tile(values, m.values + place * kChunk * kChunk, row, lane, panel * kOwn / 8);
        fence_for_wgmma();
        __syncthreads();
#pragma unroll
        for (float& x : state) x *= decays.keep;
        issue_transposed_product(state, stage + (kBack ? C::kW : C::kK) + panel * kPanelBytes,
                                 start + C::kOut + side * kPanelBytes, warp, lane);
        if (kBack && walk.reads_at(chunk)) {
            issue_transposed_product(state, stage + C::kQ + panel * kPanelBytes,
                                     stage + C::kValues + side * kPanelBytes, warp, lane);
        }
        product_commit();
        if (kBack && live) {
            auto* to = reinterpret_cast<uint4*>(m.d_values + place * kChunk * kChunk);
            for (int i = t % C::kSideThreads; i < kPanelBytes / 16; i += C::kSideThreads) {
                to[i] = reinterpret_cast<const uint4*>(aligned + C::kOut + side * kPanelBytes)[i];
            }
        }
        product_wait<0>();
        product_done(state);
        __syncthreads();  // the stage and the tiles have been read
    }
    if constexpr (kBack) {
        if (walk.d_first == nullptr) return;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int r = 64 * panel + row + (i & 2) * 4;
            const int column = tile * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1);
            if (column < walk.columns) walk.d_first[r * walk.columns + column] = state[i];
        }
    }
}

template <int kKeyDim, bool kBack, int kSides>
void launch(const Matrix& m) {
    using C = WalkTiles<kKeyDim, kBack, kSides>;
    const auto kernel = walks_kernel<kKeyDim, kBack, kSides>;
    allow_shared(kernel, C::kBytes);
    const int groups = (m.walk_tiles + kSides - 1) / kSides;
    const auto blocks = static_cast<unsigned>(m.batch_blocks * m.walks * m.heads * groups);
    kernel<<<blocks, C::kThreads, C::kBytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

// Back a multiprocessor has shared memory for one thread block alone: one of two tiles where there are two.
template <int kKeyDim>
void launch_both(const Matrix& m) {
    launch<kKeyDim, false, 1>(m);
    (m.walk_tiles > 1 ? launch<kKeyDim, true, 2> : launch<kKeyDim, true, 1>)(m);
}

}  // namespace

void launch_matrix_walks(const Matrix& m) {
    (m.key_dim == 64 ? launch_both<64> : launch_both<128>)(m);
}

}  // namespace fenwick::cuda::backward
