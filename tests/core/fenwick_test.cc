// Property tests of the Fenwick arithmetic. Lengths 0..300 pass two chunk borders and every carry up to bit 8; random
// triples reach 2^40 blocks, far beyond 32 bits.
#include "core/fenwick.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <random>

#include "core/errors.h"

namespace fenwick {
namespace {

void check_partition(const std::vector<Node>& nodes, std::int64_t first, std::int64_t end) {
    std::int64_t at = first;
    for (const Node& node : nodes) {
        REQUIRE(node.first_block() == at);
        at = node.end_block();
    }
    REQUIRE(at == end);
}

/// Fewest complete nodes for [first, end), by trying every node that can come first.
std::size_t fewest_nodes(std::int64_t first, std::int64_t end) {
    if (first == end) return 0;
    std::size_t best = static_cast<std::size_t>(end - first);
    for (int bit = 0; (std::int64_t{1} << bit) <= end - first; ++bit) {
        if (first % (std::int64_t{1} << bit) != 0) break;
        best = std::min(best, 1 + fewest_nodes(first + (std::int64_t{1} << bit), end));
    }
    return best;
}

}  // namespace

TEST_CASE("buckets of a token partition its past and agree with the level of a pair") {
    for (std::int64_t t = 0; t <= 300; ++t) {
        std::int64_t at = 0;
        for (const int bit : set_bits(t)) {
            const TokenRun run = bucket(t, bit);
            REQUIRE(run.first == at);
            REQUIRE(run.first == (t >> (bit + 1)) << (bit + 1));
            REQUIRE(run.size() == std::int64_t{1} << bit);
            for (std::int64_t s = run.first; s < run.end; ++s) REQUIRE(level_of_pair(t, s) == bit + 1);
            at = run.end;
        }
        REQUIRE(at == t);
        REQUIRE(level_of_pair(t, t) == 0);
    }
    REQUIRE(level_of_pair(std::int64_t{1} << 40, 0) == 41);
    REQUIRE(bucket(std::int64_t{1} << 62, 62) == TokenRun{0, std::int64_t{1} << 62});
}

TEST_CASE("the number of non-empty buckets is the popcount of the length") {
    // CASES A3 (iv).
    const std::vector<std::pair<std::int64_t, std::size_t>> cases = {
        {65, 2}, {127, 7}, {4095, 12}, {4096, 1}, {4097, 2}};
    for (const auto& [tokens, buckets] : cases) {
        REQUIRE(set_bits(tokens).size() == buckets);
        REQUIRE(canonical_cover(0, tokens).size() == buckets);
        REQUIRE(buckets <= static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(tokens))) + 1);
    }
}

TEST_CASE("token levels of entering states continue those inside the block") {
    REQUIRE(entering_level(0) == 13);
    // Block 5 = bits 2 and 0: its first token sees the older bucket at level 13 + 2 and the nearer one at 13 + 0.
    const std::int64_t t = 5 * kBlockTokens;
    REQUIRE(level_of_pair(t, 0) == entering_level(2));
    REQUIRE(level_of_pair(t, t - 1) == entering_level(0));
}

TEST_CASE("the cover of a prefix is the buckets of the block after it") {
    for (std::int64_t z = 0; z <= 300; ++z) {
        const std::vector<Node> nodes = canonical_cover(0, z);
        const std::vector<int> bits = set_bits(z);
        REQUIRE(nodes.size() == bits.size());
        for (std::size_t i = 0; i < nodes.size(); ++i) {
            REQUIRE(nodes[i].bit == bits[i]);
            REQUIRE(TokenRun{nodes[i].first_block(), nodes[i].end_block()} == bucket(z, bits[i]));
        }
    }
}

TEST_CASE("covers partition the run with the fewest nodes") {
    for (std::int64_t first = 0; first <= 24; ++first) {
        for (std::int64_t end = first; end <= 24; ++end) {
            const std::vector<Node> nodes = canonical_cover(first, end);
            check_partition(nodes, first, end);
            REQUIRE(nodes.size() == fewest_nodes(first, end));
        }
    }
}

TEST_CASE("joining covers of neighbouring runs gives the cover of both") {
    std::mt19937_64 random(17);
    for (int round = 0; round < 20000; ++round) {
        const int bits = 1 + static_cast<int>(random() % 40);
        std::int64_t ends[3];
        for (std::int64_t& end : ends) end = static_cast<std::int64_t>(random() % (std::uint64_t{1} << bits));
        std::sort(std::begin(ends), std::end(ends));
        const std::vector<Node> left = canonical_cover(ends[0], ends[1]);
        const std::vector<Node> right = canonical_cover(ends[1], ends[2]);
        const Join joined = join(left, right);
        REQUIRE(joined.nodes == canonical_cover(ends[0], ends[2]));
        REQUIRE(joined.merges.size() == left.size() + right.size() - joined.nodes.size());

        const std::int64_t blocks = std::max<std::int64_t>(ends[2] - ends[0], 1);
        const int log2_blocks = std::bit_width(static_cast<std::uint64_t>(blocks)) - 1;
        REQUIRE(joined.nodes.size() <= static_cast<std::size_t>(2 * log2_blocks + 2));

        std::vector<Node> known(left);
        known.insert(known.end(), right.begin(), right.end());
        for (const Merge& merge : joined.merges) {
            REQUIRE(merge.left == left_child(merge.formed));
            REQUIRE(merge.right == right_child(merge.formed));
            REQUIRE(std::find(known.begin(), known.end(), merge.left) != known.end());
            REQUIRE(std::find(known.begin(), known.end(), merge.right) != known.end());
            known.push_back(merge.formed);
        }
    }
}

TEST_CASE("nodes know their relatives") {
    const Node node{3, 6};
    REQUIRE(node.first_block() == 48);
    REQUIRE(node.end_block() == 56);
    REQUIRE(is_left_child(node));
    REQUIRE(sibling(node) == Node{3, 7});
    REQUIRE(parent(node) == Node{4, 3});
    REQUIRE(parent(sibling(node)) == parent(node));
    REQUIRE(left_child(parent(node)) == node);
    REQUIRE(right_child(parent(node)) == sibling(node));
}

TEST_CASE("Fenwick arithmetic refuses what has no meaning") {
    REQUIRE_THROWS_AS(level_of_pair(3, 4), InternalError);
    REQUIRE_THROWS_AS(level_of_pair(3, -1), InternalError);
    REQUIRE_THROWS_AS(bucket(4, 1), InternalError);
    REQUIRE_THROWS_AS(canonical_cover(4, 3), InternalError);
    REQUIRE_THROWS_AS(canonical_cover(-1, 3), InternalError);
    REQUIRE_THROWS_AS(join(canonical_cover(0, 4), canonical_cover(5, 6)), InternalError);
}

}  // namespace fenwick
