// matrix_rows of a linear model: one walk, that of its state, which all chunks read and write. With the true state
// that enters a block and the true gradient of the one that leaves it, this is all that a token's gradients need.
//
// A thread block takes chunks of key heads as they come, so that tiles of the next chunk or head arrive while the last
// products of this one are formed.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_rows_chunk.cuh"
#include "kernels/cuda/box_copy.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

constexpr auto kForm = MatrixForm::kLinear;
constexpr bool kByAccelerator = FENWICK_MATRIX_WGMMA != 0;  // copies what the walks have left

/// What a thread block does next: a chunk and a head, heads of a key head one after the other, so that gradients of q
/// and k are summed where they lie, by the same threads and in the heads' order.
struct Turn {
    unsigned pair;  // of a chunk and a key head
    int index;      // of the head among those of its key head

    [[nodiscard]] __device__ __forceinline__ Turn next(const Matrix& m) const {
        return index + 1 < m.heads_per_key ? Turn{pair, index + 1} : Turn{pair + gridDim.x, 0};
    }
    [[nodiscard]] __device__ __forceinline__ MatrixChunk chunk(const Matrix& m) const {
        const auto key_heads = static_cast<unsigned>(m.heads / m.heads_per_key);
        return chunk_of(m, pair / key_heads, static_cast<int>(pair % key_heads) * m.heads_per_key + index);
    }
};

template <int kKeyDim>
struct Copies {
    using C = MatrixTiles<kKeyDim, kForm>;
    const Matrix& m;
    std::uint32_t start;
    std::uint32_t barriers;  // of each set's bytes, where the accelerator copies
    int t;

    template <int kBytes>
    __device__ __forceinline__ void pieces(std::uint32_t to, const __nv_bfloat16* from, Bytes<kBytes> bytes,
                                           std::uint32_t barrier) const {
        if constexpr (kByAccelerator) {
            if (t == 0) copy_bytes(start + to, from, kBytes, barrier);
        } else {
            copy_pieces<C::kThreads>(start + to, from, bytes, t);
        }
    }
    // The tiles of 64 columns into set 0 or 1: X and dX', V', dV' (all transposed), v and dO.
    __device__ __forceinline__ void columns(const MatrixChunk& c, int tile, int set) const {
        const int to = set * C::kSetBytes;
        const std::uint32_t barrier = barriers + 8 * set;
        const std::int64_t place = walk_place(m, c.in_batch * kChunks + c.chunk, 0, c.head, tile);
        if (kByAccelerator && t == 0) {
            fence_for_wgmma();
            expect_bytes(barrier, 2 * (C::kKeyBytes + kPanelBytes));
        }
        pieces(to + C::kX, m.states + place * m.state_elements(), Bytes<C::kKeyBytes>{}, barrier);
        pieces(to + C::kDX, m.d_states + place * m.state_elements(), Bytes<C::kKeyBytes>{}, barrier);
        pieces(to + C::kValues, m.values + place * kChunk * kChunk, Bytes<kPanelBytes>{}, barrier);
        pieces(to + C::kDValues, m.d_values + place * kChunk * kChunk, Bytes<kPanelBytes>{}, barrier);
        const std::int64_t column = static_cast<std::int64_t>(c.head) * m.value_dim + tile * 64;
        const auto values = [&](int at, const void* all, std::int64_t stride) {
            const auto* from = static_cast<const __nv_bfloat16*>(all) + c.first * stride + column;
            copy_rows<8, C::kThreads>(start + to + at, from, stride, c.rows, (m.value_dim - tile * 64) / 8, t);
        };
        values(C::kV, m.call.inputs.v, m.call.inputs.v_stride);
        values(C::kD, m.call.d_out, m.call.d_out_stride);
    }
    // What the chunk's own products take; q and k come with the first head of a key head.
    __device__ __forceinline__ void own(const MatrixChunk& c, bool keys) const {
        matrix::load_triangle<C::kThreads>(start + C::kT, m.prepared.triangle + c.place * kChunk * kChunk);
        matrix::load_triangle<C::kThreads>(start + C::kS, m.prepared.second + c.place * kChunk * kChunk);
        if (!keys) return;
        const std::int64_t column = static_cast<std::int64_t>(c.head / m.heads_per_key) * kKeyDim;
        const auto rows = [&](int at, const void* all, std::int64_t stride) {
            const auto* from = static_cast<const __nv_bfloat16*>(all) + c.first * stride + column;
            copy_rows<kKeyDim / 8, C::kThreads>(start + at, from, stride, c.rows, kKeyDim / 8, t);
        };
        rows(C::kK, m.call.inputs.k, m.call.inputs.k_stride);
        rows(C::kQ, m.call.inputs.q, m.call.inputs.q_stride);
    }
};

// dQ~, dW, dK^ and <dX', X> of 64 columns, whose tiles lie in `set`.
template <int kKeyDim>
__device__ __forceinline__ void add_states(MatrixSums<kKeyDim>& sums, char* tiles, std::uint32_t start, int set,
                                           int t) {
    using C = MatrixTiles<kKeyDim, kForm>;
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const std::uint32_t at = start + set * C::kSetBytes;
    const std::uint32_t x = at + C::kX + t / 128 * kPanelBytes;
    const std::uint32_t d_x = at + C::kDX + t / 128 * kPanelBytes;
    std::uint32_t first[4][4];
    std::uint32_t second[4][4];
    issue_group<Rows::kDepth, false, true>(sums.d_reads, first, at + C::kD, x, warp, lane);
    issue_group<Rows::kDepth, true, true>(sums.d_removes, second, at + C::kDValues, x, warp, lane);
    product_wait<1>();
    product_done(sums.d_reads);
    issue_group<Rows::kDepth, true, true>(sums.d_keys, first, at + C::kValues, d_x, warp, lane);
    const char* own = tiles + set * C::kSetBytes + t * sizeof(uint4);
#pragma unroll
    for (int i = 0; i < C::kKeyBytes / 16 / C::kThreads; ++i) {
        const uint4 a = reinterpret_cast<const uint4*>(own + C::kX)[i * C::kThreads];
        const uint4 b = reinterpret_cast<const uint4*>(own + C::kDX)[i * C::kThreads];
        const auto add = [&](std::uint32_t u, std::uint32_t v) {
            sums.across = fmaf(low_bf16(u), low_bf16(v), sums.across);
            sums.across = fmaf(high_bf16(u), high_bf16(v), sums.across);
        };
        add(a.x, b.x);
        add(a.y, b.y);
        add(a.z, b.z);
        add(a.w, b.w);
    }
    product_wait<0>();
    product_done(sums.d_removes);
    product_done(sums.d_keys);
}

// dV of 64 columns, and what they add to dO V^T and dU V^T. dU is dV', of which the walk has left the negative.
template <int kKeyDim>
__device__ __forceinline__ void add_values(const Matrix& m, const MatrixChunk& c, MatrixSums<kKeyDim>& sums,
                                           const OwnPlaces<kKeyDim>& places, std::uint32_t start, int set, int tile) {
    using C = MatrixTiles<kKeyDim, kForm>;
    constexpr int kOwn = OwnPlaces<kKeyDim>::kOwn;
    const int lane = places.t % 32;
    const int warp = places.t / 32 % 4;
    const int first = places.t / 128 * kOwn;
    const std::uint32_t at = start + set * C::kSetBytes;
    float d_v[kOwn / 2] = {};
    multiply_tiles<kOwn, Rows::kColumns, true>(sums.solved, at + C::kDValues, at + C::kV, first, warp, lane);
    multiply_tiles<kOwn, Rows::kColumns, true>(d_v, start + C::kT, at + C::kDValues, first, warp, lane);
#pragma unroll
    for (float& x : d_v) x = -x;
    multiply_tiles<kOwn, Rows::kColumns, false>(sums.scores, at + C::kD, at + C::kV, first, warp, lane);
    multiply_tiles<kOwn, Rows::kDepth, true>(d_v, start + C::kP, at + C::kD, first, warp, lane);
    put_value_gradients(m, c, places, d_v, tile, false);
}

// The tiles of a turn's columns take the two sets in turn, the last one set 0, which finish_rows works in. Where the
// first one takes set 1 it comes during the turn before.
template <int kKeyDim>
__global__ void __launch_bounds__(MatrixTiles<kKeyDim, kForm>::kThreads, 1)
    rows_kernel(const __grid_constant__ Matrix m, unsigned pairs) {
    using C = MatrixTiles<kKeyDim, kForm>;
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    auto& shared = *reinterpret_cast<MatrixShared<C::kPanels, kForm>*>(aligned + C::kShared);
    const int t = static_cast<int>(threadIdx.x);
    const OwnPlaces<kKeyDim> places{aligned, t};
    __shared__ std::uint64_t bytes_there[2];  // of each set
    const std::uint32_t barriers = kByAccelerator ? shared_address(bytes_there) : 0;
    if constexpr (kByAccelerator) {
        if (t < 2) init_byte_barrier(barriers + 8 * t);
        __syncthreads();
    }
    unsigned phases = 0;  // a bit a set
    const Copies<kKeyDim> copies{m, start, barriers, t};
    const bool ahead = m.tiles % 2 == 0;
    const auto written = [] {  // makes copies that have come and ordinary stores visible to all
        fence_for_wgmma();
        __syncthreads();
    };
    bool there = false;  // the first columns' tiles are on their way
    for (Turn turn{blockIdx.x, 0}; turn.pair < pairs; turn = turn.next(m)) {
        const MatrixChunk c = turn.chunk(m);
        const ChunkDecay decay = load_decay(m, c, t);
        // Groups of copies: the first columns, the chunk's own, then of every tile the one after it.
        if (!there) copies.columns(c, 0, (m.tiles - 1) % 2);
        copy_async_commit();
        copies.own(c, turn.index == 0);
        copy_async_commit();
        MatrixSums<kKeyDim> sums;
#pragma unroll 1
        for (int tile = 0; tile < m.tiles; ++tile) {
            const int set = (m.tiles - 1 - tile) % 2;
            if (tile + 1 < m.tiles) {
                copies.columns(c, tile + 1, 1 - set);
            } else if (ahead) {
                const Turn next = turn.next(m);
                if (next.pair < pairs) copies.columns(next.chunk(m), 0, 1);
            }
            copy_async_commit();
            if (tile == 0) {
                copy_async_wait<2>();
            } else {
                copy_async_wait<1>();
            }
            written();
            if constexpr (kByAccelerator) {
                await_bytes(barriers + 8 * set, phases >> set);
                phases ^= 1U << set;
            }
            add_states<kKeyDim>(sums, aligned, start, set, t);
            if (tile == 0) {
                fill_decays(decay, shared, t);
                copy_async_wait<1>();
                written();
                form_scores<kKeyDim, kForm>(shared, places, start);
                __syncthreads();
            }
            add_values<kKeyDim>(m, c, sums, places, start, set, tile);
            __syncthreads();  // the set has been read
        }
        there = ahead;
#pragma unroll
        for (float& x : sums.solved) x = -x;
        finish_rows<kKeyDim, kForm>(m, c, aligned, sums, turn.index > 0);
    }
}

template <int kKeyDim>
void launch(const Matrix& m) {
    using C = MatrixTiles<kKeyDim, kForm>;
    allow_shared(rows_kernel<kKeyDim>, C::kBytes);
    const auto pairs = static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * (m.heads / m.heads_per_key));
    const unsigned blocks = std::min(pairs, static_cast<unsigned>(multiprocessors()));
    rows_kernel<kKeyDim><<<blocks, C::kThreads, C::kBytes, m.call.stream>>>(m, pairs);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_matrix_rows_linear(const Matrix& m) {
    (m.key_dim == 64 ? launch<64> : launch<128>)(m);
}

}  // namespace fenwick::cuda::backward
