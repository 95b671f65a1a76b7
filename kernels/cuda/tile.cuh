// Device helpers for tiles of bf16 in shared memory: the one tile layout that ldmatrix, mma.sync and wgmma all read,
// the copies that fill it, and the 64 x 64 product of a warpgroup (four consecutive warps).
//
// A tile has rows of 64 bf16 (128 bytes); the 16-byte piece p of row r lies at place p ^ (r & 7): no bank conflicts for
// ldmatrix, and exactly the 128-byte swizzle of wgmma's descriptors. Tiles are 1,024-byte aligned.
//
// Fragments are those of mma.sync m16n8k16: in a 64 x 64 accumulator, warp w of the warpgroup holds rows 16 w + r and
// 16 w + r + 8 with r = lane / 4; acc[4 j + {0, 1}] are columns 8 j + 2 (lane % 4) + {0, 1} of the first row,
// acc[4 j + {2, 3}] of the second. wgmma's layout is the same.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FENWICK_WGMMA 1
#endif

namespace fenwick::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = 128;

__host__ __device__ constexpr std::uint32_t tile_offset(int row, int piece) {
    return static_cast<std::uint32_t>(row * kTileRowBytes + ((piece ^ (row & 7)) << 4));
}

#if defined(__CUDACC__)

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Copies 16 bytes, or writes 16 zero bytes when not `valid` (`from` is then not read).
__device__ __forceinline__ void copy_async_16(std::uint32_t to, const void* from, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// The same for 4 or 8 bytes.
template <int kBytes>
__device__ __forceinline__ void copy_async_few(std::uint32_t to, const void* from, bool valid) {
    const int bytes = valid ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Makes this thread's shared-memory writes visible to wgmma; before the barrier.
__device__ __forceinline__ void fence_for_wgmma() {
#if defined(FENWICK_WGMMA)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/// d[16, 8] += a[16, 16] b[16, 8].
__device__ __forceinline__ void mma_16x8x16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
}
__device__ __forceinline__ float low_bf16(std::uint32_t both) {
    return __uint_as_float(both << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t both) {
    return __uint_as_float(both & 0xffff0000U);
}

/// Transposes words over the four lanes of a quad: word i of lane c becomes word c of lane i. Four neighbouring
/// 8-column accumulators, packed, become whole 16-byte pieces: lane c gets the piece of the c-th.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4], int lane) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((i & bit) != 0) continue;
            const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? w[i] : w[i | bit], bit);
            (upper ? w[i] : w[i | bit]) = got;
        }
    }
}

/// A fragment of rows [16 warp, + 16) and columns [16 step, + 16) of a 64-row tile.
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], std::uint32_t tile, int warp, int step, int lane) {
    load_matrices(a, tile + tile_offset(16 * warp + (lane & 15), 2 * step + (lane >> 4)));
}

/// How a tile of the right operand B [k][n] lies: one row a k, or one row an n.
enum class Rows { kDepth, kColumns };

#if defined(FENWICK_WGMMA)
/// wgmma's descriptor of a tile, 128-byte swizzle: its low half is the place, which a step of the depth adds to.
struct TileDescriptor {
    std::uint32_t low;
    explicit __device__ __forceinline__ TileDescriptor(std::uint32_t tile)
        : low((std::uint32_t{1} << 16) | ((tile & 0x3ffffU) >> 4)) {}
    [[nodiscard]] __device__ __forceinline__ std::uint64_t at(std::uint32_t bytes) const {
        constexpr std::uint32_t kHigh = (std::uint32_t{1} << 30) | (1024U >> 4);  // stride between groups of eight rows
        return (std::uint64_t{kHigh} << 32) | (low + (bytes >> 4));
    }
};
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// clang-format off
#define FENWICK_ACC_LIST "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
                         "%25,%26,%27,%28,%29,%30,%31}"
#define FENWICK_ACC_OPERANDS(d)                                                                                     \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),     \
    "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),          \
    "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),         \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define FENWICK_NEW_ACC_OPERANDS(d)                                                                                     \
    "=&f"(d[0]), "=&f"(d[1]), "=&f"(d[2]), "=&f"(d[3]), "=&f"(d[4]), "=&f"(d[5]), "=&f"(d[6]), "=&f"(d[7]), "=&f"(d[8]),     \
    "=&f"(d[9]), "=&f"(d[10]), "=&f"(d[11]), "=&f"(d[12]), "=&f"(d[13]), "=&f"(d[14]), "=&f"(d[15]), "=&f"(d[16]),          \
    "=&f"(d[17]), "=&f"(d[18]), "=&f"(d[19]), "=&f"(d[20]), "=&f"(d[21]), "=&f"(d[22]), "=&f"(d[23]), "=&f"(d[24]),         \
    "=&f"(d[25]), "=&f"(d[26]), "=&f"(d[27]), "=&f"(d[28]), "=&f"(d[29]), "=&f"(d[30]), "=&f"(d[31])
// clang-format on

template <Rows kRows>
__device__ __forceinline__ void wgmma_64x64x16(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " FENWICK_ACC_LIST
        ", {%32,%33,%34,%35}, %36, p, 1, 1, %37;\n\t}"
        : FENWICK_ACC_OPERANDS(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kRows == Rows::kDepth ? 1 : 0));
}
/// The first step of a new sum: what `d` held is not read.
template <Rows kRows>
__device__ __forceinline__ void wgmma_64x64x16_first(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, 0, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " FENWICK_ACC_LIST
        ", {%32,%33,%34,%35}, %36, p, 1, 1, %37;\n\t}"
        : FENWICK_NEW_ACC_OPERANDS(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kRows == Rows::kDepth ? 1 : 0));
}
/// Both operands from tiles whose rows are the depth.
__device__ __forceinline__ void wgmma_64x64x16_tiles(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tsetp.eq.b32 p, 0, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " FENWICK_ACC_LIST ", %32, %33, p, 1, 1, 1, 1;\n\t}"
        : FENWICK_ACC_OPERANDS(d)
        : "l"(a), "l"(b));
}
#endif

/// Ends the products issued so far as one group; a later product_wait<n> waits until at most n groups are unfinished.
/// Products without wgmma are finished when they are issued.
__device__ __forceinline__ void product_commit() {
#if defined(FENWICK_WGMMA)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void product_wait() {
#if defined(FENWICK_WGMMA)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
/// After the wait: uses of `acc` stay behind it.
template <int kCount>
__device__ __forceinline__ void product_done(float (&acc)[kCount]) {
#if defined(FENWICK_WGMMA)
#pragma unroll
    for (float& x : acc) asm volatile("" : "+f"(x)::"memory");
#else
    (void)acc;
#endif
}

/// acc[64, 64] (+)= A[64, 16 steps] B, all four warps of a warpgroup together. A comes in fragments, B from a tile at
/// `tile`: rows are the depth (16 steps rows of 64 columns), or rows are B's 64 columns (steps <= 4). Until
/// product_commit and product_wait neither `acc` nor `a` may be touched.
template <int kSteps, Rows kRows, bool kAdd>
__device__ __forceinline__ void issue_product(float (&acc)[32], const std::uint32_t (*a)[4], std::uint32_t tile,
                                              int lane) {
#if defined(FENWICK_WGMMA)
    constexpr int kStepBytes = kRows == Rows::kDepth ? 16 * kTileRowBytes : 32;
    (void)lane;
    const TileDescriptor b(tile);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        if (kAdd || s > 0) {
            wgmma_64x64x16<kRows>(acc, a[s], b.at(s * kStepBytes));
        } else {
            wgmma_64x64x16_first<kRows>(acc, a[s], b.at(0));
        }
    }
#else
    if constexpr (!kAdd) {
#pragma unroll
        for (float& x : acc) x = 0.0F;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            std::uint32_t b[4];
            if constexpr (kRows == Rows::kDepth) {
                load_matrices_transposed(b, tile + tile_offset(16 * s + (lane & 15), 2 * n + (lane >> 4)));
            } else {
                load_matrices(b,
                              tile + tile_offset(16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * s + ((lane >> 3) & 1)));
            }
            mma_16x8x16(acc + 8 * n, a[s], b[0], b[1]);
            mma_16x8x16(acc + 8 * n + 4, a[s], b[2], b[3]);
        }
    }
#endif
}

/// acc[64, 64] += A^T B over 64 rows: both tiles have one row for each of the 64 depths. As issue_product.
__device__ __forceinline__ void issue_transposed_product(float (&acc)[32], std::uint32_t a_tile, std::uint32_t b_tile,
                                                         int warp, int lane) {
#if defined(FENWICK_WGMMA)
    (void)warp;
    (void)lane;
    const TileDescriptor a(a_tile);
    const TileDescriptor b(b_tile);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        wgmma_64x64x16_tiles(acc, a.at(s * 16 * kTileRowBytes), b.at(s * 16 * kTileRowBytes));
    }
#else
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        std::uint32_t a[4];
        load_matrices_transposed(
            a, a_tile + tile_offset(16 * s + (lane & 7) + ((lane >> 4) << 3), 2 * warp + ((lane >> 3) & 1)));
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            std::uint32_t b[4];
            load_matrices_transposed(b, b_tile + tile_offset(16 * s + (lane & 15), 2 * n + (lane >> 4)));
            mma_16x8x16(acc + 8 * n, a, b[0], b[1]);
            mma_16x8x16(acc + 8 * n + 4, a, b[2], b[3]);
        }
    }
#endif
}

#endif  // __CUDACC__

}  // namespace fenwick::cuda
