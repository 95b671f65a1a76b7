// Central differences, and what else the tests of the gradients share.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/kernels/matrices.h"

namespace fenwick::test {

/// Rows around a row task (64), a row tile (256) and a slice of 16 rows, with none and a few more than one tile.
inline constexpr std::int64_t kGradientRows[] = {0, 1, 2, 17, 64, 65, 257, 300};

/// sum of dy y: what a gradient is the gradient of.
inline double weighted_sum(const std::vector<double>& y, const std::vector<double>& dy) {
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
}

/// Every element of `gradient` against (f(x + h) - f(x - h)) / 2h of `objective`, which reads `values`. With h = 1e-4
/// the difference errs by h^2 / 6 f''' (below 2e-8 for third derivatives below 10) and by 2^-53 f / h (below 1e-9 for
/// values of f below 1000): 1e-7, relative to 1 + |gradient|, has room for both.
inline void require_gradient(std::vector<double>& values, const std::vector<double>& gradient,
                             const std::function<double()>& objective) {
    constexpr double kStep = 1e-4;
    REQUIRE(values.size() == gradient.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        values[i] = value + kStep;
        const double above = objective();
        values[i] = value - kStep;
        const double below = objective();
        values[i] = value;
        const double difference = (above - below) / (2 * kStep);
        CAPTURE(i, difference, gradient[i]);
        REQUIRE(std::abs(difference - gradient[i]) <= 1e-7 * (1 + std::abs(gradient[i])));
    }
}

/// `before` plus a reference's sums: what a gradient that is added to becomes.
inline std::vector<double> added(const TestMatrix& before, const std::vector<double>& sums) {
    std::vector<double> out = before.doubles();
    REQUIRE(out.size() == sums.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += sums[i];
    return out;
}

/// Workspace of NaN: nothing may be read before it is written.
inline std::vector<float> poisoned(std::int64_t floats) {
    return std::vector<float>(static_cast<std::size_t>(floats), std::numeric_limits<float>::quiet_NaN());
}

/// A double matrix with its own values, for central differences.
struct OwnMatrix {
    OwnMatrix(std::int64_t rows_in, std::int64_t cols_in, std::uint32_t seed, float scale = 1)
        : rows(rows_in), cols(cols_in), values(TestMatrix::normal(rows_in, cols_in, seed, scale).doubles()) {}
    [[nodiscard]] MatrixView<const double> view() const { return {values.data(), rows, cols}; }
    std::int64_t rows, cols;
    std::vector<double> values;
};

/// The same bits in every element of two matrices.
inline void require_equal(const TestMatrix& a, const TestMatrix& b) {
    require_same_bits(a.view(), b.view(), a.view().rows);
}

}  // namespace fenwick::test
