// The optimiser's step and norms of flat fp32 vectors on the GPU (kernels/adamw.h has the formulas). Conventions:
// backward/activations.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/adamw.h"

namespace fenwick::cuda {

/// `run` has device pointers. The bits of the CPU's step. Throws InternalError for a step below 1.
void adamw_step(const AdamW& hyper, std::int64_t step, float gradient_scale, const AdamWRun& run, cudaStream_t stream);

[[nodiscard]] std::size_t squared_norm_workspace_bytes();

/// *out (on the device) = the sum of squares of the values in double, in an order that follows from `size` alone. NaN
/// or inf where a value is.
void squared_norm(const float* values, std::int64_t size, double* out, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
