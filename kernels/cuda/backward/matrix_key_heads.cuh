// The frame of matrix_rows' kernels: a thread block for a chunk of a key head.
#pragma once

#include "core/cuda/check.h"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {

/// Head::run(m, chunk of a head, aligned shared memory, index of the head among those of its key head) for the heads of
/// a key head one after the other, so that gradients of q and k are summed where they lie, by the same threads and in
/// the heads' order.
template <class Head, class Tiles>
__global__ void __launch_bounds__(Tiles::kThreads, 1) matrix_rows_kernel(const __grid_constant__ Matrix m) {
    extern __shared__ char memory[];
    const std::uint32_t start = shared_address(memory);
    char* aligned = memory + (((start + 1023U) & ~1023U) - start);
    const auto key_heads = static_cast<unsigned>(m.heads / m.heads_per_key);
    const int first_head = static_cast<int>(blockIdx.x % key_heads) * m.heads_per_key;
#pragma unroll 1
    for (int i = 0; i < m.heads_per_key; ++i) {
        if (i > 0) __syncthreads();  // the last head's tiles have been read
        Head::run(m, chunk_of(m, blockIdx.x / key_heads, first_head + i), aligned, i);
    }
}

template <class Head, class Tiles>
void launch_by_key_heads(const Matrix& m) {
    const auto kernel = matrix_rows_kernel<Head, Tiles>;
    allow_shared(kernel, Tiles::kBytes);
    const auto blocks = static_cast<unsigned>((m.batch_rows() + kChunk - 1) / kChunk * (m.heads / m.heads_per_key));
    kernel<<<blocks, Tiles::kThreads, Tiles::kBytes, m.call.stream>>>(m);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
