#include "parallel/shard_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/errors.h"

namespace fenwick {
namespace {

void check_plan(std::int64_t first_token, std::int64_t tokens, int ranks) {
    CAPTURE(first_token, tokens, ranks);
    const ShardPlan plan = make_shard_plan(first_token, tokens, ranks);
    REQUIRE(plan.shards.size() == static_cast<std::size_t>(ranks));
    const std::vector<std::int64_t> boundaries = plan.complete_block_boundaries();
    REQUIRE(boundaries.size() == static_cast<std::size_t>(ranks) + 1);
    std::int64_t token = first_token;
    std::int64_t block = first_token / kBlockTokens;
    std::int64_t fewest = plan.shards.front().blocks;
    std::int64_t most = 0;
    std::int64_t complete = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const Shard& shard = plan.shard(rank);
        REQUIRE(shard.first_block == block);
        REQUIRE(shard.first_token == token);
        REQUIRE(shard.tokens >= 0);
        REQUIRE((shard.tokens + kBlockTokens - 1) / kBlockTokens == shard.blocks);
        const auto r = static_cast<std::size_t>(rank);
        REQUIRE(boundaries[r + 1] - boundaries[r] == shard.tokens / kBlockTokens);
        if (boundaries[r + 1] > boundaries[r]) REQUIRE(boundaries[r] == shard.first_block);
        if (shard.tokens > 0) REQUIRE(boundaries[r] == shard.first_block);
        fewest = std::min(fewest, shard.blocks);
        most = std::max(most, shard.blocks);
        block += shard.blocks;
        token += shard.tokens;
        complete += boundaries[r + 1] - boundaries[r];
    }
    REQUIRE(token == first_token + tokens);
    REQUIRE(most - fewest <= 1);
    REQUIRE(complete == tokens / kBlockTokens);
    REQUIRE(boundaries.front() == first_token / kBlockTokens);
}

}  // namespace

TEST_CASE("shard plan: no token is lost when ranks do not divide them") {
    // CASES G2, from the document's start and from the middle of one.
    const std::vector<std::pair<std::int64_t, int>> cases = {{10, 3},   {7, 2},     {2, 8},      {1, 4},     {0, 4},
                                                             {8423, 6}, {56700, 8}, {64 * 5, 8}, {100003, 7}};
    for (const auto& [tokens, ranks] : cases) {
        check_plan(0, tokens, ranks);
        check_plan(17 * kBlockTokens, tokens, ranks);
    }
}

TEST_CASE("shard plan: sizes around whole blocks and more than 32 bits of tokens") {
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
        for (const std::int64_t blocks : {1, 2, 7, 8, 9, 1000}) {
            for (const std::int64_t extra : {-1, 0, 1}) check_plan(0, blocks * kBlockTokens + extra, ranks);
        }
        check_plan((std::int64_t{1} << 33) * kBlockTokens, (std::int64_t{1} << 40) + 5, ranks);
    }
}

TEST_CASE("shard plan: impossible requests are refused") {
    REQUIRE_THROWS_AS(make_shard_plan(0, 10, 0), UsageError);
    REQUIRE_THROWS_AS(make_shard_plan(0, 10, -2), UsageError);
    REQUIRE_THROWS_AS(make_shard_plan(1, 10, 2), InternalError);
    REQUIRE_THROWS_AS(make_shard_plan(-kBlockTokens, 10, 2), InternalError);
    REQUIRE_THROWS_AS(make_shard_plan(0, -1, 2), InternalError);
}

}  // namespace fenwick

namespace fenwick {

TEST_CASE("shard plan: many blocks are cut by cost, where states that enter cost something") {
    for (const std::int64_t first : {0, 37, 4096}) {
        for (const int ranks : {2, 3, 8}) {
            for (const double level_cost : {0.02, 0.2}) {
                const std::int64_t blocks = 128 * ranks + 5;
                const ShardPlan plan =
                    make_shard_plan(first * kBlockTokens, blocks * kBlockTokens - 100, ranks, level_cost);
                INFO(first << " " << ranks << " " << level_cost);
                std::int64_t next = first;
                std::int64_t tokens = 0;
                double least = 1e30;
                double most = 0;
                for (const Shard& shard : plan.shards) {
                    REQUIRE(shard.first_block == next);
                    REQUIRE(shard.first_token == next * kBlockTokens);
                    if (shard.first_block != first) CHECK(shard.first_block % 4 == 0);  // 128 / 32
                    next += shard.blocks;
                    tokens += shard.tokens;
                    const double cost =
                        static_cast<double>(shard.blocks) +
                        level_cost * static_cast<double>(entering_states(next) - entering_states(next - shard.blocks));
                    least = std::min(least, cost);
                    most = std::max(most, cost);
                }
                CHECK(next == first + blocks);
                CHECK(tokens == blocks * kBlockTokens - 100);
                // Each cut is within half a unit of its place, and a block costs at most 1 + 13 level_cost there.
                CHECK(most - least <= 2 * 4 * (1 + 13 * level_cost));
            }
        }
    }
}

TEST_CASE("shard plan: short shards and linear models are cut into equal numbers of blocks") {
    for (const double level_cost : {0.0, 0.5}) {
        const ShardPlan plan = make_shard_plan(0, 31 * 4 * kBlockTokens, 4, level_cost);
        for (const Shard& shard : plan.shards) CHECK(shard.blocks == 31);
    }
    for (const Shard& shard : make_shard_plan(0, 256 * kBlockTokens, 2, 0.0).shards) CHECK(shard.blocks == 128);
    // Rank 1's blocks are entered by one state more each: rank 0 gets more of them.
    CHECK(make_shard_plan(0, 256 * kBlockTokens, 2, 0.2).shard(0).blocks == 136);
}

}  // namespace fenwick
