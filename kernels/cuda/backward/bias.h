// Gradient of a bias that is added to all rows (kernels/cuda/convert.h's add_bias). Conventions:
// backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

[[nodiscard]] std::size_t add_bias_backward_workspace_bytes(std::int64_t columns);

/// d_bias [columns] += the columns' sums of dy [rows, columns] of the operand type, rows `stride` elements apart.
void add_bias_backward(Operand operand, const void* dy, std::int64_t stride, float* d_bias, std::int64_t rows,
                       std::int64_t columns, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
