#include "kernels/gates.h"

#include <catch2/catch.hpp>

#include "core/errors.h"
#include "kernels/activations.h"
#include "kernels/reference/rowwise.h"
#include "kernels/vector_math.h"
#include "tests/kernels/matrices.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kHeads = 67;  // one block of 64 heads and an odd rest
// softplus or silu (3 ulp), exp of A_log (1.1 ulp), and the products' roundings; the rounding of raw + bias moves
// softplus by at most eps / 2 * |raw + bias|, absolute, times exp(A_log) below 3 sigma.
constexpr double kRelative = 6 * kEps;
constexpr double kAbsolute = 10 * kEps;

}  // namespace

TEST_CASE("mamba2_gates equal the double reference") {
    const TestMatrix bias = TestMatrix::normal(1, kHeads, 1);
    const TestMatrix a_log = TestMatrix::normal(1, kHeads, 2, 0.5F);
    const float low = GENERATE(0.0F, 0.4F);
    const float high = GENERATE(1.1F, kInf);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix raw = TestMatrix::normal(rows, kHeads, static_cast<std::uint32_t>(rows), 2.0F);
        TestMatrix dt(rows, kHeads);
        TestMatrix decay(rows, kHeads);
        mamba2_gates({bias.view().data, a_log.view().data, low, high}, raw.view(), dt.view(), decay.view(), 2);
        std::vector<double> steps;
        std::vector<double> decays;
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
                steps.push_back(reference::time_step(raw.at(r, h), bias.at(0, h), low, high));
                decays.push_back(reference::log_decay(a_log.at(0, h), steps.back()));
            }
        }
        require_close(dt.view(), steps, kAbsolute, kRelative);
        require_close(decay.view(), decays, 4 * kAbsolute, kRelative);
        dt.require_guards();
        decay.require_guards();
    }
}

TEST_CASE("delta_gates equal the double reference") {
    const TestMatrix bias = TestMatrix::normal(1, kHeads, 1);
    const TestMatrix a_log = TestMatrix::normal(1, kHeads, 2, 0.5F);
    const bool negative = GENERATE(false, true);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix a = TestMatrix::normal(rows, kHeads, static_cast<std::uint32_t>(rows), 2.0F);
        const TestMatrix b = TestMatrix::normal(rows, kHeads, 500 + static_cast<std::uint32_t>(rows), 2.0F);
        TestMatrix decay(rows, kHeads);
        TestMatrix beta(rows, kHeads);
        delta_gates({bias.view().data, a_log.view().data, negative}, a.view(), b.view(), decay.view(), beta.view(), 2);
        std::vector<double> decays;
        std::vector<double> betas;
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
                const double step = reference::softplus(static_cast<double>(a.at(r, h)) + bias.at(0, h));
                decays.push_back(reference::log_decay(a_log.at(0, h), step));
                betas.push_back((negative ? 2 : 1) * reference::sigmoid(b.at(r, h)));
            }
        }
        require_close(decay.view(), decays, 4 * kAbsolute, kRelative);
        require_close(beta.view(), betas, 0, kRelative);
        // In place: the same bits.
        TestMatrix a_copy = a;
        TestMatrix b_copy = b;
        delta_gates({bias.view().data, a_log.view().data, negative}, a_copy.view(), b_copy.view(), a_copy.view(),
                    b_copy.view(), 1);
        require_same_bits(a_copy.view(), decay.view(), rows);
        require_same_bits(b_copy.view(), beta.view(), rows);
    }
}

TEST_CASE("A_log of minus infinity means no decay at all") {
    // CASES C5: real checkpoints have such heads; alpha = exp(log_decay) must be exactly 1, and -100 must act alike.
    const std::vector<float> a_log = {-kInf, -100.0F, 2.766319F};
    const std::vector<float> bias = {0.3F, 0.3F, -4.6F};
    const TestMatrix raw = TestMatrix::normal(65, 3, 7);
    TestMatrix dt(65, 3);
    TestMatrix decay(65, 3);
    TestMatrix beta(65, 3);
    mamba2_gates({bias.data(), a_log.data(), 0.0F, kInf}, raw.view(), dt.view(), decay.view(), 1);
    TestMatrix delta_decay(65, 3);
    delta_gates({bias.data(), a_log.data(), false}, raw.view(), raw.view(), delta_decay.view(), beta.view(), 1);
    for (std::int64_t r = 0; r < 65; ++r) {
        REQUIRE(decay.at(r, 0) == 0.0F);
        REQUIRE_FALSE(std::signbit(decay.at(r, 0)));
        REQUIRE(delta_decay.at(r, 0) == 0.0F);
        REQUIRE(vexp(decay.at(r, 1)) == 1.0F);
        REQUIRE(decay.at(r, 2) < 0.0F);
        REQUIRE(std::isfinite(decay.at(r, 2)));
    }
}

TEST_CASE("A rate of 15.9 is not rounded to half precision") {
    // CASES C5 (i): exp(2.766319) = 15.9; a bf16 A_log would give 15.888967.
    const float a_log = 2.766319F;
    const float bias = std::log(std::expm1(0.01F));  // softplus(bias) = 0.01
    TestMatrix raw = TestMatrix::normal(1, 1, 1, 0.0F);
    TestMatrix dt(1, 1);
    TestMatrix decay(1, 1);
    mamba2_gates({&bias, &a_log, 0.0F, kInf}, raw.view(), dt.view(), decay.view(), 1);
    CHECK(dt.at(0, 0) == Approx(0.01).epsilon(1e-6));
    CHECK(decay.at(0, 0) == Approx(-0.159).epsilon(1e-6));
}

TEST_CASE("level_scales and scale_heads and add_skip equal their definitions") {
    constexpr std::int64_t kDim = 13;
    const bool per_head = GENERATE(true, false);
    const std::int64_t d_count = per_head ? kHeads : kHeads * kDim;
    const TestMatrix scale = TestMatrix::normal(1, kHeads, 1);
    const TestMatrix d = TestMatrix::normal(1, d_count, 2);
    for (const std::int64_t rows : kRowCounts) {
        const TestMatrix dl = TestMatrix::normal(rows, kHeads, static_cast<std::uint32_t>(rows), 3.0F);
        const TestMatrix x = TestMatrix::normal(rows, kHeads * kDim, 100 + static_cast<std::uint32_t>(rows));
        TestMatrix lambda(rows, kHeads);
        level_scales(scale.view().data, dl.view(), lambda.view(), 2);
        TestMatrix v(rows, kHeads * kDim);
        scale_heads(x.view(), dl.view(), v.view(), 2);
        TestMatrix y = TestMatrix::normal(rows, kHeads * kDim, 5);
        const TestMatrix before = y;
        add_skip(d.view().data, d_count, x.view(), y.view(), 2);
        std::vector<double> lambdas;
        std::vector<double> scaled;
        std::vector<double> skipped;
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
                lambdas.push_back(reference::softplus(static_cast<double>(scale.at(0, h)) * dl.at(r, h)));
            }
            for (std::int64_t c = 0; c < kHeads * kDim; ++c) {
                scaled.push_back(static_cast<double>(x.at(r, c)) * dl.at(r, c / kDim));
                skipped.push_back(static_cast<double>(d.at(0, per_head ? c / kDim : c)) * x.at(r, c) + before.at(r, c));
            }
        }
        require_close(lambda.view(), lambdas, kAbsolute, kRelative);
        require_close(v.view(), scaled, 0, kEps / 2);
        require_close(y.view(), skipped, 0, kEps / 2);
        lambda.require_guards();
        v.require_guards();
        y.require_guards();
    }
}

TEST_CASE("swiglu and silu equal the double reference also in place") {
    for (const std::int64_t rows : kRowCounts) {
        TestMatrix gate = TestMatrix::normal(rows, kHeads, static_cast<std::uint32_t>(rows), 3.0F);
        const TestMatrix up = TestMatrix::normal(rows, kHeads, 3);
        TestMatrix out(rows, kHeads);
        swiglu(gate.view(), up.view(), out.view(), 2);
        require_close(out.view(), reference::swiglu(DoubleMatrix(gate).view, DoubleMatrix(up).view), 0, kRelative);
        out.require_guards();
        TestMatrix in_place = gate;
        swiglu(in_place.view(), up.view(), in_place.view(), 1);
        require_same_bits(in_place.view(), out.view(), rows);
        std::vector<double> activated = DoubleMatrix(gate).values;
        for (double& value : activated) value = reference::silu(value);
        silu_in_place(gate.view(), 2);
        require_close(gate.view(), activated, 0, kRelative);
        gate.require_guards();
    }
}

TEST_CASE("Gates show a NaN through the clamp and name shapes that differ") {
    const float zero = 0.0F;
    TestMatrix raw(1, 1);  // a NaN
    TestMatrix dt(1, 1);
    TestMatrix decay(1, 1);
    mamba2_gates({&zero, &zero, 0.001F, 0.1F}, raw.view(), dt.view(), decay.view(), 1);
    CHECK(std::isnan(dt.at(0, 0)));
    CHECK(std::isnan(decay.at(0, 0)));
    TestMatrix wide(1, 2);
    CHECK_THROWS_AS(mamba2_gates({&zero, &zero, 0, 1}, raw.view(), wide.view(), decay.view(), 1), InternalError);
    CHECK_THROWS_AS(swiglu(raw.view(), raw.view(), wide.view(), 1), InternalError);
    CHECK_THROWS_AS(add_skip(&zero, 3, wide.view(), wide.view(), 1), InternalError);
}
