#include "kernels/matmul.h"

#include <catch2/catch.hpp>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/reference/matmul.h"
#include "tests/kernels/matrices.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kInner = 83;    // odd, longer than one register block
constexpr std::int64_t kOuter = 1100;  // two column panels, the second narrower

std::vector<float> workspace_for(std::int64_t k, std::int64_t n) {
    // Poisoned: nothing may be read from it before it is written.
    return std::vector<float>(static_cast<std::size_t>(matmul_workspace_floats(k, n)),
                              std::numeric_limits<float>::quiet_NaN());
}

/// sgemm with one wrong element, as a faulty kernel would leave it.
void wrong_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                 float alpha, const float* a, blasint lda, const float* b, blasint ldb, float beta, float* c,
                 blasint ldc) {
    cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (ta == CblasTrans && m == 256) c[0] *= 1.5F;
}

/// sgemm that yields NaN: comparisons with it must not pass.
void nan_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, blasint m, blasint n, blasint, float, const float*,
               blasint, const float*, blasint, float, float* c, blasint ldc) {
    for (blasint i = 0; i < m; ++i) std::fill_n(c + static_cast<std::int64_t>(i) * ldc, n, NAN);
}

}  // namespace

TEST_CASE("matmul_rows equals the double reference for every count of rows") {
    const TestMatrix weight = TestMatrix::normal(kOuter, kInner, 1);
    const TestMatrix bias = TestMatrix::normal(1, kOuter, 2);
    std::vector<float> workspace = workspace_for(kInner, kOuter);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix x = TestMatrix::normal(rows, kInner, static_cast<std::uint32_t>(rows));
        const std::vector<double> expected =
            reference::matmul(DoubleMatrix(x).view, DoubleMatrix(weight).view, DoubleMatrix(bias).values);
        TestMatrix y(rows, kOuter);
        matmul_rows(x.view(), weight.view(), y.view(), bias.view().data, false, 2, workspace.data());
        // k + 1 terms of standard normals: |error| <= (k + 1) * eps / 2 * sum |terms|, and the sum of |x w| over 83
        // terms stays below 83 * 2.
        const double tolerance = (kInner + 1) * kEps / 2 * 2 * kInner;
        require_close(y.view(), expected, tolerance, 0);
        y.require_guards();

        // Adding the product once more gives twice the product, less one bias.
        matmul_rows(x.view(), weight.view(), y.view(), nullptr, true, 2, workspace.data());
        std::vector<double> twice = expected;
        for (std::size_t i = 0; i < twice.size(); ++i) {
            twice[i] = 2 * expected[i] - static_cast<double>(bias.at(0, static_cast<std::int64_t>(i) % kOuter));
        }
        require_close(y.view(), twice, 2 * tolerance, 0);
        y.require_guards();
    }
}

TEST_CASE("A row of matmul_rows does not depend on rows or threads or alignment") {
    constexpr std::int64_t kRows = 2 * kRowTile + 44;
    const TestMatrix x = TestMatrix::normal(kRows, kInner, 3);
    const TestMatrix weight = TestMatrix::normal(kOuter, kInner, 4);
    std::vector<float> workspace = workspace_for(kInner, kOuter);
    TestMatrix whole(kRows, kOuter);
    matmul_rows(x.view(), weight.view(), whole.view(), nullptr, false, 1, workspace.data());
    for (const std::int64_t rows : {1, 2, 63, 64, 65, 255, 256, 257, 300, 511, 512, 513}) {
        for (const int threads : {1, 2, 5}) {
            // Another stride and another offset from 64-byte alignment each time.
            const std::int64_t offset = rows % 16;
            TestMatrix moved = TestMatrix::normal(kRows, kInner, 3, 1.0F, 1 + threads, offset);
            TestMatrix part(rows, kOuter, threads, offset + 1);
            matmul_rows(moved.view().row_range(0, rows), weight.view(), part.view(), nullptr, false, threads,
                        workspace.data());
            require_same_bits(part.view(), whole.view(), rows);
        }
    }
}

TEST_CASE("Row tiles fit blocks and column panels cover the columns") {
    static_assert(kBlockTokens % kRowTile == 0);
    for (const std::int64_t columns : {1, 15, 256, 1023, 1024, 1025, 2048, 7168, 32001}) {
        const std::int64_t width = panel_width(columns, kColumnPanel);
        CHECK(width >= 1);
        CHECK(width <= std::max<std::int64_t>(columns, 1));
        CHECK(width <= kColumnPanel);
    }
    CHECK(panel_width(1025, 1024) == 528);
}

TEST_CASE("The check of sgemm passes here and finds wrong kernels") {
    CHECK_NOTHROW(initialise_blas());
    CHECK_NOTHROW(check_sgemm(&cblas_sgemm));
    CHECK_THROWS_AS(check_sgemm(&nan_sgemm), UnavailableError);
    CHECK_THROWS_WITH(check_sgemm(&wrong_sgemm),
                      Catch::Contains("256 x 512 x 384") && Catch::Contains("OPENBLAS_CORETYPE=Haswell"));
}

TEST_CASE("matmul_rows names shapes that do not fit") {
    const TestMatrix x = TestMatrix::normal(4, 8, 1);
    const TestMatrix weight = TestMatrix::normal(6, 9, 1);
    TestMatrix y(4, 6);
    CHECK_THROWS_WITH(matmul_rows(x.view(), weight.view(), y.view(), nullptr, false, 1, nullptr),
                      Catch::Contains("[4, 8]") && Catch::Contains("[6, 9]"));
}
