// T, W, U and Q~ of every chunk and head. T is solved for in fp32 by blocks of 16: those on the diagonal by
// substitution in registers, the others by products. As an operand it is split into two bf16 numbers, as in the forward
// pass.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kPitch = kChunk + 1;
constexpr int kSolveBytes = (kChunk * kPitch * 4 + 1023) / 1024 * 1024;
constexpr int kBlock = 16;  // of the blocks by which a triangle is inverted

// (I + L)^-1 for a strictly lower triangular L, both [64][kPitch]: blocks on the diagonal by substitution, a column a
// thread; then blocks at distance d = 1, 2, 3 by X[i][j] = -X[i][i] (sum over j <= k < i of L[i][k] X[k][j]). The sum
// lies above the diagonal until it is used; what lies there at the end is to be taken for zero.
template <int kThreads>
__device__ void invert(const float* lower, float* inverse, int t) {
    constexpr int kSquare = kBlock * kBlock;
    if (t < kChunk) {
        const int first = t / kBlock * kBlock;
        float x[kBlock];
#pragma unroll
        for (int i = 0; i < kBlock; ++i) {
            float sum = first + i == t ? 1.0F : 0.0F;
#pragma unroll
            for (int j = 0; j < i; ++j) sum = fmaf(-lower[(first + i) * kPitch + first + j], x[j], sum);
            x[i] = sum;  // 0 above the diagonal
            inverse[(first + i) * kPitch + t] = sum;
        }
    }
    __syncthreads();
    for (int distance = 1; distance < kChunk / kBlock; ++distance) {
        const int blocks = kChunk / kBlock - distance;
        for (int e = t; e < blocks * kSquare; e += kThreads) {
            const int left = e / kSquare * kBlock;
            const int right = left + distance * kBlock;
            const int r = e / kBlock % kBlock;
            const int column = e % kBlock;
            float sum = 0.0F;
            for (int k = left; k < right; ++k) {
                sum = fmaf(lower[(right + r) * kPitch + k], inverse[k * kPitch + left + column], sum);
            }
            inverse[(left + r) * kPitch + right + column] = sum;
        }
        __syncthreads();
        for (int e = t; e < blocks * kSquare; e += kThreads) {
            const int left = e / kSquare * kBlock;
            const int right = left + distance * kBlock;
            const int r = e / kBlock % kBlock;
            const int column = e % kBlock;
            float sum = 0.0F;
            for (int k = 0; k < kBlock; ++k) {
                sum =
                    fmaf(inverse[(right + r) * kPitch + right + k], inverse[(left + k) * kPitch + right + column], sum);
            }
            inverse[(right + r) * kPitch + left + column] = -sum;
        }
        __syncthreads();
    }
}

template <int kKeyDim>
struct PrepareTiles {
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + kPanels * kPanelBytes;
    static constexpr int kS = kK + kPanels * kPanelBytes;
    static constexpr int kDecayed = kS + kPanelBytes;          // T e^G: high part, rest
    static constexpr int kLower = kDecayed + 2 * kPanelBytes;  // fp32 [64][kPitch]: L; then T: high part, rest
    static constexpr int kInverse = kLower + kSolveBytes;      // the same
    static constexpr int kV = kInverse + kSolveBytes;          // by tiles; then W
    /// For so many tiles of V.
    [[nodiscard]] static int bytes(int tiles) { return 1024 + kV + std::max(tiles, kPanels) * kPanelBytes; }
};

template <int kKeyDim>
__global__ void __launch_bounds__(PrepareTiles<kKeyDim>::kThreads) prepare_kernel(const __grid_constant__ Matrix m) {
    using C = PrepareTiles<kKeyDim>;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwn = 64 / kPanels;
    extern __shared__ char memory[];
    __shared__ double cumulative[kChunk];
    __shared__ float2 in_chunk[kChunk];
    __shared__ float beta[kChunk];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    auto* lower = reinterpret_cast<float*>(aligned + C::kLower);
    auto* inverse = reinterpret_cast<float*>(aligned + C::kInverse);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int row = 16 * warp + lane / 4;
    const MatrixChunk c = chunk_of(m, blockIdx.x / static_cast<unsigned>(m.heads),
                                   static_cast<int>(blockIdx.x % static_cast<unsigned>(m.heads)));
    const MixerInputs& in = m.call.inputs;
    const std::int64_t key_column = static_cast<std::int64_t>(c.head / m.heads_per_key) * kKeyDim;
    const auto* q = static_cast<const __nv_bfloat16*>(in.q) + c.first * in.q_stride + key_column;
    const auto* k = static_cast<const __nv_bfloat16*>(in.k) + c.first * in.k_stride + key_column;
    const auto* v = static_cast<const __nv_bfloat16*>(in.v) + c.first * in.v_stride +
                    static_cast<std::int64_t>(c.head) * m.value_dim;
    constexpr int kPieces = kKeyDim / 8;
    copy_rows<kPieces, C::kThreads>(start + C::kQ, q, in.q_stride, c.rows, kPieces, t);
    copy_rows<kPieces, C::kThreads>(start + C::kK, k, in.k_stride, c.rows, kPieces, t);
    for (int tile = 0; tile < m.tiles; ++tile) {
        copy_rows<8, C::kThreads>(start + C::kV + tile * kPanelBytes, v + tile * 64, in.v_stride, c.rows,
                                  (m.value_dim - tile * 64) / 8, t);
    }
    copy_async_commit();
    if (t < kChunk) {
        const double* g = m.cumulative + c.head * m.padded_rows + c.first;
        const double before = c.chunk == 0 ? 0.0 : g[-1];
        cumulative[t] = g[t] - before;
        in_chunk[t] = split_log2(g[t] - before);
        beta[t] = t < c.rows ? in.beta[(c.first + t) * in.beta_stride + c.head] : 0.0F;
    }
    copy_async_wait<0>();
    fence_for_wgmma();
    __syncthreads();

    float kk[kOwn / 2] = {};
    float qk[kOwn / 2] = {};
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
        const std::uint32_t keys = start + C::kK + i * kPanelBytes;
        multiply_tiles<kOwn, Rows::kColumns, false>(kk, keys, keys, panel * kOwn, warp, lane);
        multiply_tiles<kOwn, Rows::kColumns, false>(qk, start + C::kQ + i * kPanelBytes, keys, panel * kOwn, warp,
                                                    lane);
    }
#pragma unroll
    for (int i = 0; i < kOwn / 2; i += 2) {
        const int r = row + (i & 2) * 4;
        const int column = panel * kOwn + i / 4 * 8 + lane % 4 * 2;
        const float2 at = in_chunk[r];
        float s[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float2 from = in_chunk[column + e];
            const float decay = column + e <= r ? exp2_fast((at.x - from.x) + (at.y - from.y)) : 0.0F;
            lower[r * kPitch + column + e] = column + e < r ? beta[r] * kk[i + e] * decay : 0.0F;
            s[e] = qk[i + e] * decay;
        }
        *reinterpret_cast<std::uint32_t*>(aligned + C::kS + tile_offset(r, column / 8) + column % 8 * 2) =
            pack_bf16(s[0], s[1]);
    }
    __syncthreads();
    invert<C::kThreads>(lower, inverse, t);
    for (int i = t; i < kChunk * kChunk / 2; i += C::kThreads) {
        const int r = i / 32;
        const int column = i % 32 * 2;
        const float x0 = column <= r ? inverse[r * kPitch + column] * beta[column] : 0.0F;
        const float x1 = column < r ? inverse[r * kPitch + column + 1] * beta[column + 1] : 0.0F;
        const float y0 = x0 * __expf(static_cast<float>(cumulative[column]));
        const float y1 = x1 * __expf(static_cast<float>(cumulative[column + 1]));
        const int at = tile_offset(r, column / 8) + column % 8 * 2;
        const auto store = [&](int tile, float low, float high) {
            const std::uint32_t both = pack_bf16(low, high);
            *reinterpret_cast<std::uint32_t*>(aligned + tile + at) = both;
            *reinterpret_cast<std::uint32_t*>(aligned + tile + kPanelBytes + at) =
                pack_bf16(low - low_bf16(both), high - high_bf16(both));
        };
        store(C::kLower, x0, x1);
        store(C::kDecayed, y0, y1);
    }
    __syncthreads();

    const auto place = [&](__nv_bfloat16* all, std::int64_t elements) {
        return reinterpret_cast<char*>(all + c.place * elements);
    };
    for (int i = t; i < kPanelBytes / 16; i += C::kThreads) {
        reinterpret_cast<uint4*>(place(m.triangle, kChunk * kChunk))[i] =
            reinterpret_cast<const uint4*>(aligned + C::kLower)[i];
    }
    float acc[32];
    for (int tile = panel; tile < m.tiles; tile += kPanels) {
        multiply_group<Rows::kDepth, false, false>(acc, start + C::kLower, start + C::kV + tile * kPanelBytes, warp,
                                                   lane);
        multiply_group<Rows::kDepth, false, true>(acc, start + C::kLower + kPanelBytes,
                                                  start + C::kV + tile * kPanelBytes, warp, lane);
        store_tile(acc, place(m.writes, std::int64_t{m.tiles} * kChunk * kChunk) + tile * kPanelBytes, row, lane);
    }
    const std::uint32_t keys = start + C::kK + panel * kPanelBytes;
    multiply_group<Rows::kDepth, false, false>(acc, start + C::kDecayed, keys, warp, lane);
    multiply_group<Rows::kDepth, false, true>(acc, start + C::kDecayed + kPanelBytes, keys, warp, lane);
    store_tile(acc, place(m.removes, m.state_elements()) + panel * kPanelBytes, row, lane);
    __syncthreads();  // V has been read: W takes its place
    store_tile(acc, aligned + C::kV + panel * kPanelBytes, row, lane);
    fence_for_wgmma();
    __syncthreads();
    multiply_group<Rows::kDepth, false, false>(acc, start + C::kS, start + C::kV + panel * kPanelBytes, warp, lane);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int r = row + (i & 2) * 4;
        const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(aligned + C::kQ + panel * kPanelBytes +
                                                                           tile_offset(r, i / 4) + lane % 4 * 4);
        const float decay = __expf(static_cast<float>(cumulative[r]));
        acc[i] = fmaf(decay, low_bf16(both), -acc[i]);
        acc[i + 1] = fmaf(decay, high_bf16(both), -acc[i + 1]);
    }
    store_tile(acc, place(m.reads, m.state_elements()) + panel * kPanelBytes, row, lane);
}

template <int kKeyDim>
void launch(const Matrix& m) {
    using C = PrepareTiles<kKeyDim>;
    const int bytes = C::bytes(m.tiles);
    allow_shared(prepare_kernel<kKeyDim>, bytes);
    const auto blocks = static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * m.heads);
    prepare_kernel<kKeyDim><<<blocks, C::kThreads, bytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_matrix_prepare(const Matrix& m) {
    (m.key_dim == 64 ? launch<64> : launch<128>)(m);
}

}  // namespace fenwick::cuda::backward
