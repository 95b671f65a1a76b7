// What Matmul keeps of each shape.
#pragma once

#include "kernels/cuda/cublas_lt.h"

namespace fenwick::cuda {

// In cuBLASLt's column-major words: Y^T [n, rows] = W [n, k] X^T [k, rows], with W stored as [k, n] and transposed, or,
// by inputs, as it is.
struct Matmul::Plan {
    Description description;
    Layout weight, x, y;
    cublasLtMatmulAlgo_t algorithm{};
};

// The weight's gradient, column by column: dW^T [k, n] += X^T [k, rows] dY [rows, n], with dY stored as [n, rows] and
// transposed.
struct Matmul::WeightPlan {
    Description description;
    Layout x, dy, d_weight;
    cublasLtMatmulAlgo_t algorithm{};
};

}  // namespace fenwick::cuda
