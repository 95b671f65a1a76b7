#include "core/errors.h"
#include "kernels/backward/convolution.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kChannels = 263;  // a block of 256 and an odd rest, other blocks with more threads
// dx: 8 taps below 5 times gradients below 5 * 1.1, whose slope errs by the sum before SiLU: 9 eps / 2 * 225 / 2.
constexpr double kRowBound = 8 * 5 * 5 * (9 * kEps / 2 * 110 + 8 * kEps);
// Of a weight each term (|d x| below 25, one on average) errs alike; of the sum of n terms the average counts.
double weight_bound(std::int64_t rows) {
    return static_cast<double>(rows + 1) * 2 * (9 * kEps / 2 * 110 + 8 * kEps);
}

struct Gradients {
    Gradients(std::int64_t rows, std::int64_t width, const TestMatrix& weight_in, const TestMatrix& bias_in)
        : x(rows, kChannels), halo(width - 1, kChannels), weight(weight_in), bias(bias_in) {}
    [[nodiscard]] fenwick::ConvolutionGradients views(bool with_halo, bool with_bias) {
        return {x.view(), with_halo ? halo.view() : MatrixView<float>(), weight.view().data,
                with_bias ? bias.view().data : nullptr};
    }
    TestMatrix x, halo, weight, bias;
};

}  // namespace

TEST_CASE("Gradients of the convolution: the reference against central differences") {
    const std::int64_t width = GENERATE(1, 3, 4);
    const bool silu = GENERATE(false, true);
    for (const std::int64_t rows : {0, 1, 2, 9}) {
        OwnMatrix x(rows, 3, 1);
        OwnMatrix halo(width - 1, 3, 2);
        OwnMatrix weight(3, width, 3);
        std::vector<double> bias = {0.1, -0.7, 1.3};
        const OwnMatrix dy(rows, 3, 4);
        const auto objective = [&] {
            return weighted_sum(reference::causal_convolution(weight.view(), bias, halo.view(), x.view(), silu),
                                dy.values);
        };
        const reference::ConvolutionGradients gradients =
            reference::causal_convolution_backward(weight.view(), bias, halo.view(), x.view(), silu, dy.view());
        require_gradient(x.values, gradients.x, objective);
        require_gradient(halo.values, gradients.halo, objective);
        require_gradient(weight.values, gradients.weight, objective);
        require_gradient(bias, gradients.bias, objective);
    }
}

TEST_CASE("Gradients of the convolution equal the double reference with any threads and in place") {
    const std::int64_t width = GENERATE(1, 2, 3, 4, 7, 8);
    const bool silu = GENERATE(false, true);
    const bool with_bias = width != 3;
    const bool with_halo = width != 7;
    const TestMatrix weight = TestMatrix::normal(kChannels, width, 1, 1.0F, 0);
    const TestMatrix bias = TestMatrix::normal(1, kChannels, 2);
    const TestMatrix halo = TestMatrix::normal(width - 1, kChannels, 3);
    const TestMatrix weight_before = TestMatrix::normal(kChannels, width, 4, 1.0F, 0);
    const Convolution convolution{weight.view().data, with_bias ? bias.view().data : nullptr, kChannels, width, silu};
    const MatrixView<const float> halo_view = with_halo ? halo.view() : MatrixView<const float>();
    for (const std::int64_t rows : {0, 1, 2, 3, 6, 7, 8, 65, 300}) {
        const TestMatrix x = TestMatrix::normal(rows, kChannels, 10 + static_cast<std::uint32_t>(rows), 1, 7, 1);
        const TestMatrix dy = TestMatrix::normal(rows, kChannels, 20 + static_cast<std::uint32_t>(rows));
        const DoubleMatrix halo_doubles(halo);
        const reference::ConvolutionGradients expected = reference::causal_convolution_backward(
            DoubleMatrix(weight).view, with_bias ? bias.doubles() : std::vector<double>(),
            with_halo ? halo_doubles.view : MatrixView<const double>(), DoubleMatrix(x).view, silu,
            DoubleMatrix(dy).view);
        Gradients first(rows, width, weight_before, bias);
        causal_convolution_backward(convolution, halo_view, x.view(), dy.view(), first.views(true, with_bias), 1);
        require_close(first.x.view(), expected.x, kRowBound, 0);
        require_close(first.halo.view(), expected.halo, kRowBound, 0);
        require_close(first.weight.view(), added(weight_before, expected.weight), weight_bound(rows), 0);
        if (with_bias) require_close(first.bias.view(), added(bias, expected.bias), weight_bound(rows), 0);
        for (const TestMatrix* matrix : {&first.x, &first.halo, &first.weight, &first.bias}) matrix->require_guards();
        for (const int threads : {2, 3}) {
            Gradients again(rows, width, weight_before, bias);
            again.x = dy;
            causal_convolution_backward(convolution, halo_view, x.view(), again.x.view(),
                                        again.views(with_halo, with_bias), threads);
            require_equal(again.x, first.x);
            require_equal(again.weight, first.weight);
            require_equal(again.bias, first.bias);
            if (with_halo) require_equal(again.halo, first.halo);
        }
    }
}

TEST_CASE("Gradients of a document cut anywhere add up when those of the halo go back") {
    constexpr std::int64_t kRows = 40;
    constexpr std::int64_t kWidth = 4;
    const TestMatrix weight = TestMatrix::normal(kChannels, kWidth, 1, 1.0F, 0);
    const TestMatrix zeros = TestMatrix::normal(kChannels, kWidth, 1, 0.0F, 0);
    const TestMatrix x = TestMatrix::normal(kRows, kChannels, 2);
    const TestMatrix dy = TestMatrix::normal(kRows, kChannels, 3);
    const Convolution convolution{weight.view().data, nullptr, kChannels, kWidth, true};
    Gradients whole(kRows, kWidth, zeros, zeros);
    causal_convolution_backward(convolution, {}, x.view(), dy.view(), whole.views(false, false), 1);
    for (const std::int64_t cut : {3, 4, 20, 38, 39}) {
        Gradients parts(kRows, kWidth, zeros, zeros);
        fenwick::ConvolutionGradients views = parts.views(false, false);
        views.x = parts.x.view().row_range(0, cut);
        causal_convolution_backward(convolution, {}, x.view().row_range(0, cut), dy.view().row_range(0, cut), views, 1);
        views = parts.views(true, false);
        views.x = parts.x.view().row_range(cut, kRows - cut);
        causal_convolution_backward(convolution, x.view().row_range(cut - 3, 3), x.view().row_range(cut, kRows - cut),
                                    dy.view().row_range(cut, kRows - cut), views, 1);
        for (std::int64_t i = 0; i < 3; ++i) {
            float* row = parts.x.view().row(cut - 3 + i);
            for (std::int64_t c = 0; c < kChannels; ++c) row[c] += parts.halo.at(i, c);
        }
        require_close(parts.x.view(), whole.x.doubles(), 4 * 25 * 4 * kEps, 0);
        require_close(parts.weight.view(), whole.weight.doubles(), 25 * 4 * kEps, 2 * kEps);
    }
}

TEST_CASE("A convolution's weight over many rows loses nothing to the number of rows") {
    constexpr std::int64_t kRows = 200000;
    std::vector<float> x(kRows, 1.0F);
    std::vector<float> dy(kRows, 0.1F);
    const std::vector<float> weight = {0.5F};
    float d_weight = 0;
    causal_convolution_backward({weight.data(), nullptr, 1, 1, false}, {}, {x.data(), kRows, 1}, {dy.data(), kRows, 1},
                                {{dy.data(), kRows, 1}, {}, &d_weight, nullptr}, 1);
    const double exact = static_cast<double>(0.1F) * kRows;
    CHECK(std::abs(static_cast<double>(d_weight) - exact) <= kEps * exact);
}

TEST_CASE("Gradients of the convolution refuse impossible widths and shapes") {
    const TestMatrix weight = TestMatrix::normal(4, 9, 1);
    const TestMatrix x = TestMatrix::normal(3, 4, 1);
    TestMatrix dx(3, 4);
    TestMatrix short_halo(2, 4);
    float* data = dx.view().data;
    for (const std::int64_t width : {0, 9}) {
        CHECK_THROWS_AS(causal_convolution_backward({weight.view().data, nullptr, 4, width, false}, {}, x.view(),
                                                    x.view(), {dx.view(), {}, data, nullptr}, 1),
                        InternalError);
    }
    CHECK_THROWS_WITH(causal_convolution_backward({weight.view().data, nullptr, 4, 4, false}, {}, x.view(), x.view(),
                                                  {dx.view(), short_halo.view(), data, nullptr}, 1),
                      Catch::Contains("gradients of halo [2, 4]"));
}
