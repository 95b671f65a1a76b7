// Gradient of a bias on the GPU (kernels/backward/matmul.h). Conventions: backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

[[nodiscard]] std::size_t bias_backward_workspace_bytes(std::int64_t columns);

/// d_bias[c] += sum over rows of dy[t, c]: dy [rows, columns] of the operand type.
void bias_backward(Operand operand, const void* dy, std::int64_t dy_stride, float* d_bias, std::int64_t rows,
                   std::int64_t columns, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
