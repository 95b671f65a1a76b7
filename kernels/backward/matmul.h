// Gradients of rows times a weight (kernels/matmul.h): y = x W^T + bias.
//
// All functions of this folder: fp32, strided views; a parameter's gradient is added to what is there, in an order that
// follows from the shapes alone, so that it has the same bits with any number of threads. Shapes that disagree throw
// InternalError.
//
// Sums over rows, with u = 2^-24 and beside the error of their terms: of biases, norms' weights, gates' parameters and
// the convolution's at most u |sum| + 2 rows u^2 sum |terms| (cpu/backward/column_sums.h); of weights (256 + rows /
// 256) u sum |terms|, tiles of 256 rows being added in order; of the embedding's rows (1 + rows / 4096) u sum |terms|.
// A NaN or an infinity in what they sum shows in them.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// dx [rows, k] = dy [rows, n] W (+ dx when `accumulate`), weight [n, k]. `dx` must not overlap the others.
void matmul_rows_backward_input(MatrixView<const float> dy, MatrixView<const float> weight, MatrixView<float> dx,
                                bool accumulate, int threads);

/// d_weight [n, k] += dy^T x; d_bias [n] += the columns' sums of dy (null: none). dy [rows, n], x [rows, k].
/// Both throw UnavailableError from initialise_blas().
void matmul_rows_backward_weight(MatrixView<const float> dy, MatrixView<const float> x, MatrixView<float> d_weight,
                                 float* d_bias, int threads);

}  // namespace fenwick
