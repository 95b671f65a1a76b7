// Tiles of the matrix algebra in shared memory, and products of 16 state columns a warp with them.
//
// States are kept transposed: a warp owns 16 columns of a state X [d_k, columns] as the 16 rows of X^T, in the matrix
// units' accumulator layout: lane l holds rows l / 4 and l / 4 + 8, and of every 8 columns 2 (l % 4) and 2 (l % 4) + 1.
// Two neighbouring 8-column accumulators, rounded to bf16, are the A operand of the next product: states never leave
// the registers. Warps need nothing from each other; four of them share one warpgroup instruction on sm_90a.
//
// A tile in shared memory is made of panels of 64 bf16 columns: a row of a panel has 128 bytes, and its 16-byte pieces
// are permuted by (row mod 8) (the 128-byte swizzle of the PTX ISA). Panels start at multiples of 1,024 bytes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/matrix_ptx.cuh"

namespace fenwick::cuda::matrix {

using bf16 = __nv_bfloat16;

inline constexpr int kC = 64;                    // rows of a chunk
inline constexpr int kPanelBytes = kC * 64 * 2;  // a panel of one chunk

__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t address) {
    return address ^ ((address >> 3) & 0x70U);
}

__device__ __forceinline__ float low_of(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(std::uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000U);
}

/// A operand for columns [16 kStep, 16 kStep + 16) of accumulators.
template <int kSize>
__device__ __forceinline__ void pack_step(const float (&c)[kSize], int step, std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack(c[8 * step + 2 * i], c[8 * step + 2 * i + 1]);
}
/// What bf16 lost: the low half of a split operand.
template <int kSize>
__device__ __forceinline__ void pack_rest(const float (&c)[kSize], int step, const std::uint32_t (&a)[4],
                                          std::uint32_t (&rest)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        rest[i] = pack(c[8 * step + 2 * i] - low_of(a[i]), c[8 * step + 2 * i + 1] - high_of(a[i]));
    }
}

// ---- copies into shared memory -------------------------------------------------------------------------------------

/// Rows [0, 64) of a matrix of `columns` (a multiple of 8, at most kPieces * 8) into panels; rows from `rows` on and
/// columns from `columns` on become zero. `stride` in elements.
template <int kPieces, int kThreads>
__device__ __forceinline__ void load_panels(std::uint32_t to, const bf16* from, std::int64_t stride, int rows,
                                            int columns) {
    static_assert(kThreads % (8 * kPieces) == 0);  // a thread keeps its piece and its place in the swizzle
    constexpr int kStep = kThreads / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    int row = static_cast<int>(threadIdx.x) / kPieces;
    if (piece * 8 >= columns) rows = 0;
    const bf16* mine = from + row * stride + piece * 8;
    std::uint32_t at =
        swizzled(to + static_cast<std::uint32_t>((piece / 8) * kPanelBytes + row * 128 + (piece % 8) * 16));
#pragma unroll
    for (int first = 0; first < kC; first += kStep) {
        if (kC % kStep != 0 && row >= kC) break;
        copy_16(at, row < rows ? mine : from, row < rows);
        mine += kStep * stride;
        at += kStep * 128;
        row += kStep;
    }
}

/// A lower triangular tile [64, 64] that lies row by row, of which only the 16x16 blocks up to the diagonal are written
/// and read (matrix_plan.h): zeros right of them.
template <int kThreads>
__device__ __forceinline__ void load_triangle(std::uint32_t to, const bf16* from) {
    static_assert(kThreads % 8 == 0);
    constexpr int kStep = kThreads / 8;
    const int piece = static_cast<int>(threadIdx.x) % 8;
    int row = static_cast<int>(threadIdx.x) / 8;
    const bf16* mine = from + row * kC + piece * 8;
    std::uint32_t at = swizzled(to + static_cast<std::uint32_t>(row * 128 + piece * 16));
#pragma unroll
    for (int first = 0; first < kC; first += kStep) {
        if (kC % kStep != 0 && row >= kC) break;
        copy_16(at, mine, piece / 2 <= row / 16);
        mine += kStep * kC;
        at += kStep * 128;
        row += kStep;
    }
}

// ---- products ------------------------------------------------------------------------------------------------------

/// A operand from a tile: rows [row, row + 16) (row a multiple of 8) and 16 columns of the panel at `address` (start of
/// the panel's row 0 plus 2 bytes a column).
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], std::uint32_t address, int row) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t mine =
        swizzled(address + static_cast<std::uint32_t>((lane % 8 + (lane / 8 % 2) * 8) * 128 + (lane / 16) * 16));
    ldmatrix(a, mine + static_cast<std::uint32_t>(row * 128));
}
/// A operand (the transpose of a tile): 16 columns from byte `column_bytes` on become rows; the tile's rows
/// [row, row + 16) (row a multiple of 8) become columns.
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], std::uint32_t panel, int row,
                                                  std::uint32_t column_bytes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t mine = swizzled(
        panel + column_bytes + static_cast<std::uint32_t>((lane % 8 + (lane / 16) * 8) * 128 + (lane / 8 % 2) * 16));
    ldmatrix_transposed(a, mine + static_cast<std::uint32_t>(row * 128));
}
/// Opens a group of products into `c`; nothing may touch `c` or the A operands until products_end.
template <int kSize>
__device__ __forceinline__ void products_begin(float (&c)[kSize]) {
    keep(c);
    products_fence();
}
template <int kSize>
__device__ __forceinline__ void products_end(float (&c)[kSize]) {
    products_commit();
    products_wait<0>();
    keep(c);
}

#if FENWICK_MATRIX_WGMMA
// Offsets are constants: the descriptor of a tile is made once, and its address field moves by them.
__device__ __forceinline__ std::uint64_t descriptor_of(std::uint32_t tile, int offset, int panel_stride) {
    const std::uint32_t low =
        (tile >> 4 | static_cast<std::uint32_t>(panel_stride >> 4) << 16) + static_cast<std::uint32_t>(offset >> 4);
    constexpr std::uint32_t kHigh = 1024 >> 4 | 1U << 30;
    return static_cast<std::uint64_t>(kHigh) << 32 | low;
}

template <int kN, bool kTransposed, int kSize>
__device__ __forceinline__ void wgmma(float (&c)[kSize], const std::uint32_t (&a)[4], std::uint32_t tile, int offset,
                                      int panel_stride) {
    const std::uint64_t descriptor = descriptor_of(tile, offset, panel_stride);
    if constexpr (kN == 64) wgmma_64<kTransposed>(c, a, descriptor);
    if constexpr (kN == 128) wgmma_128<kTransposed>(c, a, descriptor);
}
#endif

/// c += A B with B[k, n] = tile[n][k], n < kN, k < 16. `offset`: bytes from the tile's start to its element [0][0],
/// before the swizzle. Rows of the panel follow each other for all n.
template <int kN, int kSize>
__device__ __forceinline__ void product_nt(float (&c)[kSize], const std::uint32_t (&a)[4], std::uint32_t tile,
                                           int offset) {
#if FENWICK_MATRIX_WGMMA
    wgmma<kN, false>(c, a, tile, offset, 16);
#else
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t mine =
        swizzled(tile + static_cast<std::uint32_t>(offset + (lane % 8 + (lane / 16) * 8) * 128 + (lane / 8 % 2) * 16));
#pragma unroll
    for (int n = 0; n < kN; n += 16) {
        std::uint32_t b[4];
        ldmatrix(b, mine + static_cast<std::uint32_t>(n * 128));
        mma(c[n / 2], c[n / 2 + 1], c[n / 2 + 2], c[n / 2 + 3], a, b[0], b[1]);
        mma(c[n / 2 + 4], c[n / 2 + 5], c[n / 2 + 6], c[n / 2 + 7], a, b[2], b[3]);
    }
#endif
}

/// The warp's 16 rows of c += A B^T for 16 columns of two tiles of 64 rows; `offset`: bytes to the columns in both.
template <int kSize>
__device__ __forceinline__ void product_tiles(float (&c)[kSize], std::uint32_t a_tile, std::uint32_t b_tile, int offset,
                                              int warp) {
#if FENWICK_MATRIX_WGMMA
    (void)warp;
    wgmma_64_tiles(c, descriptor_of(a_tile, offset, 16), descriptor_of(b_tile, offset, 16));
#else
    std::uint32_t a[4];
    load_a(a, a_tile + static_cast<std::uint32_t>(offset), 16 * warp);
    product_nt<64>(c, a, b_tile, offset);
#endif
}

/// c += A B with B[k, n] = tile[k][n], k < 16; columns 64 and up lie in the next panel, `panel_stride` bytes on.
template <int kN, int kSize>
__device__ __forceinline__ void product_nn(float (&c)[kSize], const std::uint32_t (&a)[4], std::uint32_t tile,
                                           int offset, int panel_stride) {
#if FENWICK_MATRIX_WGMMA
    wgmma<kN, true>(c, a, tile, offset, panel_stride);
#else
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t mine = tile + static_cast<std::uint32_t>(offset + (lane % 16) * 128 + (lane / 16) * 16);
#pragma unroll
    for (int n = 0; n < kN; n += 16) {
        std::uint32_t b[4];
        ldmatrix_transposed(b, swizzled(mine + static_cast<std::uint32_t>((n / 64) * panel_stride + (n % 64) * 2)));
        mma(c[n / 2], c[n / 2 + 1], c[n / 2 + 2], c[n / 2 + 3], a, b[0], b[1]);
        mma(c[n / 2 + 4], c[n / 2 + 5], c[n / 2 + 6], c[n / 2 + 7], a, b[2], b[3]);
    }
#endif
}

template <int kSize>
__device__ __forceinline__ void clear(float (&c)[kSize]) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) c[i] = 0.0F;
}

}  // namespace fenwick::cuda::matrix
