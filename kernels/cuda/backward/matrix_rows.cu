// Everything that is per token, of log-linear models: one thread block a chunk of a key head,
// its heads one after the other. The walks' tiles come by columns of 64; then the chunk's own products (matrix.h has
// the formulas).
#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_rows_chunk.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

// One head's gradients of a chunk. kSummaries: the walks of the block's own summary. `added`: gradients of q and k are
// added to what is there, as those of v and the rest are with kSummaries.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void rows_of_head(const Matrix& m, const MatrixChunk& c, char* aligned, bool added) {
    using C = MatrixTiles<kKeyDim, kForm>;
    constexpr bool kSummaries = kForm == MatrixForm::kSummaries;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwn = 64 / kPanels;  // columns of a 64 x 64 product that a warp forms
    constexpr auto kDepth = Rows::kDepth;
    constexpr auto kColumns = Rows::kColumns;
    const std::uint32_t start = shared_address(aligned);
    auto& shared = *reinterpret_cast<MatrixShared<kPanels, kForm>*>(aligned + C::kShared);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int row = 16 * warp + lane / 4;  // and row + 8
    const int own_first = panel * kOwn;
    const std::int64_t number = c.in_batch * kChunks + c.chunk;
    const MixerInputs& in = m.call.inputs;
    const std::int64_t key_column = static_cast<std::int64_t>(c.head / m.heads_per_key) * kKeyDim;
    const std::int64_t value_column = static_cast<std::int64_t>(c.head) * m.value_dim;

    const OwnPlaces<kKeyDim> places{aligned, t};
    const auto own_row = [&](int i) { return places.row(i); };
    const auto own_column = [&](int i) { return places.column(i); };
    const auto pair_at = [&](int tile, int r, int column) { return places.pair(tile, r, column); };
    const auto copy = [&](int to, const __nv_bfloat16* from, auto bytes) {
        copy_pieces<C::kThreads>(start + to, from, bytes, t);
    };
    const auto copy_values = [&](int to, const void* all, std::int64_t stride, int tile) {
        copy_rows<8, C::kThreads>(start + to,
                                  static_cast<const __nv_bfloat16*>(all) + c.first * stride + value_column + tile * 64,
                                  stride, c.rows, (m.value_dim - tile * 64) / 8, t);
    };
    const auto written = [&] {  // makes copies that have come and ordinary stores visible to all
        fence_for_wgmma();
        __syncthreads();
    };

    const auto copy_keys = [&](int to, const void* all, std::int64_t stride) {
        copy_rows<kKeyDim / 8, C::kThreads>(start + to,
                                            static_cast<const __nv_bfloat16*>(all) + c.first * stride + key_column,
                                            stride, c.rows, kKeyDim / 8, t);
    };
    if constexpr (!kSummaries) {
        copy_keys(C::kQ, in.q, in.q_stride);
        copy(C::kReads, m.reads + c.place * m.state_elements(), Bytes<C::kKeyBytes>{});
        matrix::load_triangle<C::kThreads>(start + C::kS, m.prepared.second + c.place * kChunk * kChunk);
    }
    copy_keys(C::kK, in.k, in.k_stride);
    copy(C::kRemoves, m.removes + c.place * m.state_elements(), Bytes<C::kKeyBytes>{});
    matrix::load_triangle<C::kThreads>(start + C::kM, m.prepared.triangle + c.place * kChunk * kChunk);
    copy_async_commit();
    fill_shared<kKeyDim, kForm>(m, c, shared, t);
    const int count = shared.count;
    // The states of walks and tiles come one ahead; walk `ahead` of tile `ahead_tile` is the next to be fetched.
    int ahead = -1;
    int ahead_tile = 0;
    const auto fetch_ahead = [&] {
        if (count > 0) {
            do {
                if (++ahead == count) {
                    ahead = 0;
                    ++ahead_tile;
                }
            } while (ahead_tile < m.walk_tiles && ahead_tile >= shared.walks[ahead].tiles);
            if (ahead_tile < m.walk_tiles) {
                const std::int64_t place = walk_place(m, number, shared.numbers[ahead], c.head, ahead_tile);
                copy(C::kX, m.states + place * m.state_elements(), Bytes<C::kKeyBytes>{});
                copy(C::kDX, m.d_states + place * m.state_elements(), Bytes<C::kKeyBytes>{});
            }
        }
        copy_async_commit();
    };
    fetch_ahead();
    copy_async_wait<1>();
    written();

    form_scores<kKeyDim, kForm>(shared, places, start);

    MatrixSums<kKeyDim> sums;
    auto& [d_reads, d_removes, d_keys, scores, solved, across] = sums;
    // Products with v wait in shared memory while the walks need the registers; each thread its own.
    const auto resume = [&](float(&x)[kOwn / 2], const float* from, bool first) {
#pragma unroll
        for (int i = 0; i < kOwn / 2; ++i) x[i] = first ? 0.0F : from[i * C::kThreads + t];
    };
    const auto pause = [&](const float(&x)[kOwn / 2], float* to) {
#pragma unroll
        for (int i = 0; i < kOwn / 2; ++i) to[i * C::kThreads + t] = x[i];
    };
    for (int tile = 0; tile < m.walk_tiles; ++tile) {
        const bool has_values = tile < m.tiles;
        if (has_values) {
            copy_values(C::kV, in.v, in.v_stride, tile);
            if (!kSummaries) copy_values(C::kD, m.call.d_out, m.call.d_out_stride, tile);
        }
        float d_written[kOwn / 2] = {};
#pragma unroll 1
        for (int e = 0; e < count; ++e) {
            const MatrixWalk& walk = shared.walks[e];
            if (tile >= walk.tiles) continue;
            const std::int64_t place = walk_place(m, number, shared.numbers[e], c.head, tile);
            copy(C::kValues, m.values + place * kChunk * kChunk, Bytes<kPanelBytes>{});
            copy(C::kDValues, m.d_values + place * kChunk * kChunk, Bytes<kPanelBytes>{});
            copy_async_commit();
            copy_async_wait<0>();
            written();
            const std::uint32_t x = start + C::kX + panel * kPanelBytes;
            if (!kSummaries && walk.reads_at(c.chunk)) {
                float part[32];
                multiply_group<kColumns, false, false>(part, start + C::kD, x, warp, lane);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int r = row + 8 * half;
                    const float lambda = shared.lambda[(kOwnLevels + e) * kChunk + r];
                    float dot = 0.0F;
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        const std::uint32_t both = *pair_at(C::kReads + panel * kPanelBytes, r, 8 * j + lane % 4 * 2);
                        const int at = 4 * j + 2 * half;
                        dot = fmaf(low_bf16(both), part[at], dot);
                        dot = fmaf(high_bf16(both), part[at + 1], dot);
                        d_reads[at] = fmaf(lambda, part[at], d_reads[at]);
                        d_reads[at + 1] = fmaf(lambda, part[at + 1], d_reads[at + 1]);
                    }
                    dot = sum_quad(dot);
                    if (lane % 4 == 0) shared.dots[panel][e * kChunk + r] += dot;
                }
            }
            multiply_group<kColumns, false, true>(d_removes, start + C::kDValues, x, warp, lane);
            multiply_group<kColumns, false, true>(d_keys, start + C::kValues, start + C::kDX + panel * kPanelBytes,
                                                  warp, lane);
            for (int i = t; i < C::kKeyBytes / 4; i += C::kThreads) {
                const std::uint32_t state = reinterpret_cast<const std::uint32_t*>(aligned + C::kX)[i];
                const std::uint32_t gradient = reinterpret_cast<const std::uint32_t*>(aligned + C::kDX)[i];
                across = fmaf(low_bf16(state), low_bf16(gradient), across);
                across = fmaf(high_bf16(state), high_bf16(gradient), across);
            }
            if (walk.writes_at(c.chunk)) {
#pragma unroll
                for (int i = 0; i < kOwn / 2; i += 2) {
                    const std::uint32_t both = *pair_at(C::kDValues, own_row(i), own_column(i));
                    d_written[i] -= low_bf16(both);
                    d_written[i + 1] -= high_bf16(both);
                }
            }
            __syncthreads();
            fetch_ahead();
        }
        if (!has_values) continue;
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            *pair_at(C::kValues, own_row(i), own_column(i)) = pack_bf16(d_written[i], d_written[i + 1]);
        }
        if (count == 0) {  // else v and dO came with the first walk's tiles
            copy_async_commit();
            copy_async_wait<0>();
        }
        written();
        resume(solved, shared.pairs, tile == 0);
        multiply_tiles<kOwn, kColumns, false>(solved, start + C::kValues, start + C::kV, own_first, warp, lane);
        pause(solved, shared.pairs);
        float d_v[kOwn / 2] = {};
        multiply_tiles<kOwn, kDepth, true>(d_v, start + C::kM, start + C::kValues, own_first, warp, lane);
        if constexpr (!kSummaries) {
            resume(scores, shared.scores, tile == 0);
            multiply_tiles<kOwn, kColumns, false>(scores, start + C::kD, start + C::kV, own_first, warp, lane);
            pause(scores, shared.scores);
            multiply_tiles<kOwn, kDepth, true>(d_v, start + C::kWeighed, start + C::kD, own_first, warp, lane);
        }
        put_value_gradients(m, c, places, d_v, tile, kSummaries);
        __syncthreads();
    }
    resume(solved, shared.pairs, false);
    if constexpr (!kSummaries) resume(scores, shared.scores, false);
    __syncthreads();
    finish_rows<kKeyDim, kForm>(m, c, aligned, sums, added);
}

// A thread block for a chunk of a key head: its heads one after the other, so that gradients of q and k are summed
// where they lie, by the same threads and in the heads' order.
template <int kKeyDim, MatrixForm kForm>
__global__ void __launch_bounds__(MatrixTiles<kKeyDim, kForm>::kThreads, 1)
    rows_kernel(const __grid_constant__ Matrix m) {
    extern __shared__ char memory[];
    const std::uint32_t start = shared_address(memory);
    char* aligned = memory + (((start + 1023U) & ~1023U) - start);
    const auto key_heads = static_cast<unsigned>(m.heads / m.heads_per_key);
    const int first_head = static_cast<int>(blockIdx.x % key_heads) * m.heads_per_key;
#pragma unroll 1
    for (int i = 0; i < m.heads_per_key; ++i) {
        if (i > 0) __syncthreads();  // the last head's tiles have been read
        const MatrixChunk c = chunk_of(m, blockIdx.x / key_heads, first_head + i);
        rows_of_head<kKeyDim, kForm>(m, c, aligned, kForm == MatrixForm::kSummaries || i > 0);
    }
}

template <int kKeyDim, MatrixForm kForm>
void launch(const Matrix& m) {
    using C = MatrixTiles<kKeyDim, kForm>;
    allow_shared(rows_kernel<kKeyDim, kForm>, C::kBytes);
    const auto blocks = static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * (m.heads / m.heads_per_key));
    rows_kernel<kKeyDim, kForm><<<blocks, C::kThreads, C::kBytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_matrix_rows(const Matrix& m) {
    if (m.key_dim == 64) {
        (m.summaries ? launch<64, MatrixForm::kSummaries> : launch<64, MatrixForm::kOutputs>)(m);
    } else {
        (m.summaries ? launch<128, MatrixForm::kSummaries> : launch<128, MatrixForm::kOutputs>)(m);
    }
}

}  // namespace fenwick::cuda::backward
