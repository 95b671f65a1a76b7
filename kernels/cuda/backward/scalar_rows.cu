// All that is per token but what comes from gradients of states. One thread block: a chunk, and the heads of one part
// of a key head, one after the other; q, Q K^T, dq and W stay with it. For each column of work (head, 64 value columns)
// the tiles of the states that the chunk reads stream through shared memory.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/scalar_chunk.cuh"
#include "kernels/cuda/backward/scalar_own_pairs.cuh"
#include "kernels/cuda/backward/scalar_row_sums.cuh"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

template <int kKeyDim, int kStates>
__global__ void __launch_bounds__(RowTiles<kKeyDim, kStates>::kThreads, RowTiles<kKeyDim, kStates>::kTogether)
    rows_kernel(const __grid_constant__ Scalar s, int chunks) {
    using C = RowTiles<kKeyDim, kStates>;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwnColumns = 64 / kPanels;  // of the chunk's pairs, and of dv, for one warp
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    auto& shared = *reinterpret_cast<RowShared<kPanels, kStates>*>(aligned + C::kShared);

    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int row = 16 * warp + lane / 4;  // and row + 8

    const auto [in_batch, block_first, first, key_head, part, chunk, block_rows, rows, columns, first_column] =
        own_chunk(s, chunks);
    const std::int64_t key_column = key_head * kKeyDim;
    constexpr int kKeyPieces = kKeyDim / 8;

    if (t == 0) list_states(s, in_batch, chunk, shared);
    if (s.linear) {
        for (int i = t; i < (kOwnLevels + kStates) * kEntryStride; i += C::kThreads) {
            shared.inputs[0].lambda[i] = 1.0F;
            shared.inputs[1].lambda[i] = 1.0F;
        }
    }
    const auto load_keys = [&] {
        copy_rows<kKeyPieces, C::kThreads>(
            start + C::kK,
            static_cast<const __nv_bfloat16*>(s.call.inputs.k) + first * s.call.inputs.k_stride + key_column,
            s.call.inputs.k_stride, rows, kKeyPieces, t);
    };
    copy_rows<kKeyPieces, C::kThreads>(
        start + C::kQ, static_cast<const __nv_bfloat16*>(s.call.inputs.q) + first * s.call.inputs.q_stride + key_column,
        s.call.inputs.q_stride, rows, kKeyPieces, t);
    load_keys();
    __syncthreads();  // the list
    const int reads = shared.reads;

    // v, dO and what the factors are made of, of a column.
    const auto load_column = [&](int index) {
        if (index < columns) {
            const int head = (first_column + index) / s.tiles;
            const int from = (first_column + index) % s.tiles * 64;
            const std::int64_t at = static_cast<std::int64_t>(head) * s.value_dim + from;
            const int pieces = (s.value_dim - from) / 8;
            copy_rows<8, C::kThreads>(
                start + C::kV, static_cast<const __nv_bfloat16*>(s.call.inputs.v) + first * s.call.inputs.v_stride + at,
                s.call.inputs.v_stride, rows, pieces, t);
            copy_rows<8, C::kThreads>(
                start + C::kD, static_cast<const __nv_bfloat16*>(s.call.d_out) + first * s.call.d_out_stride + at,
                s.call.d_out_stride, rows, pieces, t);
            RowInputs<kStates>& in = shared.inputs[index % 2];
            const double* cumulative = s.cumulative + head * s.padded_rows + block_first;
            if (t < kChunk / 2) {
                copy_async_16(shared_address(in.cumulative + 2 * t), cumulative + chunk * kChunk + 2 * t, true);
            } else if (t == kChunk / 2) {
                copy_async_few<8>(shared_address(&in.start), cumulative + max(chunk * kChunk - 1, 0), chunk != 0);
            } else if (t >= 64 && t - 64 < reads) {
                const int end = shared.end[t - 64];
                copy_async_few<8>(shared_address(in.node + t - 64), cumulative + max(end - 1, 0), end != 0);
            }
            if (!s.linear) {  // sixteen threads a row, neighbouring levels
                const float* lambda = s.call.inputs.lambda + first * s.call.inputs.lambda_stride +
                                      static_cast<std::int64_t>(head) * s.levels;
                for (int r = t / 16; r < kChunk; r += C::kThreads / 16) {
                    const float* values = lambda + min(r, rows - 1) * s.call.inputs.lambda_stride;
                    for (int entry = t % 16; entry < kOwnLevels + reads; entry += 16) {
                        copy_async_few<4>(shared_address(in.lambda + entry * kEntryStride + r),
                                          values + shared.level[entry], r < rows);
                    }
                }
            }
        }
        copy_async_commit();
    };
    load_column(0);

    // The ring: tiles of all columns, in order.
    int next_column = 0;
    int next_state = 0;
    int next_slot = 0;
    const auto issue = [&] {
        if (next_column < columns && reads > 0) {
            copy_pieces<C::kThreads>(
                start + C::kRing + next_slot * C::kKeyBytes,
                reinterpret_cast<const __nv_bfloat16*>(
                    shared.from[next_state] + static_cast<std::int64_t>(first_column + next_column) * C::kKeyBytes),
                Bytes<C::kKeyBytes>{}, t);
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

    const auto own_scores = [&](float(&acc)[kOwnColumns / 2], std::uint32_t a_tile, std::uint32_t b_tile) {
        multiply_tiles<kOwnColumns, cuda::Rows::kColumns, false>(acc, a_tile, b_tile, panel * kOwnColumns, warp, lane);
    };
    float d_q[32] = {};  // columns [64 panel, + 64) of the warp's rows
    float scores_qk[kOwnColumns / 2] = {};
    float w[kOwnColumns / 2] = {};
    for (int index = 0; index < columns; ++index) {
        const int head = (first_column + index) / s.tiles;
        const int tile_of_head = (first_column + index) % s.tiles;
        const RowInputs<kStates>& in = shared.inputs[index % 2];
        // This column's v, dO and factors, which are older than the tiles issued since.
        static_assert(kAhead == 2);
        const int younger = index == 0 ? kAhead : reads;
        if (younger == 0) {
            copy_async_wait<0>();
        } else if (younger == 1) {
            copy_async_wait<1>();
        } else {
            copy_async_wait<2>();
        }
        fence_for_wgmma();
        __syncthreads();
        if (index == 0) {
#pragma unroll
            for (int i = 0; i < kPanels; ++i) {
                own_scores(scores_qk, start + C::kQ + i * kPanelBytes, start + C::kK + i * kPanelBytes);
            }
        }
        if (t < kChunk) {
            shared.in_chunk[t] = split_log2(in.cumulative[t] - in.start);
            if (tile_of_head == 0 && index > 0) store_decays(s, shared, first, rows, head - 1, t);
        }
        float x[kOwnColumns / 2] = {};
        own_scores(x, start + C::kD, start + C::kV);
        __syncthreads();  // v has been read
        own_pairs<kOwnColumns>(x, scores_qk, w, aligned + C::kV, shared, in, tile_of_head > 0, panel * kOwnColumns,
                               warp, lane, panel);
        __syncthreads();
        {
            float d_v[kOwnColumns / 2] = {};
            multiply_tiles<kOwnColumns, cuda::Rows::kDepth, true>(d_v, start + C::kV, start + C::kD,
                                                                  panel * kOwnColumns, warp, lane);
            const MixerGradients& g = s.call.gradients;
            float* to = g.v + first * g.v_stride + static_cast<std::int64_t>(head) * s.value_dim + tile_of_head * 64;
#pragma unroll
            for (int i = 0; i < kOwnColumns / 4; ++i) {
                const int r = row + i % 2 * 8;
                const int c = panel * kOwnColumns + i / 2 * 8 + lane % 4 * 2;
                if (r >= rows || tile_of_head * 64 + c >= s.value_dim) continue;
                *reinterpret_cast<float2*>(to + r * g.v_stride + c) = make_float2(d_v[2 * i], d_v[2 * i + 1]);
            }
        }

        std::uint32_t a[4][4];
#pragma unroll
        for (int step = 0; step < 4; ++step) load_a(a[step], start + C::kD, warp, step, lane);
#pragma unroll 1
        for (int state = 0; state < reads; ++state) {
            if (state == 1) {
                copy_async_wait<kAhead>();  // the next column's inputs came between
            } else {
                copy_async_wait<kAhead - 1>();
            }
            fence_for_wgmma();
            __syncthreads();
            const std::uint32_t tile = start + C::kRing + slot * C::kKeyBytes;
            if (++slot == kRingSlots) slot = 0;
            float part_sum[32];
            issue_product<4, cuda::Rows::kColumns, false>(part_sum, a, tile + panel * kPanelBytes, lane);
            product_commit();
            if (state == 0) load_column(index + 1);
            issue();
            const int entry = (kOwnLevels + state) * kEntryStride;
            float decay[2];
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + 8 * half;
                decay[half] = __expf(static_cast<float>(in.cumulative[r] - in.node[state]));
                factor[half] = decay[half] * in.lambda[entry + r];
            }
            product_wait<0>();
            product_done(part_sum);
            float dot[2] = {};
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                std::uint32_t q[4];
                load_a(q, start + C::kQ + panel * kPanelBytes, warp, step, lane);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int half = i % 2;
                    const int at = 8 * step + i / 2 * 4 + 2 * half;
                    dot[half] = fmaf(low_bf16(q[i]), part_sum[at], dot[half]);
                    dot[half] = fmaf(high_bf16(q[i]), part_sum[at + 1], dot[half]);
                    d_q[at] = fmaf(factor[half], part_sum[at], d_q[at]);
                    d_q[at + 1] = fmaf(factor[half], part_sum[at + 1], d_q[at + 1]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = decay[half] * sum_quad(dot[half]);
                float& to = shared.entries[panel][entry + row + 8 * half];
                if (lane % 4 == 0) to = tile_of_head > 0 ? to + sum : sum;
            }
        }
        __syncthreads();  // the head's sums; v and dO have been read
        if (reads == 0) load_column(index + 1);
        if (tile_of_head + 1 == s.tiles) sum_head(s, shared, in, {in_batch, first, chunk, rows, head}, t);
    }

    // The heads' W: dQ += W K, dK = W^T Q.
    load_keys();
    copy_async_commit();
#pragma unroll
    for (int n = 0; n < kOwnColumns / 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = 4 * n + 2 * half;
            *reinterpret_cast<std::uint32_t*>(aligned + C::kV +
                                              tile_offset(row + 8 * half, panel * kOwnColumns / 8 + n) + lane % 4 * 4) =
                pack_bf16(w[at], w[at + 1]);
        }
    }
    copy_async_wait<0>();
    fence_for_wgmma();
    __syncthreads();
    if (t < kChunk) store_decays(s, shared, first, rows, (first_column + columns - 1) / s.tiles, t);

    const bool alone = s.parts * s.heads_per_key == s.heads;
    const MixerGradients& g = s.call.gradients;
    const std::int64_t batch_first = first - s.batch_block * kBlockTokens;
    const auto store = [&](const float(&x)[32], float* whole, std::int64_t whole_stride, float* share) {
        float* to =
            alone ? whole + first * whole_stride + key_column : share + (part * s.batch_rows() + batch_first) * kKeyDim;
        const std::int64_t stride = alone ? whole_stride : kKeyDim;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int r = row + i % 2 * 8;
            if (r >= rows) continue;
            *reinterpret_cast<float2*>(to + r * stride + panel * 64 + i / 2 * 8 + lane % 4 * 2) =
                make_float2(x[2 * i], x[2 * i + 1]);
        }
    };
    std::uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) load_a(a[step], start + C::kV, warp, step, lane);
    issue_product<4, cuda::Rows::kDepth, true>(d_q, a, start + C::kK + panel * kPanelBytes, lane);
    product_commit();
    product_wait<0>();
    product_done(d_q);
    store(d_q, g.q, g.q_stride, s.d_q);
#pragma unroll
    for (int step = 0; step < 4; ++step) load_a_transposed(a[step], start + C::kV, warp, step, lane);
    float d_k[32];
    issue_product<4, cuda::Rows::kDepth, false>(d_k, a, start + C::kQ + panel * kPanelBytes, lane);
    product_commit();
    product_wait<0>();
    product_done(d_k);
    store(d_k, g.k, g.k_stride, s.d_k);
}

template <int kKeyDim, int kStates>
void launch(const Scalar& s) {
    using C = RowTiles<kKeyDim, kStates>;
    const auto kernel = rows_kernel<kKeyDim, kStates>;
    allow_shared(kernel, C::kBytes);
    const std::int64_t rows = s.batch_rows();
    const auto chunks = static_cast<int>((rows + kChunk - 1) / kChunk);
    kernel<<<static_cast<unsigned>(chunks * s.parts), C::kThreads, C::kBytes, s.call.stream>>>(s, chunks);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (s.parts * s.heads_per_key == s.heads) return;
    const MixerGradients& g = s.call.gradients;
    const std::int64_t first = s.batch_block * kBlockTokens;
    launch_sum_heads({s.call.shape, rows, rows, s.parts}, s.d_q, g.q + first * g.q_stride, g.q_stride, s.call.stream);
}

}  // namespace

void launch_rows(const Scalar& s) {
    const bool few = kRunBits + s.slots <= kFewStates;
    if (s.key_dim == 64) {
        (few ? launch<64, kFewStates> : launch<64, kMostStates>)(s);
    } else {
        (few ? launch<128, kFewStates> : launch<128, kMostStates>)(s);
    }
}

}  // namespace fenwick::cuda::backward
