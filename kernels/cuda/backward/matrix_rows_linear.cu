// matrix_rows of a linear model: one walk, that of its state, which all chunks read and write. With the true state
// that enters a block and the true gradient of the one that leaves it, this is all that a token's gradients need.
#include "kernels/cuda/backward/matrix_key_heads.cuh"
#include "kernels/cuda/backward/matrix_rows_chunk.cuh"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda::backward {
namespace {

constexpr auto kForm = MatrixForm::kLinear;

// One head's gradients of a chunk. `index`: of the heads that share the key head; q and k come with the first.
template <int kKeyDim>
__device__ __forceinline__ void rows_of_head(const Matrix& m, const MatrixChunk& c, char* aligned, int index) {
    using C = MatrixTiles<kKeyDim, kForm>;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwn = 64 / kPanels;
    constexpr auto kDepth = Rows::kDepth;
    constexpr auto kColumns = Rows::kColumns;
    const std::uint32_t start = shared_address(aligned);
    auto& shared = *reinterpret_cast<MatrixShared<kPanels, kForm>*>(aligned + C::kShared);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int own_first = panel * kOwn;
    const std::int64_t number = c.in_batch * kChunks + c.chunk;
    const MixerInputs& in = m.call.inputs;
    const MixerGradients& g = m.call.gradients;
    const std::int64_t key_column = static_cast<std::int64_t>(c.head / m.heads_per_key) * kKeyDim;
    const std::int64_t value_column = static_cast<std::int64_t>(c.head) * m.value_dim;
    const OwnPlaces<kKeyDim> places{aligned, t};

    const auto copy = [&](int to, const __nv_bfloat16* from, int bytes) {
        copy_pieces<C::kThreads>(start + to, from, bytes, t);
    };
    const auto copy_keys = [&](int to, const void* all, std::int64_t stride) {
        copy_rows<kKeyDim / 8, C::kThreads>(start + to,
                                            static_cast<const __nv_bfloat16*>(all) + c.first * stride + key_column,
                                            stride, c.rows, kKeyDim / 8, t);
    };
    // By columns: states into one place, once they have been read there; the four tiles of values into two in turn.
    const auto fetch_states = [&](int tile) {
        if (tile < m.tiles) {
            const std::int64_t place = walk_place(m, number, 0, c.head, tile);
            copy(C::kX, m.states + place * m.state_elements(), C::kKeyBytes);
            copy(C::kDX, m.d_states + place * m.state_elements(), C::kKeyBytes);
        }
    };
    const auto fetch_values = [&](int tile) {
        if (tile < m.tiles) {
            const std::int64_t place = walk_place(m, number, 0, c.head, tile);
            const int stage = tile % 2 * C::kStageBytes;
            copy(stage + C::kValues, m.values + place * kChunk * kChunk, kPanelBytes);
            copy(stage + C::kDValues, m.d_values + place * kChunk * kChunk, kPanelBytes);
            const auto copy_values = [&](int to, const void* all, std::int64_t stride) {
                const auto* from = static_cast<const __nv_bfloat16*>(all) + c.first * stride + value_column + tile * 64;
                copy_rows<8, C::kThreads>(start + stage + to, from, stride, c.rows, (m.value_dim - tile * 64) / 8, t);
            };
            copy_values(C::kV, in.v, in.v_stride);
            copy_values(C::kD, m.call.d_out, m.call.d_out_stride);
        }
    };
    if (index == 0) {
        copy_keys(C::kQ, in.q, in.q_stride);
        copy_keys(C::kK, in.k, in.k_stride);
    }
    copy(C::kT, m.triangle + c.place * kChunk * kChunk, kPanelBytes);
    copy_async_commit();
    fetch_states(0);
    fetch_values(0);
    copy(C::kRemoves, m.removes + c.place * m.state_elements(), C::kKeyBytes);
    copy_async_commit();
    fill_decays(m, c, shared, t);
    copy_async_wait<1>();
    __syncthreads();
    form_scores<kKeyDim, kForm>(shared, places, start);

    MatrixSums<kKeyDim> sums;
#pragma unroll 1
    for (int tile = 0; tile < m.tiles; ++tile) {
        fetch_values(tile + 1);
        copy_async_commit();
        copy_async_wait<1>();
        fence_for_wgmma();
        __syncthreads();
        const int stage = tile % 2 * C::kStageBytes;
        const std::uint32_t values = start + stage + C::kValues;
        const std::uint32_t d_values = start + stage + C::kDValues;
        const std::uint32_t v = start + stage + C::kV;
        const std::uint32_t d_out = start + stage + C::kD;
        {
            const std::uint32_t x = start + C::kX + panel * kPanelBytes;
            multiply_group<kColumns, false, true>(sums.d_reads, d_out, x, warp, lane);
            multiply_group<kColumns, false, true>(sums.d_removes, d_values, x, warp, lane);
            multiply_group<kColumns, false, true>(sums.d_keys, values, start + C::kDX + panel * kPanelBytes, warp,
                                                  lane);
        }
#pragma unroll
        for (int i = 0; i < C::kKeyBytes / 16 / C::kThreads; ++i) {
            const uint4 x = reinterpret_cast<const uint4*>(aligned + C::kX)[t + i * C::kThreads];
            const uint4 d = reinterpret_cast<const uint4*>(aligned + C::kDX)[t + i * C::kThreads];
            const auto add = [&](std::uint32_t a, std::uint32_t b) {
                sums.across = fmaf(low_bf16(a), low_bf16(b), sums.across);
                sums.across = fmaf(high_bf16(a), high_bf16(b), sums.across);
            };
            add(x.x, d.x);
            add(x.y, d.y);
            add(x.z, d.z);
            add(x.w, d.w);
        }
        __syncthreads();  // the states have been read
        fetch_states(tile + 1);
        copy_async_commit();
        // dU is dV', of which the walk has left the negative.
        float d_v[kOwn / 2] = {};
        multiply_tiles<kOwn, kColumns, false>(sums.solved, d_values, v, own_first, warp, lane);
        multiply_tiles<kOwn, kDepth, true>(d_v, start + C::kT, d_values, own_first, warp, lane);
#pragma unroll
        for (float& x : d_v) x = -x;
        multiply_tiles<kOwn, kColumns, false>(sums.scores, d_out, v, own_first, warp, lane);
        multiply_tiles<kOwn, kDepth, true>(d_v, start + C::kP, d_out, own_first, warp, lane);
        const auto place = [&](int i) {
            const int r = places.row(i);
            const int column = tile * 64 + places.column(i);
            return r < c.rows && column < m.value_dim ? g.v + (c.first + r) * g.v_stride + value_column + column
                                                      : nullptr;
        };
        put_pairs(d_v, place, false);
        __syncthreads();  // the values have been read
    }
#pragma unroll
    for (float& x : sums.solved) x = -x;
    finish_rows<kKeyDim, kForm>(m, c, aligned, sums, index > 0);
}

template <int kKeyDim>
struct RowsOfHead {
    static __device__ __forceinline__ void run(const Matrix& m, const MatrixChunk& c, char* aligned, int index) {
        rows_of_head<kKeyDim>(m, c, aligned, index);
    }
};

template <int kKeyDim>
void launch(const Matrix& m) {
    launch_by_key_heads<RowsOfHead<kKeyDim>, MatrixTiles<kKeyDim, kForm>>(m);
}

}  // namespace

void launch_matrix_rows_linear(const Matrix& m) {
    (m.key_dim == 64 ? launch<64> : launch<128>)(m);
}

}  // namespace fenwick::cuda::backward
