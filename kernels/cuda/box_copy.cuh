// Copies of 64 x 64 boxes of a matrix, or of bytes that lie one after the other, into shared memory by the tensor
// memory accelerator, and barriers in shared memory that count their bytes, or threads (PTX ISA, "cp.async.bulk",
// "mbarrier"). sm_90 and up.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fenwick::cuda {

/// By one thread, before a barrier of the thread block: each phase ends with so many arrivals.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Each phase ends with one expect_bytes and those bytes.
__device__ __forceinline__ void init_byte_barrier(std::uint32_t barrier) {
    init_barrier(barrier, 1);
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// By one thread, before the phase's copies.
__device__ __forceinline__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// By one thread: the box whose first element is (row, column), into a tile at a multiple of 1,024 bytes.
__device__ __forceinline__ void copy_box(std::uint32_t to, const CUtensorMap& from, int row, int column,
                                         std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(&from), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

/// By one thread: the same box into the second cache.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& from, int row, int column) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&from), "r"(column), "r"(row)
                 : "memory");
}

/// By one thread: `bytes` from global memory; places and number are multiples of 16. The thread has to have fenced
/// (fence_for_wgmma) where ordinary stores have written to the place before.
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/// Until phase number `phase` has ended: its bytes are there, for the reader's next instructions and products.
__device__ __forceinline__ void await_phase(std::uint32_t barrier, std::uint32_t phase) {
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again;\n\t}" ::"r"(barrier),
        "r"(phase & 1U)
        : "memory");
}

}  // namespace fenwick::cuda
