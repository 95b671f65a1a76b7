#include "kernels/gemm.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "core/errors.h"

namespace fenwick {
namespace {

struct CheckShape {
    std::int64_t m, n, k;
};

// One register tile's worth, a full cache block, and edges that no tile divides. Wrong kernels of OpenBLAS 0.3.21 on
// processors newer than itself were seen at the first two.
constexpr CheckShape kCheckShapes[] = {{64, 64, 128}, {256, 512, 384}, {65, 33, 129}, {1, 128, 64}};

/// Values in (-1, 1) that repeat from run to run; exact in fp32.
std::vector<float> check_values(std::int64_t count, std::uint32_t seed) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::uint32_t state = seed;
    for (float& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<float>(static_cast<int>(state >> 16) - 32768) / 32768.0F;
    }
    return values;
}

void check_shape(SgemmFunction sgemm, const CheckShape& shape, bool transpose_a, bool transpose_b) {
    const auto [m, n, k] = shape;
    const float alpha = 0.5F;
    const float beta = -2.0F;
    const std::vector<float> a = check_values(m * k, 1);
    const std::vector<float> b = check_values(k * n, 2);
    const std::vector<float> before = check_values(m * n, 3);
    std::vector<float> c = before;
    sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
          static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), alpha, a.data(),
          static_cast<blasint>(transpose_a ? m : k), b.data(), static_cast<blasint>(transpose_b ? k : n), beta,
          c.data(), static_cast<blasint>(n));

    // |error| of a sum of k terms below 1 is at most (k + 3) * eps * sum |terms| <= (k + 3)^2 * eps; random terms stay
    // far below it, wrong kernels far above.
    const double allowed = static_cast<double>(k + 3) * std::sqrt(static_cast<double>(k + 3)) *
                           static_cast<double>(std::numeric_limits<float>::epsilon());
    double worst = 0;
    // Every 7th row and 5th column: both are coprime to every tile size, and the whole check stays in milliseconds.
    for (std::int64_t i = 0; i < m; i += 7) {
        for (std::int64_t j = 0; j < n; j += 5) {
            double sum = 0;
            for (std::int64_t p = 0; p < k; ++p) {
                sum += static_cast<double>(a[transpose_a ? p * m + i : i * k + p]) *
                       static_cast<double>(b[transpose_b ? j * k + p : p * n + j]);
            }
            const double expected = alpha * sum + beta * static_cast<double>(before[i * n + j]);
            const double error = std::abs(static_cast<double>(c[i * n + j]) - expected);
            if (!(error <= worst)) worst = error;  // keeps a NaN
        }
    }
    if (!(worst <= allowed)) {
        throw UnavailableError(fmt::format(
            "OpenBLAS computes wrong products on this processor: sgemm of {} x {} x {} (transposed: {}, {}) is off by "
            "{:.3g}, at most {:.3g} expected. Set the environment variable OPENBLAS_CORETYPE=Haswell and run again, or "
            "install a newer OpenBLAS",
            m, n, k, transpose_a, transpose_b, worst, allowed));
    }
}

}  // namespace

void check_sgemm(SgemmFunction sgemm) {
    for (const CheckShape& shape : kCheckShapes) {
        for (const bool transpose_a : {false, true}) {
            for (const bool transpose_b : {false, true}) check_shape(sgemm, shape, transpose_a, transpose_b);
        }
    }
}

void initialise_blas() {
    static std::once_flag once;
    std::call_once(once, [] {
        openblas_set_num_threads(1);
        check_sgemm(&cblas_sgemm);
    });
}

}  // namespace fenwick
