// The instructions behind matrix_tile.cuh, a function each: copies into shared memory, the matrix units' operands and
// products of a warp, and what orders them. tests/cuda_on_host has the same functions for the host.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FENWICK_MATRIX_WGMMA 1
#else
#define FENWICK_MATRIX_WGMMA 0
#endif

#if FENWICK_MATRIX_WGMMA
#include "kernels/cuda/matrix_wgmma.cuh"
#endif

namespace fenwick::cuda::matrix {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/// 2^x of x <= 0; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// 16 bytes, or zeros when `valid` is false.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Shared memory written by ordinary stores and copies becomes visible to warpgroup products; before the barrier.
__device__ __forceinline__ void publish_shared() {
#if FENWICK_MATRIX_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void mma(float& c0, float& c1, float& c2, float& c3, const std::uint32_t (&a)[4],
                                    std::uint32_t b0, std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// An 8x8 tile held by a warp, two neighbours of a row a lane: becomes its transpose.
__device__ __forceinline__ std::uint32_t transposed(std::uint32_t pairs) {
    std::uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pairs));
    return r;
}
/// Hides where a value comes from: keeps the compiler from carrying what is derived from it in registers over a loop.
__device__ __forceinline__ std::int64_t opaque(std::int64_t x) {
    asm volatile("" : "+l"(x));
    return x;
}
__device__ __forceinline__ std::uint32_t opaque(std::uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

/// The thread's lane, read anew at each call: as `opaque`.
__device__ __forceinline__ int lane_now() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

template <int kSize>
__device__ __forceinline__ void keep(float (&c)[kSize]) {
#if FENWICK_MATRIX_WGMMA
#pragma unroll
    for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(c[i])::"memory");
#endif
}

/// Before products whose operands or sums other instructions have written.
__device__ __forceinline__ void products_fence() {
#if FENWICK_MATRIX_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Ends a group of products. Nothing may touch their sums or A operands until products_wait says that they are done.
__device__ __forceinline__ void products_commit() {
#if FENWICK_MATRIX_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most the last kPending groups are unfinished.
template <int kPending>
__device__ __forceinline__ void products_wait() {
#if FENWICK_MATRIX_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace fenwick::cuda::matrix
