// Gradients through the exchange over threads, against the whole tree in double, for every number of ranks.
#include "parallel/exchange_backward.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <set>

#include "core/errors.h"
#include "kernels/gemm.h"
#include "parallel/self_communicator.h"
#include "parallel/shard_plan.h"
#include "parallel/thread_world.h"
#include "tests/parallel/exchange_backward_check.h"

namespace fenwick {
namespace {

void check_world(const std::vector<std::int64_t>& boundaries, const MixerShape& shape) {
    CAPTURE(boundaries, static_cast<int>(shape.algebra));
    initialise_blas();
    std::mutex mutex;
    std::vector<std::string> faults;
    run_thread_ranks(static_cast<int>(boundaries.size()) - 1, [&](Communicator& comm) {
        const std::string fault = test::check_exchange_backward(comm, boundaries, shape);
        const std::lock_guard<std::mutex> lock(mutex);
        faults.push_back(fault);
    });
    REQUIRE(faults.size() == boundaries.size() - 1);
    for (const std::string& fault : faults) {
        CAPTURE(fault);
        REQUIRE(fault.empty());
    }
}

std::vector<std::int64_t> even_boundaries(int ranks, std::int64_t blocks) {
    return make_shard_plan(0, blocks * kBlockTokens + 100, ranks).complete_block_boundaries();
}

/// (round, from, to, how many between the two in that round before it)
using MessageKey = std::array<int, 4>;

std::set<MessageKey> messages_of(const ExchangeSchedule& schedule) {
    std::set<MessageKey> all;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        for (int round = 0; round < schedule.round_count(); ++round) {
            for (const ListSend& send : schedule.rounds[rank][round].sends) {
                MessageKey key{round, rank, send.to, 0};
                while (!all.insert(key).second) ++key[3];
            }
        }
    }
    return all;
}

/// Runs the schedule forward with, in the place of values, the set of messages that a list was made of; returns what
/// the prefixes were made of.
std::set<MessageKey> messages_that_enter(const ExchangeSchedule& schedule) {
    struct Held {
        std::set<MessageKey> prefix, group, tail;
    };
    std::vector<Held> held(static_cast<std::size_t>(schedule.ranks()));
    for (int round = 0; round < schedule.round_count(); ++round) {
        std::map<std::pair<int, int>, std::deque<std::set<MessageKey>>> on_the_way;
        for (int rank = 0; rank < schedule.ranks(); ++rank) {
            for (const ListSend& send : schedule.rounds[rank][round].sends) {
                auto& pair = on_the_way[{rank, send.to}];
                auto& message = pair.emplace_back(send.list == HeldList::kGroup ? held[rank].group : held[rank].tail);
                message.insert({round, rank, send.to, static_cast<int>(pair.size()) - 1});
            }
        }
        for (int rank = 0; rank < schedule.ranks(); ++rank) {
            Held& mine = held[rank];
            for (const ListReceive& receive : schedule.rounds[rank][round].receives) {
                auto& pair = on_the_way.at({receive.from, rank});
                const std::set<MessageKey> message = pair.front();
                pair.pop_front();
                if (receive.use == ListUse::kBeforePrefixAndGroup) mine.prefix.insert(message.begin(), message.end());
                auto& list = receive.use == ListUse::kAsTail ? mine.tail : mine.group;
                list.insert(message.begin(), message.end());
            }
            if (schedule.rounds[rank][round].tail_joins_group) mine.group.insert(mine.tail.begin(), mine.tail.end());
        }
    }
    std::set<MessageKey> all;
    for (const Held& each : held) all.insert(each.prefix.begin(), each.prefix.end());
    return all;
}

}  // namespace

TEST_CASE("exchange backward: the model's gradients equal central differences") {
    // The loss is linear in a block's state and in the matrix algebra's A, smooth in log decays: a step of 2^-17 errs
    // by 1e-11 of its magnitude, rounding by 2^-53 / 2^-17 = 2e-11 for each of some hundred terms.
    constexpr double kStep = 0x1p-17;
    for (const MixerShape& shape : test::exchange_shapes()) {
        const std::vector<std::int64_t> boundaries = {0, 3, 4, 4, 7};
        const test::TreeModel model(shape, boundaries);
        const std::function<test::Doubles(const Node&, std::int64_t, std::size_t, double)> value =
            [&](const Node& node, std::int64_t block, std::size_t element, double by) -> test::Doubles {
            if (node.bit > 0) {
                return reference::combine_summaries(shape, value(left_child(node), block, element, by),
                                                    value(right_child(node), block, element, by));
            }
            const std::vector<float> given = model.block(node.index);
            test::Doubles values(given.begin(), given.end());
            if (node.index == block) values[element] += by;
            return values;
        };
        const auto loss = [&](std::int64_t block, std::size_t element, double by) {
            double sum = 0.0;
            for (int rank = 0; rank < 4; ++rank) {
                for (const Node& node : canonical_cover(0, boundaries[static_cast<std::size_t>(rank)])) {
                    const std::vector<float> d = model.d_entering(rank, node);
                    const test::Doubles v = value(node, block, element, by);
                    for (std::size_t i = 0; i < d.size(); ++i) sum += static_cast<double>(d[i]) * v[i];
                }
            }
            return sum;
        };
        const auto gradients = model.gradients(false);
        REQUIRE(gradients.size() == 7);
        for (const auto& [block, d] : gradients) {
            for (std::size_t i = 0; i < d.size(); ++i) {
                CAPTURE(block, i, d[i]);
                REQUIRE(std::fabs((loss(block, i, kStep) - loss(block, i, -kStep)) / (2 * kStep) - d[i]) < 1e-8);
            }
        }
        // Blocks of the last shard enter nobody, those of the first one everybody.
        REQUIRE(gradients.at(6) == test::Doubles(gradients.at(6).size()));
        REQUIRE(gradients.at(0) != gradients.at(6));
    }
}

TEST_CASE("exchange backward: gradients equal the whole tree's, even shards") {
    for (const MixerShape& shape : test::exchange_shapes()) {
        for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
            for (const std::int64_t blocks : {0, 1, 3, 16, 37}) check_world(even_boundaries(ranks, blocks), shape);
        }
    }
}

TEST_CASE("exchange backward: gradients equal the whole tree's, uneven and empty shards, carried lists as constants") {
    std::mt19937_64 random(7);
    for (const MixerShape& shape : test::exchange_shapes()) {
        check_world({0, 0, 0, 5, 5, 6}, shape);
        check_world({0, 9, 9, 9}, shape);
        for (const int ranks : {2, 3, 5, 6, 7, 8, 9, 16}) {
            for (int trial = 0; trial < 3; ++trial) {
                std::vector<std::int64_t> boundaries{trial < 2 ? 0 : static_cast<std::int64_t>(random() % 30)};
                for (int rank = 0; rank < ranks; ++rank) {
                    boundaries.push_back(boundaries.back() + static_cast<std::int64_t>(random() % 6));
                }
                check_world(boundaries, shape);
            }
        }
    }
}

TEST_CASE("exchange schedule: the entering schedule has the messages that entering lists depend on, and no others") {
    std::mt19937_64 random(3);
    for (int ranks = 1; ranks <= 40; ++ranks) {
        for (const std::uint64_t largest : {1, 3}) {
            std::vector<std::int64_t> boundaries{0};
            for (int rank = 0; rank < ranks; ++rank) {
                const bool one_each = largest == 1;
                boundaries.push_back(boundaries.back() + (one_each ? 1 : static_cast<std::int64_t>(random() % 3)));
            }
            const ExchangeSchedule whole = make_exchange_schedule(boundaries);
            const ExchangeSchedule entering = make_entering_schedule(boundaries);
            REQUIRE(whole.brings_end);
            REQUIRE_FALSE(entering.brings_end);
            CAPTURE(boundaries);
            CHECK(messages_of(entering) == messages_that_enter(whole));
            for (int rank = 0; rank < ranks; ++rank) REQUIRE(entering.messages_sent(rank) <= whole.messages_sent(rank));
        }
    }
}

TEST_CASE("exchange schedule: messages of the entering schedule with equal shards, powers of two") {
    // In round b a rank without bit b sends its group to the rank with it; one with bit b sends its own back when the
    // receiver sends to the right in a later round, that is when it has a zero bit above b.
    for (const int bits : {0, 1, 2, 3, 4, 5}) {
        const int ranks = 1 << bits;
        std::vector<std::int64_t> boundaries{0};
        for (int rank = 0; rank < ranks; ++rank) boundaries.push_back(boundaries.back() + 4);
        const ExchangeSchedule entering = make_entering_schedule(boundaries);
        for (int rank = 0; rank < ranks; ++rank) {
            std::int64_t expected = 0;
            for (int b = 0; b < bits; ++b) {
                const bool right = ((rank >> b) & 1) != 0;
                const bool all_ones_above = (rank >> (b + 1)) == (ranks >> (b + 1)) - 1;
                expected += right && all_ones_above ? 0 : 1;
            }
            CAPTURE(ranks, rank);
            CHECK(entering.messages_sent(rank) == expected);
            CHECK(entering.summaries_sent(rank) == expected);
        }
    }
}

TEST_CASE("exchange backward: what does not belong together is refused") {
    const MixerShape shape = test::exchange_shapes().back();
    const std::int64_t floats = summary_floats(shape);
    SelfCommunicator self;
    const auto combine = [&](const float* l, const float* r, float* out) { combine_summaries(shape, l, r, out, 1); };
    const auto combine_backward = [&](const float* l, const float* r, const float* d, float* dl, float* dr) {
        combine_summaries_backward(shape, l, r, d, dl, dr, 1);
    };
    ExchangeTape tape;
    // Nothing recorded; a schedule that brings the end.
    REQUIRE_THROWS_AS(run_exchange_backward(tape, self, combine_backward, {}), InternalError);
    REQUIRE_THROWS_AS(run_exchange(make_exchange_schedule({0, 0}), self, NodeSummaries(floats, 0),
                                   NodeSummaries(floats, 0), combine, &tape),
                      InternalError);
    const ExchangeResult result = run_exchange(make_entering_schedule({0, 0}), self, NodeSummaries(floats, 0),
                                               NodeSummaries(floats, 0), combine, &tape);
    REQUIRE(result.end.floats() == 0);
    REQUIRE(run_exchange_backward(tape, self, combine_backward, {}).empty());
    const float* none = nullptr;
    REQUIRE_THROWS_AS(run_exchange_backward(tape, self, combine_backward, {&none, 1}), InternalError);

    HostSummaryGradients gradients(combine_backward);
    Buffer<float> rows(3 * floats);
    REQUIRE_THROWS_AS(cover_of_blocks_backward(0, rows.matrix(3, floats), nullptr, NodeSummaries(floats, 0), gradients,
                                               nullptr, rows.matrix(3, floats)),
                      InternalError);
    REQUIRE_THROWS_AS(cover_of_blocks_backward(0, rows.matrix(3, floats), nullptr, NodeSummaries(floats, 0), gradients,
                                               nullptr, rows.matrix(2, floats)),
                      InternalError);
}

}  // namespace fenwick
