#include "kernels/convolution.h"

#include <catch2/catch.hpp>

#include "core/errors.h"
#include "kernels/reference/rowwise.h"
#include "tests/kernels/matrices.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kChannels = 261;  // one channel block and an odd rest
// width fused products and a bias: below (8 + 1) eps / 2 * sum |terms|, with |terms| below 9 * 5 * 5; silu's slope is
// at most 1.1 and its own error 3 ulp.
constexpr double kAbsolute = 9 * kEps / 2 * 225 * 1.1;
constexpr double kRelative = 3 * kEps;

}  // namespace

TEST_CASE("causal_convolution equals the double reference for every width") {
    const std::int64_t width = GENERATE(1, 2, 3, 4, 5, 6, 7, 8);
    const bool silu = GENERATE(false, true);
    const TestMatrix weight = TestMatrix::normal(kChannels, width, 1, 1.0F, 0);
    const TestMatrix bias = TestMatrix::normal(1, kChannels, 2);
    const TestMatrix halo = TestMatrix::normal(width - 1, kChannels, 3);
    const bool with_bias = width != 3;
    const bool with_halo = width != 5;
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix x = TestMatrix::normal(rows, kChannels, static_cast<std::uint32_t>(rows), 1.0F, 7, 1);
        TestMatrix y(rows, kChannels);
        causal_convolution({weight.view().data, with_bias ? bias.view().data : nullptr, kChannels, width, silu},
                           with_halo ? halo.view() : MatrixView<const float>(), x.view(), y.view(), 2);
        const DoubleMatrix halo_doubles(halo);
        const std::vector<double> expected = reference::causal_convolution(
            DoubleMatrix(weight).view, with_bias ? DoubleMatrix(bias).values : std::vector<double>(),
            with_halo ? halo_doubles.view : MatrixView<const double>(), DoubleMatrix(x).view, silu);
        require_close(y.view(), expected, kAbsolute, kRelative);
        y.require_guards();
    }
}

TEST_CASE("A document cut anywhere gives the same bits when the halo is carried") {
    constexpr std::int64_t kRows = 300;
    constexpr std::int64_t kWidth = 4;
    const TestMatrix weight = TestMatrix::normal(kChannels, kWidth, 1, 1.0F, 0);
    const TestMatrix x = TestMatrix::normal(kRows, kChannels, 2);
    const Convolution convolution{weight.view().data, nullptr, kChannels, kWidth, true};
    TestMatrix whole(kRows, kChannels);
    causal_convolution(convolution, {}, x.view(), whole.view(), 1);
    for (const std::int64_t cut : {3, 4, 63, 64, 65, 255, 256, 299}) {
        TestMatrix parts(kRows, kChannels, 1, cut % 16);
        causal_convolution(convolution, {}, x.view().row_range(0, cut), parts.view().row_range(0, cut), 2);
        causal_convolution(convolution, x.view().row_range(cut - (kWidth - 1), kWidth - 1),
                           x.view().row_range(cut, kRows - cut), parts.view().row_range(cut, kRows - cut), 3);
        require_same_bits(parts.view(), whole.view(), kRows);
    }
}

TEST_CASE("An explicit halo of zeros equals the start of a document") {
    const TestMatrix weight = TestMatrix::normal(kChannels, 4, 1, 1.0F, 0);
    const TestMatrix x = TestMatrix::normal(5, kChannels, 2);
    const TestMatrix zeros = TestMatrix::normal(3, kChannels, 3, 0.0F);
    TestMatrix a(5, kChannels);
    TestMatrix b(5, kChannels);
    const Convolution convolution{weight.view().data, nullptr, kChannels, 4, true};
    causal_convolution(convolution, {}, x.view(), a.view(), 1);
    causal_convolution(convolution, zeros.view(), x.view(), b.view(), 1);
    for (std::int64_t c = 0; c < kChannels; ++c) CHECK(a.at(0, c) == b.at(0, c));
}

TEST_CASE("causal_convolution refuses impossible widths and halos") {
    const TestMatrix weight = TestMatrix::normal(4, 9, 1);
    const TestMatrix x = TestMatrix::normal(3, 4, 1);
    TestMatrix y(3, 4);
    CHECK_THROWS_AS(causal_convolution({weight.view().data, nullptr, 4, 9, false}, {}, x.view(), y.view(), 1),
                    InternalError);
    CHECK_THROWS_AS(causal_convolution({weight.view().data, nullptr, 4, 0, false}, {}, x.view(), y.view(), 1),
                    InternalError);
    CHECK_THROWS_AS(
        causal_convolution({weight.view().data, nullptr, 4, 4, false}, x.view().row_range(0, 2), x.view(), y.view(), 1),
        InternalError);
}
