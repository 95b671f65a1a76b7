// Gradients of rows times a weight (kernels/matmul.h): y = x W^T + bias.
//
// All functions of this folder: fp32, strided views; a parameter's gradient is added to what is there, in an order that
// follows from the shapes alone, so that it has the same bits with any number of threads. Shapes that disagree throw
// InternalError.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// dx [rows, k] = dy [rows, n] W (+ dx when `accumulate`), weight [n, k]. `dx` must not overlap the others.
void matmul_rows_backward_input(MatrixView<const float> dy, MatrixView<const float> weight, MatrixView<float> dx,
                                bool accumulate, int threads);

/// d_weight [n, k] += dy^T x; d_bias [n] += the columns' sums of dy (null: none). dy [rows, n], x [rows, k].
void matmul_rows_backward_weight(MatrixView<const float> dy, MatrixView<const float> x, MatrixView<float> d_weight,
                                 float* d_bias, int threads);

}  // namespace fenwick
