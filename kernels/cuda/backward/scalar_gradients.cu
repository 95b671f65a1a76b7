// Gradients of k and v from those of states: of the runs that a chunk is part of (dN), or, in the step of the block
// summaries, of its block's state. One warpgroup to a thread block: a chunk, and the heads of one part of a key head,
// one after the other; dk stays in registers. All else streams: states and v through a ring in shared memory, dv
// through registers.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/backward/scalar_chunk.cuh"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kStages = 3;
constexpr int kThreads = 128;

struct GradientShared {
    double node[2][kRunBits];             // of two columns: G where a run (or the block) ends
    float outgoing[2][kRunBits][kChunk];  // of two heads: sums of the pairs from a row into what follows the run
    const char* from[kRunBits];           // the tile of column 0
    int end[kRunBits];                    // first token after the run, in the block
    int sum[kRunBits];                    // which of the chunk's sums
    int states;
};

template <int kKeyDim>
struct GradientTiles {
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kKeyBytes = kPanels * kPanelBytes;
    // Tiles: k, the ring of v, the ring of states; then GradientShared.
    static constexpr int kV = kKeyBytes;
    static constexpr int kRing = kV + kStages * kPanelBytes;
    static constexpr int kShared = kRing + kStages * kKeyBytes;
    static constexpr int kBytes = 1024 + kShared + static_cast<int>(sizeof(GradientShared));
};

__device__ void list_gradients(const Scalar& s, std::int64_t in_batch, int chunk, int rows, bool summaries,
                               GradientShared& shared) {
    const std::int64_t node_bytes = s.columns * s.state_elements() * 2;
    int n = 0;
    if (summaries) {
        shared.from[n] = reinterpret_cast<const char*>(s.entering) + in_batch * s.slots * node_bytes;
        shared.end[n] = rows;
        shared.sum[n++] = 0;
    } else {
        const char* d_nodes = reinterpret_cast<const char*>(s.d_nodes) + in_batch * kChunks * node_bytes;
        for (int bit = 0; bit < kRunBits; ++bit) {
            if ((chunk >> bit & 1) != 0) continue;
            const int end = ((chunk >> bit) + 1) << bit;
            if (end * kChunk >= rows) continue;  // nobody reads the run
            shared.from[n] = d_nodes + end * node_bytes;
            shared.end[n] = end * kChunk;
            shared.sum[n++] = bit;
        }
    }
    shared.states = n;
}

// The log decays' share of a head, by one warp, two rows a lane: `old` is what is there.
__device__ __forceinline__ void add_decays(const Scalar& s, const GradientShared& shared,
                                           const float (*outgoing)[kChunk], float* sums, float* to, float2 old,
                                           int rows, int lane) {
    float2 sum = make_float2(0.0F, 0.0F);
    for (int state = 0; state < shared.states; ++state) {
        const float2 y = *reinterpret_cast<const float2*>(&outgoing[state][2 * lane]);
        sum.x += y.x;
        sum.y += y.y;
        const float all = sum_warp(y.x + y.y);
        if (lane == 0) sums[shared.sum[state]] = all;
    }
    const float2 across = crossing_rows(make_float2(0.0F, 0.0F), sum, lane);
    if (2 * lane < rows) to[2 * lane * s.call.gradients.decay_stride] = old.x + across.x;
    if (2 * lane + 1 < rows) to[(2 * lane + 1) * s.call.gradients.decay_stride] = old.y + across.y;
}

template <int kKeyDim>
__global__ void __launch_bounds__(kThreads, 2)
    gradients_kernel(const __grid_constant__ Scalar s, int chunks, bool summaries) {
    using C = GradientTiles<kKeyDim>;
    constexpr int kPanels = C::kPanels;
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    auto& shared = *reinterpret_cast<GradientShared*>(memory + (start - shared_address(memory)) + C::kShared);

    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32;
    const int row = 16 * warp + lane / 4;  // and row + 8

    const auto [in_batch, block_first, first, key_head, part, chunk, block_rows, rows, columns, first_column] =
        own_chunk(s, chunks);

    if (t == 0) list_gradients(s, in_batch, chunk, block_rows, summaries, shared);
    __syncthreads();
    const int states = shared.states;
    if (states == 0) return;

    const auto* k = static_cast<const __nv_bfloat16*>(s.call.inputs.k) + first * s.call.inputs.k_stride;
    const auto* v = static_cast<const __nv_bfloat16*>(s.call.inputs.v) + first * s.call.inputs.v_stride;
    copy_rows<kKeyDim / 8, kThreads>(start, k + key_head * kKeyDim, s.call.inputs.k_stride, rows, kKeyDim / 8, t);

    // The ring: tiles of all columns, in order; v with a column's first.
    int next_column = 0;
    int next_state = 0;
    int next_slot = 0;
    const auto issue = [&] {
        if (next_column < columns) {
            const int column = first_column + next_column;
            copy_pieces<kThreads>(start + C::kRing + next_slot * C::kKeyBytes,
                                  reinterpret_cast<const __nv_bfloat16*>(
                                      shared.from[next_state] + static_cast<std::int64_t>(column) * C::kKeyBytes),
                                  Bytes<C::kKeyBytes>{}, t);
            if (next_state == 0) {
                const int from = column % s.tiles * 64;
                copy_rows<8, kThreads>(start + C::kV + next_column % kStages * kPanelBytes,
                                       v + static_cast<std::int64_t>(column / s.tiles) * s.value_dim + from,
                                       s.call.inputs.v_stride, rows, (s.value_dim - from) / 8, t);
            }
            if (++next_state == states) {
                next_state = 0;
                ++next_column;
            }
        }
        if (++next_slot == kStages) next_slot = 0;
        copy_async_commit();
    };
    for (int i = 0; i < kStages - 1; ++i) issue();  // k is of the first group
    int slot = 0;

    // A column's G, one column ahead: of the thread's two rows, and (thread i) where state i ends.
    double next_at[2];
    double next_node = 0.0;
    const auto load_cumulative = [&](int index) {
        if (index >= columns) return;
        const double* cumulative = s.cumulative + (first_column + index) / s.tiles * s.padded_rows + block_first;
        next_at[0] = cumulative[chunk * kChunk + row];
        next_at[1] = cumulative[chunk * kChunk + row + 8];
        if (t < states) next_node = cumulative[shared.end[t] - 1];
    };
    load_cumulative(0);
    if (t < states) shared.node[0][t] = next_node;

    const MixerGradients& g = s.call.gradients;
    float2 old_decays = {};
    // Of a finished head, by one warp, others in turn, after a barrier.
    const auto finish = [&](int head) {
        if (warp != head % 4) return;
        add_decays(s, shared, shared.outgoing[head % 2],
                   s.sums + ((in_batch * s.heads + head) * kChunks + chunk) * kChunkSums,
                   g.log_decay + first * g.decay_stride + head, old_decays, rows, lane);
    };

    float d_k[kPanels][32] = {};
    for (int index = 0; index < columns; ++index) {
        const int head = (first_column + index) / s.tiles;
        const int tile_of_head = (first_column + index) % s.tiles;
        const double at[2] = {next_at[0], next_at[1]};
        load_cumulative(index + 1);

        // dv so far: read before anything waits, all of it at once.
        float d_v[32];
        float* to = g.v + first * g.v_stride + static_cast<std::int64_t>(head) * s.value_dim + tile_of_head * 64;
        const auto each_value = [&](const auto& body) {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int r = row + i % 2 * 8;
                const int c = i / 2 * 8 + lane % 4 * 2;
                const bool live = r < rows && tile_of_head * 64 + c < s.value_dim;
                body(live, reinterpret_cast<float2*>(to + r * g.v_stride + c), i / 2 * 4 + i % 2 * 2);
            }
        };
        each_value([&](bool live, const float2* from, int i) {
            const float2 old = live ? *from : make_float2(0.0F, 0.0F);
            d_v[i] = old.x;
            d_v[i + 1] = old.y;
        });

        std::uint32_t values[4][4];
#pragma unroll 1
        for (int state = 0; state < states; ++state) {
            copy_async_wait<kStages - 2>();
            fence_for_wgmma();
            __syncthreads();
            issue();
            const std::uint32_t tile = start + C::kRing + slot * C::kKeyBytes;
            if (++slot == kStages) slot = 0;
            if (state == 0) {
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    load_a(values[step], start + C::kV + index % kStages * kPanelBytes, warp, step, lane);
                }
                if (tile_of_head == 0 && index > 0) finish(head - 1);
                if (tile_of_head + 1 == s.tiles && warp == head % 4) {
                    const float* from = g.log_decay + (first + 2 * lane) * g.decay_stride + head;
                    old_decays.x = 2 * lane < rows ? from[0] : 0.0F;
                    old_decays.y = 2 * lane + 1 < rows ? from[g.decay_stride] : 0.0F;
                }
            }
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                factor[half] = __expf(static_cast<float>(shared.node[index % 2][state] - at[half]));
            }

            std::uint32_t keys[4 * kPanels][4];
            std::uint32_t scaled[4][4];
#pragma unroll
            for (int step = 0; step < 4 * kPanels; ++step) {
                load_a(keys[step], start + step / 4 * kPanelBytes, warp, step % 4, lane);
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const std::uint32_t both = values[i / 4][i % 4];
                scaled[i / 4][i % 4] = pack_bf16(low_bf16(both) * factor[i % 2], high_bf16(both) * factor[i % 2]);
            }
            float part_sum[32];
            issue_product<4 * kPanels, cuda::Rows::kDepth, false>(part_sum, keys, tile, lane);
            product_commit();
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                issue_product<4, cuda::Rows::kColumns, true>(d_k[panel], scaled, tile + panel * kPanelBytes, lane);
            }
            product_commit();
            product_wait<1>();
            product_done(part_sum);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float dot = 0.0F;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const std::uint32_t both = values[j / 2][j % 2 * 2 + half];
                    const int i = 4 * j + 2 * half;
                    dot = fmaf(low_bf16(both), part_sum[i], dot);
                    dot = fmaf(high_bf16(both), part_sum[i + 1], dot);
                    d_v[i] = fmaf(factor[half], part_sum[i], d_v[i]);
                    d_v[i + 1] = fmaf(factor[half], part_sum[i + 1], d_v[i + 1]);
                }
                dot = factor[half] * sum_quad(dot);
                float& sum = shared.outgoing[head % 2][state][row + 8 * half];
                if (lane % 4 == 0) sum = tile_of_head == 0 ? dot : sum + dot;
            }
            product_wait<0>();
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) product_done(d_k[panel]);
        }
        each_value([&](bool live, float2* place, int i) {
            if (live) *place = make_float2(d_v[i], d_v[i + 1]);
        });
        if (t < states) shared.node[(index + 1) % 2][t] = next_node;
    }
    __syncthreads();
    finish((first_column + columns - 1) / s.tiles);

    const bool alone = s.parts * s.heads_per_key == s.heads;
    const std::int64_t batch_first = first - s.batch_block * kBlockTokens;
    float* to =
        alone ? g.k + first * g.k_stride + key_head * kKeyDim : s.d_k + (part * s.batch_rows() + batch_first) * kKeyDim;
    const std::int64_t stride = alone ? g.k_stride : kKeyDim;
    // A share's first writer in the summaries' step is this kernel; else rows_kernel has written.
    const bool added = alone || !summaries;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= rows) continue;
        auto* place = reinterpret_cast<float2*>(to + (row + 8 * half) * stride + lane % 4 * 2);
        float2 old[8 * kPanels] = {};
        if (added) {
#pragma unroll
            for (int i = 0; i < 8 * kPanels; ++i) old[i] = place[4 * i];
        }
#pragma unroll
        for (int i = 0; i < 8 * kPanels; ++i) {
            const float* x = d_k[i / 8] + i % 8 * 4 + 2 * half;
            place[4 * i] = make_float2(old[i].x + x[0], old[i].y + x[1]);
        }
    }
}

template <int kKeyDim>
void launch(const Scalar& s, bool summaries) {
    using C = GradientTiles<kKeyDim>;
    const auto kernel = gradients_kernel<kKeyDim>;
    allow_shared(kernel, C::kBytes);
    const std::int64_t rows = s.batch_rows();
    const auto chunks = static_cast<int>((rows + kChunk - 1) / kChunk);
    kernel<<<static_cast<unsigned>(chunks * s.parts), kThreads, C::kBytes, s.call.stream>>>(s, chunks, summaries);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (s.parts * s.heads_per_key == s.heads) return;
    const MixerGradients& g = s.call.gradients;
    const std::int64_t first = s.batch_block * kBlockTokens;
    launch_sum_heads({s.call.shape, rows, rows, s.parts}, s.d_k, g.k + first * g.k_stride, g.k_stride, s.call.stream);
}

}  // namespace

void launch_state_gradients(const Scalar& s, bool summaries) {
    (s.key_dim == 64 ? launch<64> : launch<128>)(s, summaries);
}

}  // namespace fenwick::cuda::backward
