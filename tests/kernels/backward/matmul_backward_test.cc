#include "core/errors.h"
#include "kernels/backward/matmul.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kInner = 545;  // k: two panels of a weight's columns
constexpr std::int64_t kOuter = 131;  // n: two panels of its rows

}  // namespace

TEST_CASE("Gradients of products: the reference against central differences") {
    OwnMatrix x(5, 7, 1);
    OwnMatrix weight(3, 7, 2);
    std::vector<double> bias = {0.5, -1, 2};
    const OwnMatrix dy(5, 3, 3);
    const auto objective = [&] { return weighted_sum(reference::matmul(x.view(), weight.view(), bias), dy.values); };
    const reference::MatmulGradients gradients = reference::matmul_backward(x.view(), weight.view(), dy.view());
    require_gradient(x.values, gradients.x, objective);
    require_gradient(weight.values, gradients.weight, objective);
    require_gradient(bias, gradients.bias, objective);
}

TEST_CASE("Gradients of products equal the double reference and have the same bits with any number of threads") {
    const TestMatrix weight = TestMatrix::normal(kOuter, kInner, 1);
    for (const std::int64_t rows : kGradientRows) {
        const TestMatrix x = TestMatrix::normal(rows, kInner, 10 + static_cast<std::uint32_t>(rows), 1.0F, 5, 1);
        const TestMatrix dy = TestMatrix::normal(rows, kOuter, 20 + static_cast<std::uint32_t>(rows));
        const reference::MatmulGradients expected =
            reference::matmul_backward(DoubleMatrix(x).view, DoubleMatrix(weight).view, DoubleMatrix(dy).view);
        const TestMatrix weight_before = TestMatrix::normal(kOuter, kInner, 4);
        const TestMatrix bias_before = TestMatrix::normal(1, kOuter, 5);
        TestMatrix first_x(rows, kInner);
        TestMatrix first_weight = weight_before;
        for (const int threads : {1, 2, 3}) {
            TestMatrix dx(rows, kInner);
            TestMatrix d_weight = weight_before;
            TestMatrix d_bias = bias_before;
            matmul_rows_backward_input(dy.view(), weight.view(), dx.view(), false, threads);
            matmul_rows_backward_weight(dy.view(), x.view(), d_weight.view(), d_bias.view().data, threads);
            // Sums of n terms below 16, two on average: n eps / 2 * sum |terms| (the sum of |d w| is below 2 n).
            const auto bound = [](std::int64_t n) {
                return static_cast<double>(n + 2) * kEps / 2 * 2 * static_cast<double>(n + 2);
            };
            require_close(dx.view(), expected.x, bound(kOuter), 0);
            require_close(d_weight.view(), added(weight_before, expected.weight), bound(rows), 0);
            require_close(d_bias.view(), added(bias_before, expected.bias), kEps * 4, kEps);
            for (const TestMatrix* matrix : {&dx, &d_weight, &d_bias}) matrix->require_guards();
            if (threads == 1) {
                first_x = dx;
                first_weight = d_weight;
            }
            require_equal(dx, first_x);
            require_equal(d_weight, first_weight);
            // Added to what is there: twice.
            matmul_rows_backward_input(dy.view(), weight.view(), dx.view(), true, threads);
            std::vector<double> twice = expected.x;
            for (double& value : twice) value *= 2;
            require_close(dx.view(), twice, 2 * bound(kOuter), 0);
        }
    }
}

TEST_CASE("A bias over many rows loses nothing to the number of rows") {
    constexpr std::int64_t kRows = 200000;
    std::vector<float> dy(kRows, 0.1F);
    std::vector<float> x(kRows, 1.0F);
    float d_weight = 0;
    float d_bias = 0;
    matmul_rows_backward_weight({dy.data(), kRows, 1}, {x.data(), kRows, 1}, {&d_weight, 1, 1}, &d_bias, 1);
    const double exact = static_cast<double>(0.1F) * kRows;
    CHECK(std::abs(static_cast<double>(d_bias) - exact) <= kEps * exact);
    // The product sums in tiles of 256 rows: (256 + rows / 256) eps / 2.
    CHECK(std::abs(static_cast<double>(d_weight) - exact) <= (256 + kRows / 256.0) * kEps / 2 * exact);
}

TEST_CASE("Gradients of products name shapes that do not fit") {
    TestMatrix a = TestMatrix::normal(4, 8, 1);
    TestMatrix b = TestMatrix::normal(4, 9, 1);
    CHECK_THROWS_WITH(matmul_rows_backward_input(a.view(), b.view(), b.view(), false, 1),
                      Catch::Contains("dy [4, 8], weight [4, 9] and dx [4, 9]"));
    CHECK_THROWS_AS(matmul_rows_backward_weight(a.view(), b.view(), b.view(), nullptr, 1), InternalError);
}
