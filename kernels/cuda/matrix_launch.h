// Shared memory of the matrix algebra's kernels: asked for once per launch, with a clear message where a GPU has too
// little.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/cuda/check.h"
#include "core/errors.h"

namespace fenwick::cuda::matrix {

/// Bytes of shared memory that a thread block may have on the current GPU.
[[nodiscard]] inline int most_shared_bytes() {
    int device = 0;
    int bytes = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    FENWICK_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return bytes;
}

[[nodiscard]] inline int multiprocessors() {
    int device = 0;
    int count = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    FENWICK_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

/// Lets `kernel` have `bytes` of shared memory. Throws UnavailableError where the GPU has less.
template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    if (bytes > most_shared_bytes()) {
        throw UnavailableError("mixer: the matrix transitions' kernels need " + std::to_string(bytes) +
                               " bytes of shared memory in a thread block, this GPU has " +
                               std::to_string(most_shared_bytes()) + "; use another GPU or --device cpu");
    }
    FENWICK_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace fenwick::cuda::matrix
