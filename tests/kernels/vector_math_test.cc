#include "kernels/vector_math.h"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/reference/rowwise.h"

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double ulp(double value) {
    const double magnitude = std::abs(value);
    if (magnitude < 0x1p-126) return 0x1p-149;
    return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

/// Largest error in ulp over every 1009th bit pattern (1009 is prime: all exponents, both signs, NaNs and denormals are
/// met, 4.2 million values), within (low, high); outside, NaN and infinity must match. Each value is also computed
/// alone and must have the same bits as in the vector loop.
template <class Function, class Reference>
double worst_ulp(const Function& function, const Reference& reference, float low = -kInf, float high = kInf) {
    constexpr int kBatch = 1024;
    std::array<float, kBatch> x{};
    std::array<float, kBatch> y{};
    double worst = 0;
    std::int64_t differing = 0;
    std::int64_t wrong_specials = 0;
    for (std::uint64_t pattern = 0; pattern < (1ULL << 32U);) {
        for (float& value : x) {
            value = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
            pattern += 1009;
        }
        for (int i = 0; i < kBatch; ++i) y[i] = function(x[i]);
        for (int i = 0; i < kBatch; ++i) {
            volatile float input = x[i];
            const float alone = function(input);
            if (std::bit_cast<std::uint32_t>(alone) != std::bit_cast<std::uint32_t>(y[i]) && !std::isnan(y[i])) {
                ++differing;
            }
            const double expected = reference(static_cast<double>(x[i]));
            if (std::isnan(expected) || std::isinf(static_cast<float>(expected))) {
                const bool same = std::isnan(expected) ? std::isnan(y[i]) : y[i] == static_cast<float>(expected);
                if (!same) ++wrong_specials;
                continue;
            }
            if (!(x[i] > low && x[i] < high)) continue;
            const double error = std::abs(static_cast<double>(y[i]) - expected) / ulp(expected);
            if (!(error <= worst)) worst = error;
        }
    }
    CHECK(differing == 0);
    CHECK(wrong_specials == 0);
    return worst;
}

}  // namespace

TEST_CASE("vexp stays within its stated error") {
    CHECK(worst_ulp([](float x) { return fenwick::vexp(x); }, [](double x) { return std::exp(x); }) <= 1.1);
    CHECK(fenwick::vexp(0.0F) == 1.0F);
    CHECK(fenwick::vexp(-0.0F) == 1.0F);
    CHECK(fenwick::vexp(-kInf) == 0.0F);
    CHECK(fenwick::vexp(kInf) == kInf);
    CHECK(fenwick::vexp(88.73F) == kInf);  // ln(largest float) is 88.7228
    CHECK(fenwick::vexp(-103.0F) > 0.0F);  // a denormal
    CHECK(std::isnan(fenwick::vexp(kNan)));
}

TEST_CASE("vlog1p stays within its stated error") {
    CHECK(worst_ulp([](float x) { return fenwick::vlog1p(x); }, [](double x) { return std::log1p(x); }) <= 1.5);
    CHECK(fenwick::vlog1p(-1.0F) == -kInf);
    CHECK(std::isnan(fenwick::vlog1p(-1.5F)));
    CHECK(std::signbit(fenwick::vlog1p(-0.0F)));
    CHECK(fenwick::vlog1p(kInf) == kInf);
    CHECK(std::isnan(fenwick::vlog1p(kNan)));
}

TEST_CASE("vsigmoid stays within its stated error") {
    CHECK(worst_ulp([](float x) { return fenwick::vsigmoid(x); }, fenwick::reference::sigmoid) <= 2.5);
    CHECK(fenwick::vsigmoid(0.0F) == 0.5F);
    CHECK(fenwick::vsigmoid(-kInf) == 0.0F);
    CHECK(fenwick::vsigmoid(kInf) == 1.0F);
}

TEST_CASE("vsoftplus stays within its stated error") {
    CHECK(worst_ulp([](float x) { return fenwick::vsoftplus(x); }, fenwick::reference::softplus) <= 2.5);
    CHECK(fenwick::vsoftplus(-kInf) == 0.0F);
    CHECK(fenwick::vsoftplus(kInf) == kInf);
    CHECK(std::isnan(fenwick::vsoftplus(kNan)));
}

TEST_CASE("vsilu stays within its stated error and shows infinities") {
    CHECK(worst_ulp([](float x) { return fenwick::vsilu(x); }, fenwick::reference::silu, -87.0F) <= 3.0);
    for (int step = 0; step < 300; ++step) {
        const float x = -87.0F - 0.37F * static_cast<float>(step);
        CHECK(std::abs(static_cast<double>(fenwick::vsilu(x)) - fenwick::reference::silu(x)) <= 1e-43);
    }
    CHECK(std::isnan(fenwick::vsilu(-kInf)));
    CHECK(fenwick::vsilu(kInf) == kInf);
}

TEST_CASE("A value is the same in a vector body and in a remainder") {
    // 8 + 4 + 2 + 1 elements: every way that a loop of AVX2 width ends.
    std::vector<float> x(15, 0.7315F);
    std::vector<float> y(15);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = fenwick::vsilu(x[i]) + fenwick::vsoftplus(x[i]);
    for (const float value : y) CHECK(value == y[0]);
}
