#include "coordinator/nll_sum.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "core/fenwick.h"

using namespace fenwick;

namespace {

std::vector<float> random_losses(std::size_t count) {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> loss(0.0F, 12.0F);
    std::vector<float> losses(count);
    for (float& value : losses) value = loss(random);
    return losses;
}

}  // namespace

// Three whole blocks and a part: every cut position inside and at the border of a block occurs.
TEST_CASE("the sum of losses does not depend on how they are cut") {
    const std::vector<float> losses = random_losses(3 * kBlockTokens + 77);
    NllSum whole;
    whole.add(losses);
    for (const std::size_t step : {1UL, 63UL, 4095UL, 4096UL, 4097UL, 10000UL}) {
        NllSum pieces;
        for (std::size_t first = 0; first < losses.size(); first += step) {
            pieces.add(std::span(losses).subspan(first, std::min(step, losses.size() - first)));
        }
        INFO(step);
        CHECK(pieces.total() == whole.total());  // the same bits
        CHECK(pieces.count() == whole.count());
    }
    double plain = 0;
    for (const float loss : losses) plain += static_cast<double>(loss);
    // Two orders of adding n = 12,365 numbers of at most 12 differ by less than n * 2^-53 * their sum
    // (about 7.4e4): 1.1e-7.
    CHECK(std::abs(whole.total() - plain) < 1.1e-7);
}

TEST_CASE("the sum of losses goes on from a save point with the same bits") {
    const std::vector<float> losses = random_losses(5 * kBlockTokens + 5);
    NllSum whole;
    whole.add(losses);
    NllSum first;
    first.add(std::span(losses).first(2 * kBlockTokens));
    NllSum second(first.count(), first.total());
    second.add(std::span(losses).subspan(2 * kBlockTokens));
    CHECK(second.total() == whole.total());
    CHECK(second.count() == whole.count());
}

TEST_CASE("a loss that is not finite is found") {
    std::vector<float> losses(100, 1.0F);
    CHECK(first_non_finite(losses) == -1);
    CHECK(first_non_finite({}) == -1);
    losses[99] = std::numeric_limits<float>::infinity();
    CHECK(first_non_finite(losses) == 99);
    losses[3] = std::numeric_limits<float>::quiet_NaN();
    CHECK(first_non_finite(losses) == 3);
}
