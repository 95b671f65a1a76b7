// T, W, U and Q~ of every chunk and head. T is solved for in fp32, a column a thread; as an operand it is split into two
// bf16 numbers, as in the forward pass.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kPitch = kChunk + 1;

template <int kKeyDim>
struct PrepareTiles {
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + kPanels * kPanelBytes;
    static constexpr int kV = kK + kPanels * kPanelBytes;  // then W
    static constexpr int kValueTiles = 4;
    static constexpr int kT = kV + kValueTiles * kPanelBytes;  // T: high part, rest; then T e^G
    static constexpr int kS = kT + 4 * kPanelBytes;
    static constexpr int kSolve = kS + kPanelBytes;  // fp32 [64][kPitch]: L, and the inverse
    static constexpr int kBytes = 1024 + kSolve + 2 * kChunk * kPitch * 4;
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
    auto* lower = reinterpret_cast<float*>(aligned + C::kSolve);
    float* inverse = lower + kChunk * kPitch;
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
    const auto* v =
        static_cast<const __nv_bfloat16*>(in.v) + c.first * in.v_stride + static_cast<std::int64_t>(c.head) * m.value_dim;
    for (int i = t; i < kChunk * kKeyDim / 8; i += C::kThreads) {
        const int r = i / (kKeyDim / 8);
        const int piece = i % (kKeyDim / 8);
        const std::uint32_t to = start + piece / 8 * kPanelBytes + tile_offset(r, piece % 8);
        copy_async_16(to + C::kQ, r < c.rows ? q + r * in.q_stride + piece * 8 : q, r < c.rows);
        copy_async_16(to + C::kK, r < c.rows ? k + r * in.k_stride + piece * 8 : k, r < c.rows);
    }
    for (int i = t; i < kChunk * 8 * m.tiles; i += C::kThreads) {
        const int r = i / (8 * m.tiles);
        const int piece = i % (8 * m.tiles);
        const bool live = r < c.rows && piece * 8 < m.value_dim;
        copy_async_16(start + C::kV + piece / 8 * kPanelBytes + tile_offset(r, piece % 8),
                      live ? v + r * in.v_stride + piece * 8 : v, live);
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
        multiply_tiles<kOwn, Rows::kColumns, false>(qk, start + C::kQ + i * kPanelBytes, keys, panel * kOwn, warp, lane);
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
    if (t < kChunk) {
        // (I + L)^-1, column t, by substitution.
        for (int i = 0; i < kChunk; ++i) {
            float sum = i == t ? 1.0F : 0.0F;
            for (int j = t; j < i; ++j) sum = fmaf(-lower[i * kPitch + j], inverse[j * kPitch + t], sum);
            inverse[i * kPitch + t] = i < t ? 0.0F : sum;
        }
    }
    __syncthreads();
    for (int i = t; i < kChunk * kChunk / 2; i += C::kThreads) {
        const int r = i / 32;
        const int column = i % 32 * 2;
        const float x0 = inverse[r * kPitch + column] * beta[column];
        const float x1 = inverse[r * kPitch + column + 1] * beta[column + 1];
        const float y0 = x0 * __expf(static_cast<float>(cumulative[column]));
        const float y1 = x1 * __expf(static_cast<float>(cumulative[column + 1]));
        char* to = aligned + C::kT + tile_offset(r, column / 8) + column % 8 * 2;
        const auto store = [&](int tile, std::uint32_t both) {
            *reinterpret_cast<std::uint32_t*>(to + tile * kPanelBytes) = both;
        };
        const std::uint32_t x = pack_bf16(x0, x1);
        const std::uint32_t y = pack_bf16(y0, y1);
        store(0, x);
        store(1, pack_bf16(x0 - low_bf16(x), x1 - high_bf16(x)));
        store(2, y);
        store(3, pack_bf16(y0 - low_bf16(y), y1 - high_bf16(y)));
    }
    __syncthreads();

    const auto place = [&](__nv_bfloat16* all, std::int64_t elements) {
        return reinterpret_cast<char*>(all + c.place * elements);
    };
    for (int i = t; i < kPanelBytes / 16; i += C::kThreads) {
        reinterpret_cast<uint4*>(place(m.triangle, kChunk * kChunk))[i] =
            reinterpret_cast<const uint4*>(aligned + C::kT)[i];
    }
    float acc[32];
    for (int tile = panel; tile < m.tiles; tile += kPanels) {
        multiply_group<Rows::kDepth, false, false>(acc, start + C::kT, start + C::kV + tile * kPanelBytes, warp, lane);
        multiply_group<Rows::kDepth, false, true>(acc, start + C::kT + kPanelBytes, start + C::kV + tile * kPanelBytes,
                                                  warp, lane);
        store_tile(acc, place(m.writes, std::int64_t{m.tiles} * kChunk * kChunk) + tile * kPanelBytes, row, lane);
    }
    const std::uint32_t keys = start + C::kK + panel * kPanelBytes;
    multiply_group<Rows::kDepth, false, false>(acc, start + C::kT + 2 * kPanelBytes, keys, warp, lane);
    multiply_group<Rows::kDepth, false, true>(acc, start + C::kT + 3 * kPanelBytes, keys, warp, lane);
    store_tile(acc, place(m.removes, m.state_elements()) + panel * kPanelBytes, row, lane);
    __syncthreads();  // V has been read: W takes its place
    store_tile(acc, aligned + C::kV + panel * kPanelBytes, row, lane);
    fence_for_wgmma();
    __syncthreads();
    multiply_group<Rows::kDepth, false, false>(acc, start + C::kS, start + C::kV + panel * kPanelBytes, warp, lane);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int r = row + (i & 2) * 4;
        const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(
            aligned + C::kQ + panel * kPanelBytes + tile_offset(r, i / 4) + lane % 4 * 4);
        const float decay = __expf(static_cast<float>(cumulative[r]));
        acc[i] = fmaf(decay, low_bf16(both), -acc[i]);
        acc[i + 1] = fmaf(decay, high_bf16(both), -acc[i + 1]);
    }
    store_tile(acc, place(m.reads, m.state_elements()) + panel * kPanelBytes, row, lane);
}

template <int kKeyDim>
void launch(const Matrix& m) {
    using C = PrepareTiles<kKeyDim>;
    allow_shared(prepare_kernel<kKeyDim>, C::kBytes);
    const std::int64_t rows = std::min(m.rows - m.batch_block * kBlockTokens, m.batch_blocks * kBlockTokens);
    const auto blocks = static_cast<unsigned>((rows + kChunk - 1) / kChunk * m.heads);
    prepare_kernel<kKeyDim><<<blocks, C::kThreads, C::kBytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_matrix_prepare(const Matrix& m) {
    (m.key_dim == 64 ? launch<64> : launch<128>)(m);
}

}  // namespace fenwick::cuda::backward
