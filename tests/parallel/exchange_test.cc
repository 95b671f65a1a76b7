// The exchange over threads: bits equal those of a single evaluation along the tree, for every number of ranks.
#include "parallel/exchange.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "parallel/self_communicator.h"
#include "parallel/shard_plan.h"
#include "parallel/thread_world.h"
#include "tests/parallel/test_algebra.h"

namespace fenwick {
namespace {

struct Algebra {
    std::int64_t floats;
    CombineFunction combine;
};

const std::vector<Algebra>& algebras() {
    static const std::vector<Algebra> all = {{test::kScalarFloats, test::combine_scalars},
                                             {test::kMatrixFloats, test::combine_matrices}};
    return all;
}

/// Empty when `list` is the cover of `blocks` with the tree's bits; else what is wrong.
std::string differs(const NodeSummaries& list, const BlockRun& blocks, const Algebra& algebra) {
    if (list.blocks() != blocks || list.nodes() != canonical_cover(blocks)) return "other nodes";
    for (std::int64_t i = 0; i < list.size(); ++i) {
        const std::vector<float> expected = test::node_values(list.node(i), algebra.floats, algebra.combine);
        if (std::memcmp(expected.data(), list.values(i), expected.size() * sizeof(float)) != 0) {
            return "node " + std::to_string(i) + " has other bits";
        }
    }
    return {};
}

NodeSummaries cover_of(const BlockRun& blocks, const Algebra& algebra) {
    const Buffer<float> rows = test::blocks_values(blocks, algebra.floats);
    HostSummaries memory(algebra.combine);
    Buffer<float> scratch(cover_scratch_floats(blocks.size(), algebra.floats));
    return owned(cover_of_blocks(blocks.first, rows.matrix(blocks.size(), algebra.floats), memory, scratch.data()),
                 memory);
}

void check_world(const std::vector<std::int64_t>& boundaries, const Algebra& algebra) {
    CAPTURE(boundaries);
    const ExchangeSchedule schedule = make_exchange_schedule(boundaries);
    std::mutex mutex;
    std::vector<std::string> faults;
    run_thread_ranks(schedule.ranks(), [&](Communicator& comm) {
        const BlockRun own = schedule.shard(comm.rank());
        const ExchangeResult result = run_exchange(schedule, comm, cover_of(own, algebra),
                                                   cover_of(schedule.carried_in(), algebra), algebra.combine);
        const std::lock_guard<std::mutex> lock(mutex);
        faults.push_back(differs(result.entering, {0, own.first}, algebra));
        faults.push_back(differs(result.end, {0, boundaries.back()}, algebra));
    });
    REQUIRE(faults.size() == 2 * static_cast<std::size_t>(schedule.ranks()));
    for (const std::string& fault : faults) REQUIRE(fault.empty());
}

}  // namespace

TEST_CASE("exchange: the test algebras depend on the order of combination") {
    // Otherwise equal bits would prove nothing.
    for (const Algebra& algebra : algebras()) {
        std::vector<float> values[4];
        for (std::int64_t block = 0; block < 4; ++block) {
            values[block] = test::block_values(block, algebra.floats);
        }
        std::vector<float> one_by_one = values[0];
        for (int block = 1; block < 4; ++block) {
            std::vector<float> next(one_by_one.size());
            algebra.combine(one_by_one.data(), values[block].data(), next.data());
            one_by_one = next;
        }
        REQUIRE(one_by_one != test::node_values({2, 0}, algebra.floats, algebra.combine));
    }
}

TEST_CASE("exchange: bits do not depend on the number of ranks") {
    for (const Algebra& algebra : algebras()) {
        for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
            for (const std::int64_t blocks : {0, 1, 3, 16, 37, 64}) {
                for (const std::int64_t first : {0, 13}) {
                    const ShardPlan plan = make_shard_plan(first * kBlockTokens, blocks * kBlockTokens + 100, ranks);
                    check_world(plan.complete_block_boundaries(), algebra);
                }
            }
        }
    }
}

TEST_CASE("exchange: bits do not depend on how blocks are spread over ranks") {
    std::mt19937_64 random(5);
    for (const Algebra& algebra : algebras()) {
        for (const int ranks : {2, 3, 5, 7, 8, 16}) {
            for (int trial = 0; trial < 4; ++trial) {
                std::vector<std::int64_t> boundaries{static_cast<std::int64_t>(random() % 30)};
                for (int rank = 0; rank < ranks; ++rank) {
                    boundaries.push_back(boundaries.back() + static_cast<std::int64_t>(random() % 7));
                }
                check_world(boundaries, algebra);
            }
        }
    }
}

TEST_CASE("exchange: passes of any size end with the same list") {
    const Algebra& algebra = algebras().back();
    SelfCommunicator self;
    NodeSummaries carried(algebra.floats, 0);
    for (const std::int64_t blocks : {1, 5, 2, 16, 0, 9}) {
        const BlockRun pass{carried.blocks().end, carried.blocks().end + blocks};
        const ExchangeSchedule schedule = make_exchange_schedule({pass.first, pass.end});
        ExchangeResult result = run_exchange(schedule, self, cover_of(pass, algebra), carried, algebra.combine);
        REQUIRE(differs(result.entering, {0, pass.first}, algebra).empty());
        carried = std::move(result.end);
        REQUIRE(differs(carried, {0, pass.end}, algebra).empty());
    }
}

TEST_CASE("exchange: a node that occurs in several joins is formed once") {
    const Algebra& algebra = algebras().front();
    int formed = 0;
    HostSummaries memory([&](const float* left, const float* right, float* out) {
        ++formed;
        algebra.combine(left, right, out);
    });
    NodeJoiner joiner(memory);
    const NodeSummaries left = cover_of({0, 4}, algebra);
    const NodeSummaries once = joiner.join(left, cover_of({4, 8}, algebra));
    const NodeSummaries again = joiner.join(left, cover_of({4, 9}, algebra));
    REQUIRE(formed == 1);
    REQUIRE(once.values(0) == again.values(0));
}

TEST_CASE("exchange: lists that are not what the schedule says are refused") {
    const Algebra& algebra = algebras().front();
    SelfCommunicator self;
    const ExchangeSchedule schedule = make_exchange_schedule({2, 5});
    const NodeSummaries carried = cover_of({0, 2}, algebra);
    REQUIRE_THROWS_AS(run_exchange(schedule, self, cover_of({2, 4}, algebra), carried, algebra.combine), InternalError);
    REQUIRE_THROWS_AS(
        run_exchange(schedule, self, cover_of({2, 5}, algebra), cover_of({0, 1}, algebra), algebra.combine),
        InternalError);
    REQUIRE_THROWS_AS(
        run_exchange(make_exchange_schedule({2, 5, 6}), self, cover_of({2, 5}, algebra), carried, algebra.combine),
        InternalError);
    REQUIRE_THROWS_AS(NodeSummaries(algebra.floats, {0, 3}, {}), InternalError);
}

namespace {

/// Host memory that writes down what happens on its rank.
class WatchedExchange final : public ExchangeMemory {
public:
    WatchedExchange(Communicator& comm, const Algebra& algebra) : comm_(comm), summaries_(algebra.combine) {}
    [[nodiscard]] SummaryMemory& summaries() override { return summaries_; }
    [[nodiscard]] int rank() const override { return comm_.rank(); }
    [[nodiscard]] int size() const override { return comm_.size(); }
    void exchange(int round, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        comm_.exchange(sends, recvs);
        events.push_back("round " + std::to_string(round));
    }

    std::vector<std::string> events;

private:
    Communicator& comm_;
    HostSummaries summaries_;
};

}  // namespace

TEST_CASE("exchange: a rank knows what enters its shard as soon as the ranks to its left have spoken") {
    const Algebra& algebra = algebras().back();
    const ExchangeSchedule schedule = make_exchange_schedule({3, 5, 7, 9, 11});
    std::mutex mutex;
    std::map<int, std::vector<std::string>> events;
    std::vector<std::string> faults;
    run_thread_ranks(4, [&](Communicator& comm) {
        WatchedExchange memory(comm, algebra);
        const BlockRun own = schedule.shard(comm.rank());
        const ExchangeResult result =
            run_exchange(schedule, memory, cover_of(own, algebra), cover_of(schedule.carried_in(), algebra),
                         [&] { memory.events.push_back("entering"); });
        const std::lock_guard<std::mutex> lock(mutex);
        events[comm.rank()] = memory.events;
        faults.push_back(differs(result.entering, {0, own.first}, algebra));
        faults.push_back(differs(result.end, {0, 11}, algebra));
    });
    for (const std::string& fault : faults) CHECK(fault.empty());
    using Events = std::vector<std::string>;
    CHECK(events[0] == Events{"entering", "round 0", "round 1"});
    CHECK(events[1] == Events{"round 0", "entering", "round 1"});
    CHECK(events[2] == Events{"round 0", "round 1", "entering"});
    CHECK(events[3] == Events{"round 0", "round 1", "entering"});
}

TEST_CASE("exchange: lists that last have no borrowed nodes") {
    const Algebra& algebra = algebras().back();
    HostSummaries memory(algebra.combine);
    const Buffer<float> rows = test::blocks_values({1, 7}, algebra.floats);
    Buffer<float> scratch(cover_scratch_floats(6, algebra.floats));
    const NodeSummaries borrowed = cover_of_blocks(1, rows.matrix(6, algebra.floats), memory, scratch.data());
    REQUIRE(borrowed.size() == 4);  // 1, 2-3, 4-5, 6
    for (std::int64_t i = 0; i < borrowed.size(); ++i) CHECK(borrowed.summary(i)->is_borrowed());
    CHECK(borrowed.values(0) == rows.data());
    const NodeSummaries kept = owned(borrowed, memory);
    std::fill(scratch.begin(), scratch.end(), 0.0F);
    CHECK(differs(kept, {1, 7}, algebra).empty());
    CHECK(owned(kept, memory).values(2) == kept.values(2));
}

}  // namespace fenwick
