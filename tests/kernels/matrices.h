// Random and poisoned matrices for the tests of the row kernels, and comparisons that say where they fail.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"

namespace fenwick::test {

inline constexpr double kEps = std::numeric_limits<float>::epsilon();  // 2^-23; one rounding errs by half of it

/// Row counts around the chunk (64) and the row tile (256), with the shortest ones and one that leaves a tail.
inline constexpr std::int64_t kRowCounts[] = {1, 2, 63, 64, 65, 255, 256, 257, 300};

/// A float matrix inside a larger allocation: `pad` columns after each row and `offset` floats before the first, so
/// that strides and alignment vary. All that is not a matrix element holds a signalling pattern which must survive.
class TestMatrix {
public:
    TestMatrix(std::int64_t rows, std::int64_t cols, std::int64_t pad = 3, std::int64_t offset = 0)
        : rows_(rows), cols_(cols), stride_(cols + pad), offset_(offset) {
        storage_.assign(static_cast<std::size_t>(offset + rows * stride_ + 1), kGuard);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) view().row(r)[c] = std::numeric_limits<float>::quiet_NaN();
        }
    }

    [[nodiscard]] static TestMatrix normal(std::int64_t rows, std::int64_t cols, std::uint32_t seed, float scale = 1,
                                           std::int64_t pad = 3, std::int64_t offset = 0) {
        TestMatrix matrix(rows, cols, pad, offset);
        std::mt19937 engine(seed);
        std::normal_distribution<float> distribution(0.0F, scale);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < cols; ++c) matrix.view().row(r)[c] = distribution(engine);
        }
        return matrix;
    }

    [[nodiscard]] MatrixView<float> view() { return {storage_.data() + offset_, rows_, cols_, stride_}; }
    [[nodiscard]] MatrixView<const float> view() const { return {storage_.data() + offset_, rows_, cols_, stride_}; }
    [[nodiscard]] float at(std::int64_t r, std::int64_t c) const { return view().row(r)[c]; }

    [[nodiscard]] std::vector<double> doubles() const {
        std::vector<double> out;
        out.reserve(static_cast<std::size_t>(rows_ * cols_));
        for (std::int64_t r = 0; r < rows_; ++r) {
            for (std::int64_t c = 0; c < cols_; ++c) out.push_back(at(r, c));
        }
        return out;
    }

    /// Fails the test if anything beside the matrix elements was written.
    void require_guards() const {
        std::int64_t damaged = 0;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(storage_.size()); ++i) {
            const std::int64_t in_matrix = i - offset_;
            const bool element = in_matrix >= 0 && in_matrix < rows_ * stride_ && in_matrix % stride_ < cols_;
            if (!element && storage_[i] != kGuard) ++damaged;
        }
        REQUIRE(damaged == 0);
    }

private:
    static constexpr float kGuard = -7.25e33F;
    std::int64_t rows_, cols_, stride_, offset_;
    std::vector<float> storage_;
};

/// Doubles of a float matrix together with the view that the references take.
struct DoubleMatrix {
    explicit DoubleMatrix(const TestMatrix& matrix)
        : values(matrix.doubles()), view(values.data(), matrix.view().rows, matrix.view().cols) {}
    std::vector<double> values;
    MatrixView<const double> view;
};

/// Every element within absolute + relative * |expected|; the message names the first one that is not.
inline void require_close(MatrixView<const float> actual, const std::vector<double>& expected, double absolute,
                          double relative) {
    REQUIRE(static_cast<std::int64_t>(expected.size()) == actual.rows * actual.cols);
    for (std::int64_t r = 0; r < actual.rows; ++r) {
        for (std::int64_t c = 0; c < actual.cols; ++c) {
            const double want = expected[r * actual.cols + c];
            const double error = std::abs(static_cast<double>(actual.row(r)[c]) - want);
            if (error <= absolute + relative * std::abs(want)) continue;
            CAPTURE(actual.rows, r, c, actual.row(r)[c], want);
            FAIL("an element is off by " << error);
        }
    }
}

/// The first rows of both are the same bits.
inline void require_same_bits(MatrixView<const float> a, MatrixView<const float> b, std::int64_t rows) {
    REQUIRE(a.cols == b.cols);
    for (std::int64_t r = 0; r < rows; ++r) {
        CAPTURE(rows, r);
        REQUIRE(std::memcmp(a.row(r), b.row(r), static_cast<std::size_t>(a.cols) * sizeof(float)) == 0);
    }
}

}  // namespace fenwick::test
