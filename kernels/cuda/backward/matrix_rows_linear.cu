// matrix_rows of a linear model (matrix.h): what a chunk's queries and keys get, of the state and its gradient and of
// its pairs. With the true state that enters a block and the true gradient of the one that leaves it, this is all that
// a token's gradients need beside dV.
//
// Three warpgroups, each with one sum [64, d_k] in its registers. A thread block takes chunks of key heads as they
// come, so that the tiles of the next chunk or head arrive while the last products of this one are formed.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_rows_tiles.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

/// A thread's place in its warpgroup's sums: rows `row` and row + 8, of every 8 columns 2 quad and 2 quad + 1.
struct Place {
    int warp, lane, row, quad;

    [[nodiscard]] static __device__ __forceinline__ Place of(int t) {
        const int lane = t % 32;
        const int warp = t / 32 % 4;
        return {warp, lane, 16 * warp + lane / 4, lane % 4};
    }
};

// x *= factor by rows; `dots` gets <x, row of the tiles> of both rows (of a quad's lanes, the first one's holds).
template <int kKeyDim>
__device__ __forceinline__ void scale_rows(float (&x)[kKeyDim / 2], const float* factor, std::uint32_t tiles,
                                           const Place& at, float (&dots)[2]) {
    const float factors[2] = {factor == nullptr ? 1.0F : factor[at.row], factor == nullptr ? 1.0F : factor[at.row + 8]};
    float sums[2][2] = {};
#pragma unroll
    for (int step = 0; step < kKeyDim / 16; ++step) {
        std::uint32_t a[4];  // lies as the sums do
        load_a(a, tiles + step / 4 * kPanelBytes, at.warp, step % 4, at.lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& first = x[8 * step + 2 * i];
            float& second = x[8 * step + 2 * i + 1];
            first *= factors[i % 2];
            second *= factors[i % 2];
            float& sum = sums[i % 2][i / 2];
            sum = fmaf(low_bf16(a[i]), first, sum);
            sum = fmaf(high_bf16(a[i]), second, sum);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) dots[half] = sum_quad(sums[half][0] + sums[half][1]);
}

// <dX', X> of 64 columns, a warpgroup's share.
template <int kKeyDim>
__device__ __forceinline__ float multiply_states(const char* set, int t) {
    using C = RowTiles<kKeyDim>;
    float sums[4] = {};  // four chains
#pragma unroll
    for (int i = 0; i < C::kKeyBytes / 16 / kRoleThreads; ++i) {
        const uint4 a = reinterpret_cast<const uint4*>(set + C::kX)[i * kRoleThreads + t % kRoleThreads];
        const uint4 b = reinterpret_cast<const uint4*>(set + C::kDX)[i * kRoleThreads + t % kRoleThreads];
        const auto add = [](float& sum, std::uint32_t u, std::uint32_t v) {
            sum = fmaf(low_bf16(u), low_bf16(v), sum);
            sum = fmaf(high_bf16(u), high_bf16(v), sum);
        };
        add(sums[0], a.x, b.x);
        add(sums[1], a.y, b.y);
        add(sums[2], a.z, b.z);
        add(sums[3], a.w, b.w);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The products of 64 columns of values: Z dX'^T, and <dX', X>; or of queries, dO X^T and dO Z^T, or of read keys, -dV
// X^T and -dV Z^T.
template <int kKeyDim>
__device__ __forceinline__ void add_written(float (&sum)[kKeyDim / 2], float& across, const char* set, const Place& at,
                                            int t) {
    using C = RowTiles<kKeyDim>;
    const std::uint32_t tiles = shared_address(set);
    std::uint32_t a[4][4];
    load_fragments<true>(a, tiles + C::kZ, at.warp, at.lane);
    matrix::products_begin(sum);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        matrix::product_nn<kKeyDim>(sum, a[step], tiles + C::kDX, step * 16 * kTileRowBytes, kPanelBytes);
    }
    matrix::products_commit();
    across += multiply_states<kKeyDim>(set, t);
    matrix::products_wait<0>();
    matrix::keep(sum);
}
template <int kKeyDim>
__device__ __forceinline__ void add_read(float (&sum)[kKeyDim / 2], float (&pairs)[32], const char* set, Role role,
                                         const Place& at) {
    using C = RowTiles<kKeyDim>;
    const std::uint32_t tiles = shared_address(set);
    std::uint32_t a[4][4];
    if (role == Role::kQueries) {
        load_fragments<false>(a, tiles + C::kD, at.warp, at.lane);
    } else {
        load_fragments<true>(a, tiles + C::kDV, at.warp, at.lane);
    }
    matrix::products_begin(sum);
    matrix::keep(pairs);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        const int depth = step * 16 * kTileRowBytes;
        matrix::product_nn<kKeyDim>(sum, a[step], tiles + C::kX, depth, kPanelBytes);
        matrix::product_nn<64>(pairs, a[step], tiles + C::kZ, depth, kPanelBytes);
    }
    matrix::products_commit();
    matrix::products_wait<0>();
    matrix::keep(sum);
    matrix::keep(pairs);
}

// sum += B C for an operand B [64, 64] and the rows of q or k.
template <int kKeyDim>
__device__ __forceinline__ void add_rows(float (&sum)[kKeyDim / 2], const std::uint32_t (&b)[4][4],
                                         std::uint32_t rows) {
    matrix::products_begin(sum);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        matrix::product_nn<kKeyDim>(sum, b[step], rows, step * 16 * kTileRowBytes, kPanelBytes);
    }
    matrix::products_end(sum);
}

// Strides are `opaque`, or their multiples would be kept in registers, of which there are too few.
template <int kKeyDim>
__device__ __forceinline__ void put_rows(const MatrixChunk& c, const float (&sum)[kKeyDim / 2], float* to,
                                         std::int64_t stride, int key_head, const Place& at, bool added) {
    stride = matrix::opaque(stride);
    float* const first = to + (c.first + at.row) * stride + key_head * kKeyDim + at.quad * 2;
    float* const rows[2] = {at.row < c.rows ? first : nullptr, at.row + 8 < c.rows ? first + 8 * stride : nullptr};
    put_pairs(sum, rows, kKeyDim / 8, added);
}
// x[half] of rows at.row and at.row + 8 in a column of a matrix with a column a head.
__device__ __forceinline__ void put_column(const MatrixChunk& c, const float (&x)[2], float* to, std::int64_t stride,
                                           const Place& at) {
    if (at.quad != 0) return;
    stride = matrix::opaque(stride);
    to += (c.first + at.row) * stride + c.head;
    if (at.row < c.rows) to[0] = x[0];
    if (at.row + 8 < c.rows) to[8 * stride] = x[1];
}

// By one warp: log decays' gradients.
__device__ __forceinline__ void put_decays(const Matrix& m, const MatrixChunk& c, const RowShared& shared,
                                           const ChunkDecays& decays, unsigned place, int lane) {
    float2 inside = make_float2(0.0F, 0.0F);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float2 part = reinterpret_cast<const float2*>(shared.crossing[i / 4][i % 4])[lane];
        inside.x += part.x;
        inside.y += part.y;
    }
    const auto pair = [&](const float* x) { return reinterpret_cast<const float2*>(x)[lane]; };
    const float2 queries = pair(shared.incoming[0]);
    const float2 keys = pair(shared.incoming[1]);
    const float2 others =
        crossing_rows(make_float2(queries.x + keys.x, queries.y + keys.y), pair(shared.outgoing[place]), lane);
    const float(&across)[4] = shared.across[place];
    const float all = decays.keep() * (across[0] + across[1] + across[2] + across[3]);
    const MixerGradients& g = m.call.gradients;
    const std::int64_t stride = matrix::opaque(g.decay_stride);
    float* const to = g.log_decay + (c.first + 2 * lane) * stride + c.head;
    if (2 * lane < c.rows) to[0] = inside.x + all + others.x;
    if (2 * lane + 1 < c.rows) to[stride] = inside.y + all + others.y;
}

// What queries, or keys that are read, do once a turn's columns are summed: dQ; or what the written keys' threads take.
template <int kKeyDim>
__device__ __forceinline__ void finish_reads(const Matrix& m, Copies<kKeyDim>& copies, char* tiles,
                                             float (&sum)[kKeyDim / 2], const float (&pairs)[32], Role role,
                                             const Turn& turn, const Place& at, int t) {
    using C = RowTiles<kKeyDim>;
    const int number = role == Role::kQueries ? 0 : 1;
    RowShared& shared = copies.shared;
    const ChunkDecays decays = copies.decays(turn);
    const std::uint32_t keys = shared_address(tiles + C::kK);
    const std::uint32_t own = shared_address(tiles + (role == Role::kQueries ? C::kQ : C::kK));
    copies.take(role, turn);
    float dots[2];
    scale_rows<kKeyDim>(sum, decays.until(), own, at, dots);
    if (at.quad == 0) {
        shared.incoming[number][at.row] = dots[0];
        shared.incoming[number][at.row + 8] = dots[1];
    }
    float scores[32];
    matrix::clear(scores);
    matrix::products_begin(scores);
#pragma unroll
    for (int step = 0; step < kKeyDim / 16; ++step) {
        matrix::product_tiles(scores, own, keys, step / 4 * kPanelBytes + step % 4 * 32, at.warp);
    }
    matrix::products_end(scores);
    std::uint32_t weighed[4][4];
    form_pairs(pairs, scores, role == Role::kReadKeys, decays, tiles + C::kPairs + number * kPanelBytes, weighed,
               shared.crossing[number][at.warp], at.warp, at.lane);
    if (role == Role::kQueries) copies.hand_over(role, turn);
    add_rows<kKeyDim>(sum, weighed, keys);
    if (role == Role::kQueries) {
        copies.template leave_keys<false>(turn);
        const MixerGradients& g = m.call.gradients;
        const MatrixChunk c = copies.turns.chunk(m, turn);
        put_rows<kKeyDim>(c, sum, g.q, g.q_stride, copies.turns.key_head(turn), at, turn.index > 0);
        return;
    }
    auto* const handed = reinterpret_cast<float4*>(tiles + C::kHanded) + t % kRoleThreads;
#pragma unroll
    for (int i = 0; i < kKeyDim / 8; ++i) {
        handed[i * kRoleThreads] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
    copies.hand_over(role, turn);
    copies.template leave_keys<false>(turn);
}

// dK, and gradients of beta and of log decays.
template <int kKeyDim>
__device__ __forceinline__ void finish_writes(const Matrix& m, Copies<kKeyDim>& copies, char* tiles,
                                              float (&sum)[kKeyDim / 2], float across, const Turn& turn,
                                              const Place& at, int t) {
    using C = RowTiles<kKeyDim>;
    RowShared& shared = copies.shared;
    const ChunkDecays decays = copies.decays(turn);
    const float beta[2] = {decays.beta()[at.row], decays.beta()[at.row + 8]};
    const std::uint32_t keys = shared_address(tiles + C::kK);
    const unsigned place = turn.number % 2;
    float dots[2];
    scale_rows<kKeyDim>(sum, decays.writes(), keys, at, dots);
    across = sum_warp(across);
    if (at.lane == 0) shared.across[place][at.warp] = across;
    if (at.quad == 0) {
        shared.outgoing[place][at.row] = beta[0] * dots[0];
        shared.outgoing[place][at.row + 8] = beta[1] * dots[1];
    }
    copies.hand_over(Role::kWrittenKeys, turn);
    std::uint32_t a[2][4][4];  // F^T and H^T
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
        load_fragments<true>(a[kind], shared_address(tiles + C::kPairs) + kind * kPanelBytes, at.warp, at.lane);
    }
    matrix::products_begin(sum);
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
        const std::uint32_t rows = kind == 0 ? shared_address(tiles + C::kQ) : keys;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            matrix::product_nn<kKeyDim>(sum, a[kind][step], rows, step * 16 * kTileRowBytes, kPanelBytes);
        }
    }
    matrix::products_end(sum);
    scale_rows<kKeyDim>(sum, nullptr, keys, at, dots);
    copies.template leave_keys<true>(turn);
    const auto* const handed = reinterpret_cast<const float4*>(tiles + C::kHanded) + t % kRoleThreads;
#pragma unroll
    for (int i = 0; i < kKeyDim / 8; ++i) {
        const float4 read = handed[i * kRoleThreads];
        sum[4 * i] = fmaf(beta[0], sum[4 * i], read.x);
        sum[4 * i + 1] = fmaf(beta[0], sum[4 * i + 1], read.y);
        sum[4 * i + 2] = fmaf(beta[1], sum[4 * i + 2], read.z);
        sum[4 * i + 3] = fmaf(beta[1], sum[4 * i + 3], read.w);
    }
    const MatrixChunk c = copies.turns.chunk(m, turn);
    if (at.warp == 3) put_decays(m, c, shared, decays, place, at.lane);  // the first warp asks for copies
    copies.take(Role::kWrittenKeys, turn);
    const MixerGradients& g = m.call.gradients;
    put_rows<kKeyDim>(c, sum, g.k, g.k_stride, copies.turns.key_head(turn), at, turn.index > 0);
    put_column(c, dots, g.beta, g.beta_stride, at);
}

// A warpgroup's part of all turns: of each, columns(sums, set) for every set, then finish(sums, turn).
template <int kKeyDim, bool kWritten, class Sums, class Columns, class Finish>
__device__ __forceinline__ void each_turn(const Matrix& m, Copies<kKeyDim>& copies, const char* tiles,
                                          const Columns& columns, const Finish& finish) {
    using C = RowTiles<kKeyDim>;
    for (Turn turn{blockIdx.x}; copies.turns.has(turn); turn.next(copies.turns.heads_per_key)) {
        Sums sums;
#pragma unroll 1
        for (int tile = 0; tile < m.tiles; ++tile) {
            const unsigned use = turn.number * static_cast<unsigned>(m.tiles) + static_cast<unsigned>(tile);
            copies.await_columns(use);
            columns(sums, tiles + C::kSets + use % 2 * C::kSetBytes);
            copies.template leave_columns<kWritten>(use);
        }
        copies.await_keys(turn);
        finish(sums, turn);
    }
}

template <int kKeyDim>
struct ReadSums {
    float rows[kKeyDim / 2] = {};
    float pairs[32] = {};
};
template <int kKeyDim>
struct WrittenSums {
    float rows[kKeyDim / 2] = {};
    float across = 0.0F;
};

template <int kKeyDim>
__global__ void __launch_bounds__(kRowThreads, 1)
    rows_kernel(const __grid_constant__ Matrix m, const __grid_constant__ RowBoxes boxes, const Turns turns) {
    using C = RowTiles<kKeyDim>;
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* tiles = memory + (start - shared_address(memory));
    const int t = static_cast<int>(threadIdx.x);
    Copies<kKeyDim> copies(m, boxes, turns, tiles);
    const Place at = Place::of(t);
    if (t < 2 * kRoleThreads) {
        const Role role = t < kRoleThreads ? Role::kQueries : Role::kReadKeys;
        using Sums = ReadSums<kKeyDim>;
        each_turn<kKeyDim, false, Sums>(
            m, copies, tiles,
            [&](Sums& sums, const char* set) { add_read<kKeyDim>(sums.rows, sums.pairs, set, role, at); },
            [&](Sums& sums, const Turn& turn) {
                finish_reads<kKeyDim>(m, copies, tiles, sums.rows, sums.pairs, role, turn, at, t);
            });
    } else {
        using Sums = WrittenSums<kKeyDim>;
        each_turn<kKeyDim, true, Sums>(
            m, copies, tiles,
            [&](Sums& sums, const char* set) { add_written<kKeyDim>(sums.rows, sums.across, set, at, t); },
            [&](Sums& sums, const Turn& turn) {
                finish_writes<kKeyDim>(m, copies, tiles, sums.rows, sums.across, turn, at, t);
            });
    }
}

template <int kKeyDim>
void launch(const Matrix& m) {
    using C = RowTiles<kKeyDim>;
    const MixerInputs& in = m.call.inputs;
    const std::int64_t key_heads = m.heads / m.heads_per_key;
    const RowBoxes boxes{
        make_tensor_map(in.q, m.rows, key_heads * kKeyDim, in.q_stride),
        make_tensor_map(in.k, m.rows, key_heads * kKeyDim, in.k_stride),
        make_tensor_map(m.call.d_out, m.rows, std::int64_t{m.heads} * m.value_dim, m.call.d_out_stride)};
    const Turns turns{static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * key_heads),
                      static_cast<unsigned>(m.heads_per_key), static_cast<unsigned>(key_heads)};
    allow_shared(rows_kernel<kKeyDim>, C::kBytes);
    const unsigned blocks = std::min(turns.pairs, static_cast<unsigned>(multiprocessors()));
    rows_kernel<kKeyDim><<<blocks, kRowThreads, C::kBytes, m.call.stream>>>(m, boxes, turns);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_matrix_rows_linear(const Matrix& m) {
    (m.key_dim == 64 ? launch<64> : launch<128>)(m);
}

}  // namespace fenwick::cuda::backward
