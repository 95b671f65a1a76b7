#include "parallel/exchange_cost.h"

#include <catch2/catch.hpp>
#include <vector>

#include "core/errors.h"

namespace fenwick {
namespace {

ExchangeSchedule equal_shards(int ranks, std::int64_t blocks) {
    std::vector<std::int64_t> boundaries;
    for (int rank = 0; rank <= ranks; ++rank) boundaries.push_back(rank * blocks);
    return make_exchange_schedule(std::move(boundaries));
}

}  // namespace

TEST_CASE("exchange cost: equal power-of-two shards cost a latency and a summary a round") {
    const Link link{"test", 10e-6, 1e9};
    constexpr std::int64_t kBytes = 1000000;
    for (const int ranks : {2, 4, 64, 16384}) {
        int rounds = 0;
        while ((1 << rounds) < ranks) ++rounds;
        const ExchangeCost cost = tree_cost(equal_shards(ranks, 4), kBytes, link);
        CHECK(cost.rounds == rounds);
        CHECK(cost.bytes_sent == rounds * kBytes);
        CHECK(cost.seconds == Approx(rounds * (10e-6 + 1e-3)).epsilon(1e-12));
        const ExchangeCost gather = all_gather_cost(ranks, kBytes, link);
        CHECK(gather.bytes_sent == (ranks - 1) * kBytes);
        CHECK(gather.seconds == Approx(rounds * 10e-6 + (ranks - 1) * 1e-3).epsilon(1e-12));
        const ExchangeCost ring = ring_cost(ranks, kBytes, link);
        CHECK(ring.seconds == Approx((ranks - 1) * (10e-6 + 1e-3)).epsilon(1e-12));
        CHECK(cost.seconds <= gather.seconds * (1 + 1e-12));
    }
}

TEST_CASE("exchange cost: a world of one costs nothing, and waiting for a peer counts") {
    const Link link{"test", 1.0, 1e9};
    CHECK(tree_cost(equal_shards(1, 9), 100, link).seconds == 0);
    CHECK(all_gather_cost(1, 100, link).seconds == 0);
    CHECK(ring_cost(1, 100, link).bytes_sent == 0);
    // Three ranks: rank 2 has no partner in round 0 and hands its list on; everybody knows all after two rounds.
    CHECK(tree_cost(equal_shards(3, 1), 0, link).seconds == Approx(2.0));
}

TEST_CASE("exchange cost: the link's model is near the two-GPU measurement") {
    // DESIGN section 8: grouped send and receive between two H200, us for bytes.
    const Link link = parse_link("nvlink");
    const auto swap_us = [&](std::int64_t bytes) { return 1e6 * tree_cost(equal_shards(2, 1), bytes, link).seconds; };
    CHECK(swap_us(1572864) == Approx(17.6).epsilon(0.05));
    CHECK(swap_us(std::int64_t{16} << 20) == Approx(81).epsilon(0.2));
    CHECK(swap_us(std::int64_t{256} << 20) == Approx(879).epsilon(0.05));
}

TEST_CASE("links are names or two positive numbers") {
    CHECK(parse_link("12:305").latency == Approx(12e-6));
    CHECK(parse_link("0.5:2.8").bandwidth == Approx(2.8e9));
    for (const char* bad : {"", "fast", "12", "12:", ":3", "0:3", "-1:3", "1:2:3", "1:nan"}) {
        INFO(bad);
        CHECK_THROWS_AS(parse_link(bad), UsageError);
    }
}

}  // namespace fenwick
