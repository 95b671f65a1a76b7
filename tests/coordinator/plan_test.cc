#include "coordinator/plan.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <string>

#include "coordinator/progress.h"
#include "coordinator/score_options.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using namespace fenwick::testing;

TEST_CASE("entering states are counted as set bits of block numbers") {
    std::int64_t sum = 0;
    for (std::int64_t blocks = 0; blocks <= 1030; ++blocks) {
        REQUIRE(entering_states(blocks) == sum);
        sum += std::popcount(static_cast<std::uint64_t>(blocks));
    }
    CHECK(entering_states(std::int64_t{1} << 40) == 40 * (std::int64_t{1} << 39));
}

TEST_CASE("plan of equal power-of-two shards sends one summary a round") {
    const TemporaryFolder folder;
    const auto model = Model::load(small_model(folder));
    // 16 ranks, one block each: log2(16) rounds, as many summaries from each rank (DESIGN section 4).
    const Plan plan = make_plan(*model, {{65536}, 16, kUnlimitedPass});
    CHECK(plan.rounds == 4);
    CHECK(plan.summaries_per_rank == 4);
    CHECK(plan.messages_per_rank == 4);
    CHECK(plan.passes == 1);
    CHECK(plan.shard_tokens == std::vector<std::int64_t>(16, 4096));
    REQUIRE(plan.layers.size() == 1);
    const LayerCost cost = model->layer_costs().front();
    CHECK(plan.layers[0].bytes_sent_per_rank_and_pass == 4 * cost.summary_bytes + cost.halo_bytes);
    CHECK(plan.weight_bytes == 4 * model->parameter_count());
    // 32 = 16 * log2(16) / 2 states enter the 16 blocks.
    const double states = 32.0 * 4096;
    CHECK(plan.flops == Approx(16 * 4096 * (cost.flops_per_token + model->head_flops_per_token()) +
                               states * cost.flops_per_token_and_level)
                            .epsilon(1e-12));
}

TEST_CASE("plan of a gang of one sends nothing and keeps its memory when the document grows") {
    const TemporaryFolder folder;
    const auto model = Model::load(small_model(folder));
    const Plan small = make_plan(*model, {{262144}, 1, 16384});
    const Plan large = make_plan(*model, {{4194304}, 1, 16384});
    CHECK(small.exchange_bytes_per_rank == 0);
    CHECK(small.activation_bytes_per_rank == large.activation_bytes_per_rank);
    // Four more bits of the block count: four more summaries in the carried list of the one layer.
    CHECK(large.state_bytes_per_rank - small.state_bytes_per_rank == 4 * model->layer_costs().front().summary_bytes);
    CHECK(large.passes == 256);
}

TEST_CASE("plans of awkward lengths lose no token") {
    const TemporaryFolder folder;
    const auto model = Model::load(small_model(folder));
    struct Case {
        std::int64_t tokens;
        int ranks;
    };
    for (const Case& c : {Case{0, 4}, {1, 4}, {2, 8}, {10, 3}, {8423, 6}, {56700, 8}, {100003, 7}, {100003, 16384}}) {
        const Plan plan = make_plan(*model, {{c.tokens}, c.ranks, kUnlimitedPass});
        INFO(c.tokens << " tokens, " << c.ranks << " ranks");
        CHECK(std::accumulate(plan.shard_tokens.begin(), plan.shard_tokens.end(), std::int64_t{0}) == c.tokens);
        CHECK(std::ssize(plan.shard_tokens) == c.ranks);
        CHECK(plan.rounds <= static_cast<int>(std::bit_width(static_cast<unsigned>(c.ranks - 1))));
    }
}

TEST_CASE("durations and sizes read well") {
    CHECK(duration_text(0.4) == "0 s");
    CHECK(duration_text(59.4) == "59 s");
    CHECK(duration_text(200) == "3:20 min");
    CHECK(duration_text(7500) == "2:05 h");
    CHECK(bytes_text(1023) == "1023 B");
    CHECK(bytes_text(1536) == "1.5 KiB");
    CHECK(bytes_text(std::int64_t{3} << 30) == "3.0 GiB");
}

TEST_CASE("plan predicts the exchange and the efficiency from the link and the ranks' rate") {
    const TemporaryFolder folder;
    const auto model = Model::load(small_model(folder));
    const std::int64_t summary = model->layer_costs().front().summary_bytes;
    const Link link{"test", 1e-5, 1e9};
    PlanRequest request{{16 * 4096}, 16, kUnlimitedPass, link, 1e9};
    const Plan plan = make_plan(*model, request);
    // One layer, one pass, log2(16) rounds of one summary each.
    const double exchange = 4 * (1e-5 + static_cast<double>(summary) / 1e9);
    CHECK(plan.layers.at(0).exchange.tree.seconds == Approx(exchange).epsilon(1e-9));
    CHECK(plan.prediction.exchange_seconds == Approx(exchange).epsilon(1e-9));
    CHECK(plan.layers[0].exchange.all_gather.bytes_sent == 15 * summary);
    CHECK(plan.layers[0].exchange.ring.rounds == 15);
    // The last block has the most states: four enter block 15, two enter a block on average.
    const LayerCost cost = model->layer_costs().front();
    const double even = cost.flops_per_token + model->head_flops_per_token();
    const double hidden = (even + 2 * cost.flops_per_token_and_level) / (even + 4 * cost.flops_per_token_and_level);
    CHECK(plan.prediction.efficiency_hidden == Approx(hidden).epsilon(1e-9));
    CHECK(plan.prediction.efficiency_exposed < plan.prediction.efficiency_hidden);
    request.rank_flops = 0;
    CHECK(make_plan(*model, request).prediction.compute_seconds == 0);
}

TEST_CASE("plan of 16,384 ranks takes fourteen rounds and less time than a ring or an all-gather") {
    const TemporaryFolder folder;
    const auto model = Model::load(small_model(folder));
    const Plan plan =
        make_plan(*model, {{std::int64_t{16384} * 4096 * 4}, 16384, kUnlimitedPass, parse_link("ib"), 1e12});
    CHECK(plan.rounds == 14);
    CHECK(plan.summaries_per_rank == 14);
    const LayerExchange& exchange = plan.layers.at(0).exchange;
    CHECK(exchange.tree.bytes_sent * 1000 < exchange.all_gather.bytes_sent);
    CHECK(exchange.tree.seconds < exchange.all_gather.seconds);
    CHECK(exchange.tree.seconds * 1000 < exchange.ring.seconds);
    CHECK(to_text(plan).find("14 rounds") != std::string::npos);
    CHECK(to_json(plan).at("prediction").at("efficiency_exchange_hidden") > 0.5);
}
