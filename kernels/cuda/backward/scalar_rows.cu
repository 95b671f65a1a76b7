// Everything that is per token. One thread block: a chunk, and the heads of one part of a key head, one after the
// other; q, k, Q K^T, dq, dk and W stay with it. For each column of work (head, 64 value columns) tiles stream through
// shared memory: the states that the chunk reads. (Gradients of those that it is part of: scalar_gradients.cu.)
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/scalar_row_sums.cuh"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

template <int kKeyDim>
__global__ void __launch_bounds__(RowTiles<kKeyDim>::kThreads, 1)
    rows_kernel(const __grid_constant__ Scalar s, int chunks) {
    using C = RowTiles<kKeyDim>;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwnColumns = 64 / kPanels;  // of the chunk's pairs, for one warp
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    auto& shared = *reinterpret_cast<RowShared<kPanels>*>(aligned + C::kShared);

    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int row = 16 * warp + lane / 4;  // and row + 8

    const int part = static_cast<int>(blockIdx.x) / chunks;
    const int number = static_cast<int>(blockIdx.x) % chunks;  // of the chunk, in the batch
    const std::int64_t in_batch = number / kChunks;
    const int chunk = number % kChunks;
    const std::int64_t block_first = (s.batch_block + in_batch) * kBlockTokens;
    const std::int64_t first = block_first + static_cast<std::int64_t>(chunk) * kChunk;
    const auto block_rows = static_cast<int>(min(s.rows - block_first, kBlockTokens));
    const int rows = min(block_rows - chunk * kChunk, kChunk);
    const int columns = s.columns / s.parts;
    const int first_column = part * columns;
    const std::int64_t key_head = first_column / s.tiles / s.heads_per_key;

    const auto* q = static_cast<const __nv_bfloat16*>(s.call.inputs.q) + first * s.call.inputs.q_stride;
    const auto* k = static_cast<const __nv_bfloat16*>(s.call.inputs.k) + first * s.call.inputs.k_stride;
    const auto* v = static_cast<const __nv_bfloat16*>(s.call.inputs.v) + first * s.call.inputs.v_stride;
    const auto* d_out = static_cast<const __nv_bfloat16*>(s.call.d_out) + first * s.call.d_out_stride;

    if (t == 0) list_states(s, in_batch, chunk, shared);
    const std::int64_t key_column = key_head * kKeyDim;
    constexpr int kKeyPieces = kKeyDim / 8;
    copy_rows<kKeyPieces, C::kThreads>(start + C::kQ, q + key_column, s.call.inputs.q_stride, rows, kKeyPieces, t);
    copy_rows<kKeyPieces, C::kThreads>(start + C::kK, k + key_column, s.call.inputs.k_stride, rows, kKeyPieces, t);
    // v and dO of a column, into one of two places.
    const auto load_values = [&](int index) {
        if (index >= columns) return;
        const int from = (first_column + index) % s.tiles * 64;
        const std::int64_t at = static_cast<std::int64_t>((first_column + index) / s.tiles) * s.value_dim + from;
        const std::uint32_t to = start + index % 2 * kPanelBytes;
        const int pieces = (s.value_dim - from) / 8;
        copy_rows<8, C::kThreads>(to + C::kV, v + at, s.call.inputs.v_stride, rows, pieces, t);
        copy_rows<8, C::kThreads>(to + C::kD, d_out + at, s.call.d_out_stride, rows, pieces, t);
    };
    load_values(0);
    copy_async_commit();
    __syncthreads();  // the list
    const int reads = shared.reads;

    // The factors' sources of a column, 64 values of lambda for each level inside the chunk and each state it reads.
    const auto load_inputs = [&](int index) {
        if (index >= columns) return;
        const int head = (first_column + index) / s.tiles;
        RowInputs& in = shared.inputs[index % 2];
        const double* cumulative = s.cumulative + head * s.padded_rows + block_first;
        if (t < kChunk) in.cumulative[t] = cumulative[chunk * kChunk + t];
        if (t == kChunk) in.start = chunk == 0 ? 0.0 : cumulative[chunk * kChunk - 1];
        if (t > kChunk && t - kChunk - 1 < reads) {
            const int end = shared.end[t - kChunk - 1];
            in.node[t - kChunk - 1] = end == 0 ? 0.0 : cumulative[end - 1];
        }
        {
            const float* lambda =
                s.call.inputs.lambda + first * s.call.inputs.lambda_stride + static_cast<std::int64_t>(head) * s.levels;
            for (int i = t; i < (kOwnLevels + reads) * kChunk; i += C::kThreads) {
                // Neighbouring threads: neighbouring levels of a row.
                const int entry = i % (kOwnLevels + reads);
                const int r = i / (kOwnLevels + reads);
                float x = s.linear ? 1.0F : 0.0F;
                if (!s.linear && r < rows) {
                    const int level = entry < kOwnLevels ? min(entry, s.levels - 1) : shared.level[entry - kOwnLevels];
                    x = __ldg(lambda + r * s.call.inputs.lambda_stride + level);
                }
                in.lambda[entry * kChunk + r] = x;
            }
        }
    };
    load_inputs(0);

    // The ring: tiles of all columns, in order.
    int next_column = 0;
    int next_state = 0;
    int next_slot = 0;
    const auto issue = [&] {
        if (reads > 0 && next_column < columns) {
            const std::uint32_t to = start + C::kRing + next_slot * C::kKeyBytes + t * 16;
            const char* from =
                shared.from[next_state] + static_cast<std::int64_t>(first_column + next_column) * C::kKeyBytes + t * 16;
#pragma unroll
            for (int i = 0; i < C::kKeyBytes / 16 / C::kThreads; ++i) {
                copy_async_16(to + i * C::kThreads * 16, from + i * C::kThreads * 16, true);
            }
            if (++next_state == reads) {
                next_state = 0;
                ++next_column;
            }
        }
        if (++next_slot == kRingSlots) next_slot = 0;
        copy_async_commit();
    };
    constexpr int kAhead = kRingSlots - 1;
    for (int i = 0; i < kAhead; ++i) issue();
    int slot = 0;
    const auto next_tile = [&] {
        copy_async_wait<kAhead - 1>();
        fence_for_wgmma();
        __syncthreads();
        const std::uint32_t tile = start + C::kRing + slot * C::kKeyBytes;
        if (++slot == kRingSlots) slot = 0;
        return tile;
    };

    const auto own_scores = [&](float(&acc)[kOwnColumns / 2], const std::uint32_t(&a)[4][4], std::uint32_t tile) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            multiply<kOwnColumns, cuda::Rows::kColumns>(acc, a[step], tile, step, panel * kOwnColumns, lane);
        }
    };
    float d_q[32] = {};  // columns [64 panel, + 64) of the warp's rows
    float scores_qk[kOwnColumns / 2] = {};
    float w[kOwnColumns / 2] = {};
    for (int index = 0; index < columns; ++index) {
        const int column = first_column + index;
        const int head = column / s.tiles;
        const int tile_of_head = column % s.tiles;
        const RowInputs& in = shared.inputs[index % 2];
        const std::uint32_t v_tile = start + C::kV + index % 2 * kPanelBytes;
        const std::uint32_t d_tile = start + C::kD + index % 2 * kPanelBytes;
        copy_async_wait<0>();
        fence_for_wgmma();
        __syncthreads();  // v, dO and the factors' sources of this column; what the last column left has been read
        load_values(index + 1);
        copy_async_commit();
        if (index == 0) {
#pragma unroll
            for (int i = 0; i < kPanels; ++i) {
                std::uint32_t a[4][4];
#pragma unroll
                for (int step = 0; step < 4; ++step) {
                    load_a(a[step], start + C::kQ + i * kPanelBytes, warp, step, lane);
                }
                own_scores(scores_qk, a, start + C::kK + i * kPanelBytes);
            }
        }
        for (int i = t; i < reads * kChunk; i += C::kThreads) {
            shared.decay[i] = __expf(static_cast<float>(in.cumulative[i % kChunk] - in.node[i / kChunk]));
        }
        if (t < kChunk) {
            shared.in_chunk[t] = split_log2(in.cumulative[t] - in.start);
            if (tile_of_head == 0) {
                shared.inside[t] = 0.0F;
                shared.incoming[t] = 0.0F;
                if (t < kChunkSums) shared.sums[t] = 0.0F;
            }
        }
        if (tile_of_head == 0) {
            for (int i = t; i < kChunk * s.levels; i += C::kThreads) shared.d_lambda[i] = 0.0F;
        }
        __syncthreads();

        float d_v[32] = {};  // a panel's share (of the depth) of the warp's rows and all 64 columns
        std::uint32_t a[4][4];
        {
#pragma unroll
            for (int step = 0; step < 4; ++step) load_a(a[step], d_tile, warp, step, lane);
            float x[kOwnColumns / 2] = {};
            own_scores(x, a, v_tile);
            own_pairs<kOwnColumns>(x, scores_qk, w, aligned + C::kPairs, shared, in, panel * kOwnColumns, warp, lane,
                                   panel);
            __syncthreads();
            constexpr int kSteps = 4 / kPanels;
            std::uint32_t pairs[kSteps][4];
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                load_a_transposed(pairs[step], start + C::kPairs, warp, panel * kSteps + step, lane);
            }
            issue_product<kSteps, cuda::Rows::kDepth, true>(d_v, pairs, d_tile + panel * kSteps * 16 * kTileRowBytes,
                                                            lane);
            product_commit();
            product_wait<0>();
            product_done(d_v);
        }

        // Rows of `part_sum` times factors: to dq; and their products with rows of q: to `dots`.
        float part_sum[32];
        const auto add = [&](int state) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + 8 * half;
                const float factor = shared.decay[state * kChunk + r] * in.lambda[(kOwnLevels + state) * kChunk + r];
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    const int at = i / 2 * 4 + 2 * half + i % 2;
                    d_q[at] = fmaf(factor, part_sum[at], d_q[at]);
                }
            }
        };
        const auto dots = [&](int state) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + 8 * half;
                float dot = 0.0F;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(
                        aligned + C::kQ + panel * kPanelBytes + tile_offset(r, j) + lane % 4 * 4);
                    dot = fmaf(low_bf16(both), part_sum[4 * j + 2 * half], dot);
                    dot = fmaf(high_bf16(both), part_sum[4 * j + 2 * half + 1], dot);
                }
                dot = sum_quad(dot);
                if (lane % 4 == 0) shared.dots[panel][state * kChunk + r] = dot;
            }
        };
#pragma unroll 1
        for (int state = 0; state < reads; ++state) {
            const std::uint32_t tile = next_tile();
            issue_product<4, cuda::Rows::kColumns, false>(part_sum, a, tile + panel * kPanelBytes, lane);
            product_commit();
            issue();
            product_wait<0>();
            product_done(part_sum);
            add(state);
            dots(state);
        }
        load_inputs(index + 1);

        // dv: the panels' shares together.
        if constexpr (kPanels == 2) {
            auto* exchange = reinterpret_cast<float4*>(aligned + C::kExchange) + t % 128;
            if (panel == 1) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    exchange[128 * i] = make_float4(d_v[4 * i], d_v[4 * i + 1], d_v[4 * i + 2], d_v[4 * i + 3]);
                }
            }
            __syncthreads();
            if (panel == 0) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float4 x = exchange[128 * i];
                    d_v[4 * i] += x.x;
                    d_v[4 * i + 1] += x.y;
                    d_v[4 * i + 2] += x.z;
                    d_v[4 * i + 3] += x.w;
                }
            }
        } else {
            __syncthreads();  // dots
        }
        if (panel == 0) {
            const MixerGradients& g = s.call.gradients;
            float* to = g.v + first * g.v_stride + static_cast<std::int64_t>(head) * s.value_dim;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int r = row + i % 2 * 8;
                const int c = tile_of_head * 64 + i / 2 * 8 + lane % 4 * 2;
                if (r >= rows || c >= s.value_dim) continue;
                float* at = to + r * g.v_stride + c;
                const int from = i / 2 * 4 + i % 2 * 2;
                *reinterpret_cast<float2*>(at) = make_float2(d_v[from], d_v[from + 1]);
            }
        }

        sum_column<kKeyDim>(s, shared, in, {in_batch, first, chunk, rows, head, tile_of_head}, t);
    }

    // The heads' W: dQ += W K, dK += W^T Q.
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kOwnColumns / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = 4 * n + 2 * half;
            *reinterpret_cast<std::uint32_t*>(aligned + C::kPairs +
                                              tile_offset(row + 8 * half, panel * kOwnColumns / 8 + n) + lane % 4 * 4) =
                pack_bf16(w[at], w[at + 1]);
        }
    }
    __syncthreads();
    std::uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) load_a(a[step], start + C::kPairs, warp, step, lane);
    issue_product<4, cuda::Rows::kDepth, true>(d_q, a, start + C::kK + panel * kPanelBytes, lane);
    product_commit();
    product_wait<0>();
    product_done(d_q);
#pragma unroll
    for (int step = 0; step < 4; ++step) load_a_transposed(a[step], start + C::kPairs, warp, step, lane);
    float d_k[32];
    issue_product<4, cuda::Rows::kDepth, false>(d_k, a, start + C::kQ + panel * kPanelBytes, lane);
    product_commit();
    product_wait<0>();
    product_done(d_k);
    const bool alone = s.parts * s.heads_per_key == s.heads;
    const MixerGradients& g = s.call.gradients;
    const std::int64_t batch_first = first - s.batch_block * kBlockTokens;
    const std::int64_t batch_rows = min(s.rows - s.batch_block * kBlockTokens, s.batch_blocks * kBlockTokens);
    const auto store = [&](const float(&x)[32], float* whole, std::int64_t stride, float* share) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int r = row + i % 2 * 8;
            if (r >= rows) continue;
            const int c = panel * 64 + i / 2 * 8 + lane % 4 * 2;
            const int from = i / 2 * 4 + i % 2 * 2;
            float* at = alone ? whole + (first + r) * stride + key_head * kKeyDim + c
                              : share + (part * batch_rows + batch_first + r) * kKeyDim + c;
            *reinterpret_cast<float2*>(at) = make_float2(x[from], x[from + 1]);
        }
    };
    store(d_q, g.q, g.q_stride, s.d_q);
    store(d_k, g.k, g.k_stride, s.d_k);
}

template <int kKeyDim>
void launch(const Scalar& s) {
    using C = RowTiles<kKeyDim>;
    const auto kernel = rows_kernel<kKeyDim>;
    allow_shared(kernel, C::kBytes);
    const std::int64_t rows = std::min(s.rows - s.batch_block * kBlockTokens, s.batch_blocks * kBlockTokens);
    const auto chunks = static_cast<int>((rows + kChunk - 1) / kChunk);
    kernel<<<static_cast<unsigned>(chunks * s.parts), C::kThreads, C::kBytes, s.call.stream>>>(s, chunks);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (s.parts * s.heads_per_key == s.heads) return;
    const MixerGradients& g = s.call.gradients;
    const HeadShares shares{s.call.shape, rows, rows, s.parts};
    const std::int64_t first = s.batch_block * kBlockTokens;
    launch_sum_heads(shares, s.d_q, g.q + first * g.q_stride, g.q_stride, s.call.stream);
}

}  // namespace

void launch_rows(const Scalar& s) {
    (s.key_dim == 64 ? launch<64> : launch<128>)(s);
}

}  // namespace fenwick::cuda::backward
