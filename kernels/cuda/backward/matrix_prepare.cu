// What the gradients of a chunk and head start from: M and S by the forward pass's kernel, W, U and Q~ from them, and
// how much of a block its chunks remember. M is two bf16 numbers as an operand, as in the forward pass.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

template <int kKeyDim>
struct ExpandTiles {
    static constexpr int kPanels = kKeyDim / 64;
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + kPanels * kPanelBytes;  // then W
    static constexpr int kS = kK + kPanels * kPanelBytes;
    static constexpr int kM = kS + kPanelBytes;  // high part, rest
    static constexpr int kV = kM + 2 * kPanelBytes;
    /// For so many tiles of V.
    [[nodiscard]] static int bytes(int tiles) { return 1024 + kV + tiles * kPanelBytes; }
};

// W = M (e^G * K), U = M V, Q~ = e^G * Q - S W. A warpgroup has 64 columns of keys, and of values.
template <int kKeyDim>
__global__ void __launch_bounds__(ExpandTiles<kKeyDim>::kThreads) expand_kernel(const __grid_constant__ Matrix m) {
    using C = ExpandTiles<kKeyDim>;
    constexpr int kPieces = kKeyDim / 8;
    extern __shared__ char memory[];
    __shared__ float decay[kChunk];  // e^G
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
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
    const std::int64_t square = c.place * kChunk * kChunk;
    matrix::load_triangle<C::kThreads>(start + C::kM, m.prepared.triangle + square);
    matrix::load_triangle<C::kThreads>(start + C::kM + kPanelBytes, m.prepared.rest + square);
    for (int tile = 0; tile < m.tiles; ++tile) {
        copy_rows<8, C::kThreads>(start + C::kV + tile * kPanelBytes, v + tile * 64, in.v_stride, c.rows,
                                  (m.value_dim - tile * 64) / 8, t);
    }
    copy_async_commit();
    copy_rows<kPieces, C::kThreads>(start + C::kK, k, in.k_stride, c.rows, kPieces, t);
    matrix::load_triangle<C::kThreads>(start + C::kS, m.prepared.second + square);
    copy_rows<kPieces, C::kThreads>(start + C::kQ, q, in.q_stride, c.rows, kPieces, t);
    copy_async_commit();
    if (t < kChunk) decay[t] = m.prepared.decays[c.place * 2 * kChunk + t];
    copy_async_wait<1>();
    fence_for_wgmma();
    __syncthreads();  // M and V

    std::uint32_t high[4][4];  // the warp's rows of M, then of M e^G
    std::uint32_t rest[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        load_a(high[step], start + C::kM, warp, step, lane);
        load_a(rest[step], start + C::kM + kPanelBytes, warp, step, lane);
    }
    float acc[32];
    const auto multiply_both = [&](std::uint32_t tile) {
        issue_product<4, Rows::kDepth, false>(acc, high, tile, lane);
        issue_product<4, Rows::kDepth, true>(acc, rest, tile, lane);
        product_commit();
        product_wait<0>();
        product_done(acc);
    };
    const auto place = [&](__nv_bfloat16* all, std::int64_t elements) {
        return reinterpret_cast<char*>(all + c.place * elements);
    };
    for (int tile = panel; tile < m.tiles; tile += C::kPanels) {
        multiply_both(start + C::kV + tile * kPanelBytes);
        store_tile(acc, place(m.writes, std::int64_t{m.tiles} * kChunk * kChunk) + tile * kPanelBytes, row, lane);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = *reinterpret_cast<const float2*>(decay + 16 * step + 8 * (i / 2) + lane % 4 * 2);
            const float x = f.x * (low_bf16(high[step][i]) + low_bf16(rest[step][i]));
            const float y = f.y * (high_bf16(high[step][i]) + high_bf16(rest[step][i]));
            high[step][i] = pack_bf16(x, y);
            rest[step][i] = pack_bf16(x - low_bf16(high[step][i]), y - high_bf16(high[step][i]));
        }
    }
    copy_async_wait<0>();
    fence_for_wgmma();
    __syncthreads();  // K, S and Q
    const std::uint32_t keys = start + C::kK + panel * kPanelBytes;
    multiply_both(keys);
    store_tile(acc, place(m.removes, m.state_elements()) + panel * kPanelBytes, row, lane);
    __syncthreads();  // K has been read
    store_tile(acc, aligned + C::kK + panel * kPanelBytes, row, lane);
    fence_for_wgmma();
    __syncthreads();
    multiply_group<Rows::kDepth, false, false>(acc, start + C::kS, keys, warp, lane);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
        const int r = row + (i & 2) * 4;
        const std::uint32_t both = *reinterpret_cast<const std::uint32_t*>(aligned + C::kQ + panel * kPanelBytes +
                                                                           tile_offset(r, i / 4) + lane % 4 * 4);
        acc[i] = fmaf(decay[r], low_bf16(both), -acc[i]);
        acc[i + 1] = fmaf(decay[r], high_bf16(both), -acc[i + 1]);
    }
    store_tile(acc, place(m.reads, m.state_elements()) + panel * kPanelBytes, row, lane);
}

template <int kKeyDim>
void launch_expand(const Matrix& m) {
    using C = ExpandTiles<kKeyDim>;
    const int bytes = C::bytes(m.tiles);
    allow_shared(expand_kernel<kKeyDim>, bytes);
    const auto blocks = static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * m.heads);
    expand_kernel<kKeyDim><<<blocks, C::kThreads, bytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

constexpr int kMemoryWarps = 4;

__global__ void __launch_bounds__(32 * kMemoryWarps) memory_kernel(const __grid_constant__ Matrix m) {
    const std::int64_t number = std::int64_t{blockIdx.x} * kMemoryWarps + threadIdx.x / 32;
    if (number >= m.batch_blocks * m.heads) return;
    const std::int64_t first_chunk = number / m.heads * kChunks;
    const auto head = static_cast<int>(number % m.heads);
    const BlockMemory memory =
        memory_of(m.prepared.bounds + first_chunk * m.heads + head, m.heads, chunk_of(m, first_chunk, head).chunks);
    if (threadIdx.x % 32 == 0) m.memory[number] = memory;
}

// The batch's rows as a linear model's.
MixerInputs rows_of_batch(const Matrix& m) {
    MixerInputs in = m.call.inputs;
    const std::int64_t first = m.batch_block * kBlockTokens;
    in.q = static_cast<const __nv_bfloat16*>(in.q) + first * in.q_stride;
    in.k = static_cast<const __nv_bfloat16*>(in.k) + first * in.k_stride;
    in.log_decay += first * in.decay_stride;
    in.beta += first * in.beta_stride;
    in.lambda = nullptr;
    in.rows = m.batch_rows();
    return in;
}

}  // namespace

void launch_matrix_prepare(const Matrix& m) {
    MixerShape shape = m.call.shape;
    shape.levels = 0;
    matrix::launch_prepare(shape, rows_of_batch(m), m.prepared, m.call.stream);
}

void launch_matrix_memory(const Matrix& m) {
    const auto pairs = static_cast<unsigned>(m.batch_blocks * m.heads);
    memory_kernel<<<(pairs + kMemoryWarps - 1) / kMemoryWarps, 32 * kMemoryWarps, 0, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_matrix_expand(const Matrix& m) {
    (m.key_dim == 64 ? launch_expand<64> : launch_expand<128>)(m);
}

}  // namespace fenwick::cuda::backward
