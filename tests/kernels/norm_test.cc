#include "kernels/norm.h"

#include <catch2/catch.hpp>

#include "core/errors.h"
#include "kernels/reference/rowwise.h"
#include "tests/kernels/matrices.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

// 6 groups of 27: no vector width divides a group, and the lanes' remainder is used.
constexpr std::int64_t kGroup = 27;
constexpr std::int64_t kChannels = 6 * kGroup;
// A sum of n squares errs by at most (n / 16 + 4) eps / 2 relative (16 lanes and a tree), halved by the root; then a
// few roundings and silu's 3 ulp. n = 162 gives below 8 + 8 eps.
constexpr double kRelative = 16 * kEps;

}  // namespace

TEST_CASE("rms_norm equals the double reference") {
    const TestMatrix weight = TestMatrix::normal(1, kChannels, 1);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix x = TestMatrix::normal(rows, kChannels, static_cast<std::uint32_t>(rows));
        TestMatrix y(rows, kChannels);
        rms_norm(x.view(), weight.view().data, 1e-5F, y.view(), 2);
        require_close(y.view(),
                      reference::group_rms_norm(DoubleMatrix(x).view, DoubleMatrix(weight).values, kChannels,
                                                static_cast<double>(1e-5F)),
                      0, kRelative);
        y.require_guards();
    }
}

TEST_CASE("Group and gated norms equal the double reference in both orders") {
    const bool before = GENERATE(true, false);
    const std::int64_t period = GENERATE(kGroup, kChannels);
    const TestMatrix weight = TestMatrix::normal(1, period, 1);
    const GroupNorm norm{kGroup, weight.view().data, period, 1e-5F};
    const auto eps = static_cast<double>(norm.eps);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix x = TestMatrix::normal(rows, kChannels, static_cast<std::uint32_t>(rows), 1.0F, 5, 3);
        const TestMatrix gate = TestMatrix::normal(rows, kChannels, 1000 + static_cast<std::uint32_t>(rows), 2.0F);
        TestMatrix y(rows, kChannels);
        group_rms_norm(x.view(), norm, y.view(), 2);
        require_close(y.view(),
                      reference::group_rms_norm(DoubleMatrix(x).view, DoubleMatrix(weight).values, kGroup, eps), 0,
                      kRelative);
        const std::vector<double> expected = reference::gated_rms_norm(
            DoubleMatrix(x).view, DoubleMatrix(gate).view, DoubleMatrix(weight).values, kGroup, eps, before);
        gated_rms_norm(x.view(), gate.view(), norm, before, y.view(), 2);
        require_close(y.view(), expected, 0, kRelative);
        y.require_guards();
        // In place: the same bits.
        TestMatrix in_place = x;
        gated_rms_norm(in_place.view(), gate.view(), norm, before, in_place.view(), 1);
        require_same_bits(in_place.view(), y.view(), rows);
    }
}

TEST_CASE("l2_norm equals the double reference and keeps a zero row at zero") {
    const float scale = 0.125F;
    for (const std::int64_t rows : kRowCounts) {
        TestMatrix x = TestMatrix::normal(rows, kChannels, static_cast<std::uint32_t>(rows));
        for (std::int64_t c = 0; c < kChannels; ++c) x.view().row(0)[c] = 0.0F;
        TestMatrix y(rows, kChannels);
        l2_norm(x.view(), kGroup, 1e-6F, scale, y.view(), 2);
        require_close(
            y.view(),
            reference::l2_norm(DoubleMatrix(x).view, kGroup, static_cast<double>(1e-6F), static_cast<double>(scale)), 0,
            kRelative);
        y.require_guards();
    }
}

TEST_CASE("Small inputs meet eps inside the root") {
    // mean(x^2) = 1e-6 and eps = 1e-6: with eps outside the root, the result would be 0.999 instead of 0.707.
    TestMatrix x(1, 64);
    TestMatrix weight(1, 64);
    for (std::int64_t c = 0; c < 64; ++c) {
        x.view().row(0)[c] = 1e-3F;
        weight.view().row(0)[c] = 1.0F;
    }
    rms_norm(x.view(), weight.view().data, 1e-6F, x.view(), 1);
    CHECK(x.at(0, 0) == Approx(0.70710678).epsilon(1e-6));
}

TEST_CASE("Rows of norms do not depend on rows or threads or alignment") {
    const TestMatrix x = TestMatrix::normal(300, kChannels, 9);
    const TestMatrix gate = TestMatrix::normal(300, kChannels, 10);
    const TestMatrix weight = TestMatrix::normal(1, kChannels, 11);
    const GroupNorm norm{kGroup, weight.view().data, kChannels, 1e-6F};
    TestMatrix whole(300, kChannels);
    gated_rms_norm(x.view(), gate.view(), norm, false, whole.view(), 1);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix moved = TestMatrix::normal(300, kChannels, 9, 1.0F, 4, rows % 16);
        TestMatrix part(rows, kChannels, 1, 1);
        gated_rms_norm(moved.view().row_range(0, rows), gate.view().row_range(0, rows), norm, false, part.view(), 3);
        require_same_bits(part.view(), whole.view(), rows);
    }
}

TEST_CASE("add_rows adds and norms show a NaN") {
    TestMatrix x = TestMatrix::normal(65, kChannels, 1);
    const TestMatrix before = x;
    const TestMatrix y = TestMatrix::normal(65, kChannels, 2);
    add_rows(x.view(), y.view(), 2);
    for (std::int64_t r = 0; r < 65; ++r) {
        for (std::int64_t c = 0; c < kChannels; ++c) REQUIRE(x.at(r, c) == before.at(r, c) + y.at(r, c));
    }
    x.require_guards();
    x.view().row(64)[kChannels - 1] = std::numeric_limits<float>::quiet_NaN();
    l2_norm(x.view(), kGroup, 1e-6F, 1.0F, x.view(), 1);
    CHECK(std::isnan(x.at(64, kChannels - kGroup)));
    CHECK(std::isfinite(x.at(64, 0)));
}

TEST_CASE("Norms name groups that do not fit") {
    TestMatrix x = TestMatrix::normal(2, 10, 1);
    CHECK_THROWS_AS(l2_norm(x.view(), 3, 1e-6F, 1.0F, x.view(), 1), InternalError);
    CHECK_THROWS_AS(group_rms_norm(x.view(), {5, x.view().data, 7, 1e-6F}, x.view(), 1), InternalError);
}
