// Executes schedules on node names, all ranks in one thread: which lists a rank may send is checked against what it
// has, and nodes come to be only from their two children.
#include "parallel/exchange_schedule.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "core/errors.h"

namespace fenwick {
namespace {

struct NamedList {
    BlockRun blocks;
    std::vector<Node> nodes;
};

/// One rank: its lists, and every node it ever received or formed.
class SimulatedRank {
public:
    SimulatedRank(const ExchangeSchedule& schedule, int rank)
        : group_{schedule.shard(rank), canonical_cover(schedule.shard(rank))},
          prefix_{{schedule.shard(rank).first, schedule.shard(rank).first}, {}},
          carried_{schedule.carried_in(), canonical_cover(schedule.carried_in())} {
        has_.insert(group_.nodes.begin(), group_.nodes.end());
        has_.insert(carried_.nodes.begin(), carried_.nodes.end());
    }

    [[nodiscard]] const NamedList& list(HeldList name) const { return name == HeldList::kGroup ? group_ : tail_; }
    [[nodiscard]] bool has(const Node& node) const { return has_.count(node) != 0; }

    void use(ListUse how, const NamedList& received) {
        has_.insert(received.nodes.begin(), received.nodes.end());
        if (how == ListUse::kAsTail) {
            tail_ = received;
        } else if (how == ListUse::kAfterGroup) {
            group_ = joined(group_, received);
        } else {
            prefix_ = joined(received, prefix_);
            group_ = joined(received, group_);
        }
    }
    void join_tail() { group_ = joined(group_, tail_); }
    [[nodiscard]] std::vector<Node> entering() { return joined(carried_, prefix_).nodes; }
    [[nodiscard]] std::vector<Node> end() { return joined(carried_, group_).nodes; }

private:
    NamedList joined(const NamedList& left, const NamedList& right) {
        REQUIRE(left.blocks.end == right.blocks.first);
        const Join result = join(left.nodes, right.nodes);
        for (const Merge& merge : result.merges) {
            REQUIRE(has(left_child(merge.formed)));
            REQUIRE(has(right_child(merge.formed)));
            has_.insert(merge.formed);
        }
        return {{left.blocks.first, right.blocks.end}, result.nodes};
    }

    NamedList group_;
    NamedList prefix_;
    NamedList tail_;
    NamedList carried_;
    std::set<Node> has_;
};

void simulate(const std::vector<std::int64_t>& boundaries) {
    CAPTURE(boundaries);
    const ExchangeSchedule schedule = make_exchange_schedule(boundaries);
    const int ranks = static_cast<int>(boundaries.size()) - 1;
    REQUIRE(schedule.ranks() == ranks);
    REQUIRE(schedule.round_count() ==
            static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))));  // ceil(log2 P)
    const std::int64_t blocks = std::max<std::int64_t>(boundaries.back() - boundaries.front(), 1);
    const int log2_blocks = std::bit_width(static_cast<std::uint64_t>(blocks - 1));  // rounded up
    REQUIRE(schedule.largest_message() <= 2 * log2_blocks + 2);

    std::vector<SimulatedRank> world;
    world.reserve(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) world.emplace_back(schedule, rank);
    for (int r = 0; r < schedule.round_count(); ++r) {
        // All messages of a round leave before any of it is used.
        std::map<std::pair<int, int>, std::deque<NamedList>> messages;  // in order between two ranks
        for (int rank = 0; rank < ranks; ++rank) {
            const ExchangeRound& round = schedule.rounds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(r)];
            REQUIRE(round.sends.size() <= 3);
            for (const ListSend& send : round.sends) {
                const SimulatedRank& sender = world[static_cast<std::size_t>(rank)];
                const NamedList& list = sender.list(send.list);
                REQUIRE(send.to != rank);
                REQUIRE(!send.blocks.empty());
                REQUIRE(list.blocks == send.blocks);
                REQUIRE(list.nodes == canonical_cover(send.blocks));
                REQUIRE(
                    std::all_of(list.nodes.begin(), list.nodes.end(), [&](const Node& n) { return sender.has(n); }));
                messages[{rank, send.to}].push_back(list);
            }
        }
        for (int rank = 0; rank < ranks; ++rank) {
            const ExchangeRound& round = schedule.rounds[static_cast<std::size_t>(rank)][static_cast<std::size_t>(r)];
            SimulatedRank& receiver = world[static_cast<std::size_t>(rank)];
            for (const ListReceive& receive : round.receives) {
                std::deque<NamedList>& waiting = messages[{receive.from, rank}];
                REQUIRE(!waiting.empty());
                REQUIRE(waiting.front().blocks == receive.blocks);
                receiver.use(receive.use, waiting.front());
                waiting.pop_front();
            }
            if (round.tail_joins_group) receiver.join_tail();
        }
        // Whatever is sent is received.
        REQUIRE(std::all_of(messages.begin(), messages.end(), [](const auto& each) { return each.second.empty(); }));
    }
    for (int rank = 0; rank < ranks; ++rank) {
        SimulatedRank& each = world[static_cast<std::size_t>(rank)];
        REQUIRE(each.entering() == canonical_cover(0, boundaries[static_cast<std::size_t>(rank)]));
        REQUIRE(each.end() == canonical_cover(0, boundaries.back()));
    }
}

/// Boundaries from shard sizes.
std::vector<std::int64_t> boundaries_of(std::int64_t first, const std::vector<std::int64_t>& sizes) {
    std::vector<std::int64_t> boundaries{first};
    for (const std::int64_t size : sizes) boundaries.push_back(boundaries.back() + size);
    return boundaries;
}

constexpr int kMostRanks = 64;

}  // namespace

TEST_CASE("exchange schedule: equal shards end with the right lists for every number of ranks") {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        for (const std::int64_t size : {1, 2, 3, 8, 21}) {
            for (const std::int64_t first : {0, 1, 8, 77}) {
                simulate(boundaries_of(first, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), size)));
            }
        }
    }
}

TEST_CASE("exchange schedule: uneven and empty and random shards from unaligned starts") {
    std::mt19937_64 random(23);
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        const auto count = static_cast<std::size_t>(ranks);
        // More ranks than blocks, the empty shards last; all empty; all blocks on one rank.
        for (const int blocks : {0, 1, ranks / 2, ranks - 1}) {
            std::vector<std::int64_t> sizes(count, 0);
            std::fill_n(sizes.begin(), blocks, 1);
            simulate(boundaries_of(0, sizes));
            simulate(boundaries_of(1 + blocks, sizes));
        }
        for (std::size_t owner = 0; owner < count; owner += 1 + count / 5) {
            std::vector<std::int64_t> sizes(count, 0);
            sizes[owner] = 29;
            simulate(boundaries_of(3, sizes));
        }
        for (int trial = 0; trial < 12; ++trial) {
            const std::uint64_t most = std::uint64_t{1} << (random() % 12);
            std::vector<std::int64_t> sizes(count);
            for (std::int64_t& size : sizes) size = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % most);
            simulate(boundaries_of(static_cast<std::int64_t>(random() % 5000), sizes));
        }
    }
}

TEST_CASE("exchange schedule: equal power of two shards send one summary a rank and round") {
    for (int ranks = 1; ranks <= kMostRanks; ranks *= 2) {
        for (const std::int64_t size : {1, 4, 64}) {
            for (const std::int64_t passes : {0, 1}) {  // the second pass starts where an equal first one ended
                const auto first = passes * size * ranks;
                const ExchangeSchedule schedule = make_exchange_schedule(
                    boundaries_of(first, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), size)));
                for (int rank = 0; rank < ranks; ++rank) {
                    for (const ExchangeRound& round : schedule.rounds[static_cast<std::size_t>(rank)]) {
                        REQUIRE(round.sends.size() == 1);
                        REQUIRE(canonical_cover(round.sends.front().blocks).size() == 1);
                    }
                    REQUIRE(schedule.messages_sent(rank) == schedule.round_count());
                    REQUIRE(schedule.summaries_sent(rank) == schedule.round_count());
                    REQUIRE(schedule.summaries_received(rank) == schedule.round_count());
                }
            }
        }
    }
}

TEST_CASE("exchange schedule: any number of equal power of two shards sends prefixes as single summaries") {
    for (int ranks = 2; ranks <= kMostRanks; ++ranks) {
        const ExchangeSchedule schedule =
            make_exchange_schedule(boundaries_of(0, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 4)));
        for (const auto& rounds : schedule.rounds) {
            for (const ExchangeRound& round : rounds) {
                for (const ListReceive& receive : round.receives) {
                    const auto nodes = static_cast<int>(canonical_cover(receive.blocks).size());
                    // A tail is one summary for each full group in it.
                    const int most =
                        receive.use == ListUse::kAsTail ? std::popcount(static_cast<unsigned>(ranks)) - 1 : 1;
                    REQUIRE(nodes <= most);
                }
            }
        }
    }
}

TEST_CASE("exchange schedule: a world of 16384 ranks and one that is no power of two stay logarithmic") {
    for (const int ranks : {16383, 16384, 16385}) {
        const ExchangeSchedule schedule =
            make_exchange_schedule(boundaries_of(0, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1)));
        for (int rank = 0; rank < ranks; ++rank) {
            for (const ExchangeRound& round : schedule.rounds[static_cast<std::size_t>(rank)]) {
                REQUIRE(round.sends.size() <= 3);
            }
            REQUIRE(schedule.messages_sent(rank) <= std::int64_t{2} * schedule.round_count());
        }
    }
}

TEST_CASE("exchange schedule: totals read from it agree between senders and receivers") {
    const ExchangeSchedule schedule = make_exchange_schedule({5, 9, 9, 20, 21, 33, 40, 64});
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        sent += schedule.summaries_sent(rank);
        received += schedule.summaries_received(rank);
    }
    REQUIRE(sent > 0);
    REQUIRE(sent == received);
}

TEST_CASE("exchange schedule: impossible boundaries are refused") {
    REQUIRE_THROWS_AS(make_exchange_schedule({}), InternalError);
    REQUIRE_THROWS_AS(make_exchange_schedule({0}), InternalError);
    REQUIRE_THROWS_AS(make_exchange_schedule({0, 3, 2}), InternalError);
    REQUIRE_THROWS_AS(make_exchange_schedule({-1, 3}), InternalError);
}

}  // namespace fenwick
