// What the gradients' kernels do with tiles beside tile.cuh: operands that are transposes, products with a part of a
// tile's columns, and states on their way to tiles.
#pragma once

#include <type_traits>

#include "kernels/cuda/backward/call.h"
#include "kernels/cuda/store_tile.cuh"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kPanelBytes = kChunk * kTileRowBytes;  // 64 rows of 64 columns

#if defined(__CUDACC__)

/// Copies a chunk's rows, 8 kPieces columns, into panels: rows from `rows` on and pieces from `pieces` on become zero.
/// A thread's pieces lie below each other, kThreads / kPieces rows apart: the first is row t / kPieces, piece t %
/// kPieces.
template <int kPieces, int kThreads>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const __nv_bfloat16* from, std::int64_t stride, int rows,
                                          int pieces, int t) {
    constexpr int kStep = kThreads / kPieces;
    static_assert(kThreads % kPieces == 0 && kStep % 8 == 0 && kChunk % kStep == 0);  // one place in the swizzle
    const int piece = t % kPieces;
    const int row = t / kPieces;
    const int live = piece < pieces ? rows - row : 0;
    const __nv_bfloat16* mine = from + row * stride + piece * 8;
    const std::uint32_t at = to + piece / 8 * kPanelBytes + tile_offset(row, piece % 8);
#pragma unroll
    for (int first = 0; first < kChunk; first += kStep) {
        copy_async_16(at + first * kTileRowBytes, first < live ? mine : from, first < live);
        mine += kStep * stride;
    }
}

template <int kBytes>
using Bytes = std::integral_constant<int, kBytes>;

/// Copies whole 16-byte pieces that lie one after the other, the same number for each thread.
template <int kThreads, int kBytes>
__device__ __forceinline__ void copy_pieces(std::uint32_t to, const __nv_bfloat16* from, Bytes<kBytes> /*bytes*/,
                                            int t) {
    static_assert(kBytes % (16 * kThreads) == 0);
    const char* mine = reinterpret_cast<const char*>(from) + t * 16;
#pragma unroll
    for (int first = 0; first < kBytes; first += 16 * kThreads) {
        copy_async_16(to + t * 16 + first, mine + first, true);
    }
}

/// The A fragment of a tile's transpose: rows are the tile's columns [16 warp, + 16), the depth its rows [16 step, +
/// 16).
__device__ __forceinline__ void load_a_transposed(std::uint32_t (&a)[4], std::uint32_t tile, int warp, int step,
                                                  int lane) {
    load_matrices_transposed(
        a, tile + tile_offset(16 * step + (lane & 7) + ((lane >> 4) << 3), 2 * warp + ((lane >> 3) & 1)));
}

/// acc[16, kColumns] += a[16, 16] B for one warp: columns [first, + kColumns) of B, depths [16 step, + 16) of its tile.
template <int kColumns, Rows kRows>
__device__ __forceinline__ void multiply(float (&acc)[kColumns / 2], const std::uint32_t (&a)[4], std::uint32_t tile,
                                         int step, int first, int lane) {
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
        std::uint32_t b[4];
        if constexpr (kRows == Rows::kDepth) {
            load_matrices_transposed(b, tile + tile_offset(16 * step + (lane & 15), first / 8 + 2 * n + (lane >> 4)));
        } else {
            load_matrices(
                b, tile + tile_offset(first + 16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * step + ((lane >> 3) & 1)));
        }
        mma_16x8x16(acc + 8 * n, a, b[0], b[1]);
        mma_16x8x16(acc + 8 * n + 4, a, b[2], b[3]);
    }
}

/// An A fragment of a tile, or (kTransposed) of its transpose: rows [16 warp, + 16), the depth [16 step, + 16).
template <bool kTransposed>
__device__ __forceinline__ void load_fragment(std::uint32_t (&a)[4], std::uint32_t tile, int warp, int step, int lane) {
    if constexpr (kTransposed) {
        load_a_transposed(a, tile, warp, step, lane);
    } else {
        load_a(a, tile, warp, step, lane);
    }
}
template <bool kTransposed>
__device__ __forceinline__ void load_fragments(std::uint32_t (&a)[4][4], std::uint32_t tile, int warp, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) load_fragment<kTransposed>(a[step], tile, warp, step, lane);
}

#if defined(FENWICK_WGMMA)
/// d[64, 32] += a[64, 16] b[16, 32] by a warpgroup; the sums lie as in four products of 8 columns.
template <Rows kRows>
__device__ __forceinline__ void wgmma_64x32x16(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, %21;\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kRows == Rows::kDepth ? 1 : 0));
}
#endif

/// acc += A B over a depth of 64 by a warpgroup together: A's rows (kTransposed: columns) from a tile, columns [first,
/// + kColumns) of B. Both tiles are visible to wgmma.
template <int kColumns, Rows kRows, bool kTransposed>
__device__ __forceinline__ void multiply_tiles(float (&acc)[kColumns / 2], std::uint32_t a_tile, std::uint32_t b_tile,
                                               int first, int warp, int lane) {
    static_assert(kColumns == 32 || kColumns == 64);
    std::uint32_t a[4][4];
    load_fragments<kTransposed>(a, a_tile, warp, lane);
#if defined(FENWICK_WGMMA)
    if constexpr (kColumns == 32) {
        const TileDescriptor b(b_tile + first * (kRows == Rows::kDepth ? 2 : kTileRowBytes));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            wgmma_64x32x16<kRows>(acc, a[step], b.at(step * (kRows == Rows::kDepth ? 16 * kTileRowBytes : 32)));
        }
    } else {
        issue_product<4, kRows, true>(acc, a, b_tile, lane);
    }
    product_commit();
    product_wait<0>();
    product_done(acc);
#else
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply<kColumns, kRows>(acc, a[step], b_tile, step, first, lane);
#endif
}

/// acc[64, 64] (+)= A B for a warpgroup, A (or its transpose) a tile; a group of its own. Until product_wait neither
/// `acc` nor `a` may be touched.
template <Rows kRows, bool kTransposed, bool kAdd>
__device__ __forceinline__ void issue_group(float (&acc)[32], std::uint32_t (&a)[4][4], std::uint32_t a_tile,
                                            std::uint32_t b_tile, int warp, int lane) {
    load_fragments<kTransposed>(a, a_tile, warp, lane);
    issue_product<4, kRows, kAdd>(acc, a, b_tile, lane);
    product_commit();
}
/// The same to its end.
template <Rows kRows, bool kTransposed, bool kAdd>
__device__ __forceinline__ void multiply_group(float (&acc)[32], std::uint32_t a_tile, std::uint32_t b_tile, int warp,
                                               int lane) {
    std::uint32_t a[4][4];
    issue_group<kRows, kTransposed, kAdd>(acc, a, a_tile, b_tile, warp, lane);
    product_wait<0>();
    product_done(acc);
}

__device__ __forceinline__ float exp2_fast(float x) {
#if defined(__CUDA_ON_HOST__)
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/// log2(e) x in two floats: differences of large sums keep the small decays between them.
__device__ __forceinline__ float2 split_log2(double x) {
    const double log2 = x * 1.4426950408889634;
    const auto high = static_cast<float>(log2);
    return make_float2(high, static_cast<float>(log2 - static_cast<double>(high)));
}

__device__ __forceinline__ float sum_quad(float x) {
    x += __shfl_xor_sync(0xffffffffU, x, 1);
    return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

__device__ __forceinline__ float sum_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
    return x;
}

/// The sum over the eight lanes of one remainder by 4 of each value; lane l gets that of x[l / 4]. Half of the values
/// go to the other half of the lanes each time.
__device__ __forceinline__ float sum_rows_of_eight(float (&x)[8], int lane) {
#pragma unroll
    for (int count = 4; count >= 1; count /= 2) {
        const bool upper = (lane & 4 * count) != 0;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float other = __shfl_xor_sync(0xffffffffU, upper ? x[i] : x[i + count], 4 * count);
            x[i] = (upper ? x[i + count] : x[i]) + other;
        }
    }
    return x[0];
}

/// For a warp, two neighbouring rows of a chunk a lane: the pairs that cross each of the two rows, of `incoming` ones,
/// which start before the chunk and end at a row, and `outgoing` ones, which start at a row and end after the chunk.
__device__ __forceinline__ float2 crossing_rows(float2 incoming, float2 outgoing, int lane) {
    float from_here = incoming.x + incoming.y;
    float until = outgoing.x + outgoing.y;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const float later = __shfl_down_sync(0xffffffffU, from_here, distance);
        if (lane + distance < 32) from_here += later;
        const float earlier = __shfl_up_sync(0xffffffffU, until, distance);
        if (lane >= distance) until += earlier;
    }
    float after = __shfl_down_sync(0xffffffffU, from_here, 1);
    if (lane == 31) after = 0.0F;
    float before = __shfl_up_sync(0xffffffffU, until, 1);
    if (lane == 0) before = 0.0F;
    return make_float2(after + incoming.y + incoming.x + before, after + incoming.y + (before + outgoing.x));
}

/// A gradient's place gets x, or (`added`) x more.
__device__ __forceinline__ void put(float* to, float x, bool added) {
    *to = added ? *to + x : x;
}

/// Two neighbours more, 8-byte aligned, without waiting for what is there. Only one thread may add to a place.
__device__ __forceinline__ void add_pair(float* to, float x, float y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#else
    const float2 old = *reinterpret_cast<const float2*>(to);
    *reinterpret_cast<float2*>(to) = make_float2(old.x + x, old.y + y);
#endif
}

/// put for a thread's sums of a product: place i of two rows, each null or where its column of the first 8 lies
/// (8-byte aligned); 8 columns for 4 places, of which `groups` are there.
template <int kCount>
__device__ __forceinline__ void put_pairs(const float (&x)[kCount], float* const (&rows)[2], int groups, bool added) {
    const auto each = [&](const auto& put_one) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (rows[half] == nullptr) continue;
#pragma unroll
            for (int n = 0; n < kCount / 4; ++n) {
                if (n < groups) put_one(rows[half] + 8 * n, x[4 * n + 2 * half], x[4 * n + 2 * half + 1]);
            }
        }
    };
    if (added) {
        each([](float* to, float first, float second) { add_pair(to, first, second); });
    } else {
        each([](float* to, float first, float second) { *reinterpret_cast<float2*>(to) = make_float2(first, second); });
    }
}

#endif

}  // namespace fenwick::cuda::backward
