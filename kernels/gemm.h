// Single-threaded dense products: thin names over cblas_sgemm, and the set-up of OpenBLAS that they rely on.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace fenwick {

/// The signature of cblas_sgemm.
using SgemmFunction = void (*)(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint, blasint, blasint, float,
                               const float*, blasint, const float*, blasint, float, float*, blasint);

/// Once per process, and cheap afterwards: limits OpenBLAS to one thread a call (parallelism is ours, over tiles) and
/// checks its sgemm against double. Call it before the first gemm_*; matmul_rows, cross_entropy, the mixers and
/// their gradients call it themselves.
/// Throws UnavailableError when OpenBLAS computes wrong products on this processor.
void initialise_blas();

/// The check alone, of any sgemm: plain and transposed operands at a few shapes, alpha and beta other than 1 and 0.
/// Throws UnavailableError naming the shape, the error found and the one allowed.
void check_sgemm(SgemmFunction sgemm);

/// C [m, n] = alpha * A [m, k] B [k, n] + beta * C, all row-major; lda, ldb, ldc count floats from row to row.
/// C is not read when beta is 0. Never allocates through us, never spawns threads once initialise_blas() has run.
inline void gemm_nn(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
                static_cast<blasint>(ldc));
}

/// C [m, n] = alpha * A [m, k] B^T + beta * C, with B [n, k].
inline void gemm_nt(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
                static_cast<blasint>(ldc));
}

/// C [m, n] = alpha * A^T B + beta * C, with A [k, m] and B [k, n].
inline void gemm_tn(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a, std::int64_t lda,
                    const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
                static_cast<blasint>(ldc));
}

}  // namespace fenwick
