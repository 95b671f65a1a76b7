// Shared memory of the mixers' kernels: asked for with every launch, with a clear message where a GPU has too little.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "core/cuda/check.h"
#include "core/errors.h"

namespace fenwick::cuda {

namespace detail {
inline std::atomic<int> shared_limit{std::numeric_limits<int>::max()};
}

/// While it lives, kernels are chosen as on a GPU whose thread blocks have at most so many bytes of shared memory: for
/// tests of what smaller GPUs do (163 KiB on sm_80, 99 KiB on sm_86 and sm_89).
class SharedLimit {
public:
    explicit SharedLimit(int bytes) : before_(detail::shared_limit.exchange(bytes)) {}
    SharedLimit(const SharedLimit&) = delete;
    SharedLimit& operator=(const SharedLimit&) = delete;
    ~SharedLimit() { detail::shared_limit = before_; }

private:
    int before_;
};

/// Bytes of shared memory that a thread block may have on the current GPU. Throws UnavailableError when CUDA fails.
[[nodiscard]] inline int most_shared_bytes() {
    int device = 0;
    int bytes = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    FENWICK_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return std::min(bytes, detail::shared_limit.load());
}

/// Lets `kernel` have `bytes` of dynamic shared memory. Throws UnavailableError where the GPU has less.
template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    if (bytes > most_shared_bytes()) {
        throw UnavailableError("mixer: a kernel for this head shape needs " + std::to_string(bytes) +
                               " bytes of shared memory in a thread block, this GPU has " +
                               std::to_string(most_shared_bytes()) + "; use another GPU or --device cpu");
    }
    FENWICK_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

[[nodiscard]] inline int multiprocessors() {
    int device = 0;
    int count = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    FENWICK_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}  // namespace fenwick::cuda
