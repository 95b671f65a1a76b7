// Gates on the GPU: kernels/gates.h with device pointers. All rows are fp32; every parameter lies on the device.
#pragma once

#include "kernels/cuda/mixer.h"
#include "kernels/gates.h"

namespace fenwick::cuda {

/// In place over raw [rows, heads]: dt = clamp(softplus(raw + dt_bias), dt_min, dt_max);
/// log_decay [rows, heads], contiguous, = -exp(A_log) dt.
void mamba2_gates(const Mamba2Gates& gates, float* raw, std::int64_t raw_stride, float* log_decay, std::int64_t rows,
                  std::int64_t heads, cudaStream_t stream);

/// In place: a becomes the log decay -exp(A_log) softplus(a + dt_bias), b becomes beta = sigmoid(b) (doubled for
/// negative eigenvalues). a, b [rows, heads], `stride` elements from row to row.
void delta_gates(const DeltaGates& gates, float* a, float* b, std::int64_t stride, std::int64_t rows,
                 std::int64_t heads, cudaStream_t stream);

/// In place over dl [rows, columns = heads * levels]: lambda = softplus(scale * dl).
void level_scales(const float* scale, float* dl, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                  cudaStream_t stream);

/// Sets log_decay[t, :] [rows, heads] to -inf where positions[t] is 0: nothing older than a document's first token
/// passes it.
void cut_log_decays(const std::int32_t* positions, float* log_decay, std::int64_t stride, std::int64_t rows,
                    std::int64_t heads, cudaStream_t stream);

}  // namespace fenwick::cuda
