#include "parallel/halo.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <random>

#include "core/errors.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"
#include "tests/parallel/halo_check.h"

namespace fenwick {
namespace {

void check_world(const std::vector<std::int64_t>& rows_per_rank, int halo_rows, std::int64_t first_row) {
    CAPTURE(rows_per_rank, halo_rows, first_row);
    std::mutex mutex;
    std::vector<std::string> faults;
    run_thread_ranks(static_cast<int>(rows_per_rank.size()), [&](Communicator& comm) {
        const std::string fault = test::check_halo(comm, rows_per_rank, halo_rows, first_row);
        const std::lock_guard<std::mutex> lock(mutex);
        faults.push_back(fault);
    });
    REQUIRE(faults.size() == rows_per_rank.size());
    for (const std::string& fault : faults) REQUIRE(fault.empty());
}

void check_backward(const std::vector<std::int64_t>& rows_per_rank, int halo_rows, std::int64_t first_row) {
    CAPTURE(rows_per_rank, halo_rows, first_row);
    std::mutex mutex;
    std::vector<std::string> faults;
    std::array<double, 2> sums{};
    run_thread_ranks(static_cast<int>(rows_per_rank.size()), [&](Communicator& comm) {
        std::array<double, 2> products{};
        const std::string fault = test::check_halo_backward(comm, rows_per_rank, halo_rows, first_row, products);
        const std::lock_guard<std::mutex> lock(mutex);
        faults.push_back(fault);
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += products[i];
    });
    REQUIRE(faults.size() == rows_per_rank.size());
    for (const std::string& fault : faults) REQUIRE(fault.empty());
    REQUIRE(sums[0] == sums[1]);  // <halo(x), y> = <x, halo_backward(y)>: the operator is transposed
}

}  // namespace

TEST_CASE("halo: rows come from the rank before") {
    check_world({10, 10, 10}, 3, 0);
    check_world({10, 10, 10}, 3, 100);
}

TEST_CASE("halo: tiny shards take rows from several ranks and the previous pass and before the document") {
    // W - 1 = 3 rows reach over shards of one row, over ranks without rows, and past the pass's start.
    for (const std::int64_t first_row : {0, 1, 2, 3, 50}) {
        check_world({1, 1, 1, 1, 1}, 3, first_row);
        check_world({1, 0, 0, 2, 0, 1}, 3, first_row);
        check_world({0, 0, 1}, 3, first_row);
        check_world({2, 0}, 3, first_row);
        check_world({0, 0}, 3, first_row);
        check_world({1}, 3, first_row);
        check_world({4, 4}, 0, first_row);
    }
}

TEST_CASE("halo: random shards") {
    std::mt19937_64 random(11);
    for (int trial = 0; trial < 150; ++trial) {
        std::vector<std::int64_t> rows(1 + random() % 9);
        for (std::int64_t& each : rows) each = static_cast<std::int64_t>(random() % 5);
        check_world(rows, static_cast<int>(random() % 8), static_cast<std::int64_t>(random() % 10));
    }
}

TEST_CASE("halo backward: gradients go back to the rows' owners, tiny and empty shards included") {
    check_backward({10, 10, 10}, 3, 0);
    for (const std::int64_t first_row : {0, 1, 3, 50}) {
        check_backward({1, 1, 1, 1, 1}, 3, first_row);
        check_backward({1, 0, 0, 2, 0, 1}, 3, first_row);
        check_backward({0, 0, 1}, 3, first_row);
        check_backward({0, 0}, 3, first_row);
        check_backward({1}, 3, first_row);
        check_backward({4, 4}, 0, first_row);
    }
    std::mt19937_64 random(12);
    for (int trial = 0; trial < 150; ++trial) {
        std::vector<std::int64_t> rows(1 + random() % 9);
        for (std::int64_t& each : rows) each = static_cast<std::int64_t>(random() % 5);
        check_backward(rows, static_cast<int>(random() % 8), static_cast<std::int64_t>(random() % 10));
    }
}

TEST_CASE("halo: a plan names whom each rank takes rows from") {
    const std::vector<std::int64_t> rows = {4, 1, 2, 0};
    const HaloPlan plan = plan_halo(rows, 3, 8);
    // Rank 0 from the carried rows; rank 1 from rank 0; rank 2 from ranks 0 and 1; rank 3 owns nothing; the carried
    // rows of the next pass from ranks 1 and 2.
    std::vector<std::pair<int, int>> pairs;
    for (const HaloPiece& piece : plan.pieces) pairs.emplace_back(piece.from, piece.to);
    REQUIRE(pairs == std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {1, 0}, {2, 0}});
    REQUIRE(plan.pieces[0].from_carried);
    REQUIRE(plan.pieces[2].source_row == 2);
    REQUIRE(plan.pieces[2].rows == 2);
    REQUIRE(plan.pieces[5].to_carried);
}

TEST_CASE("halo: plans and views that do not fit are refused") {
    REQUIRE_THROWS_AS(plan_halo({}, 3, 0), InternalError);
    REQUIRE_THROWS_AS(plan_halo(std::vector<std::int64_t>{1, -1}, 3, 0), InternalError);
    REQUIRE_THROWS_AS(plan_halo(std::vector<std::int64_t>{1}, -1, 0), InternalError);
    REQUIRE_THROWS_AS(plan_halo(std::vector<std::int64_t>{1}, 3, -1), InternalError);
    SelfCommunicator self;
    Buffer<float> rows(12);
    Buffer<float> out(12);
    const HaloPlan plan = plan_halo(std::vector<std::int64_t>{3}, 3, 0);
    REQUIRE_THROWS_AS(
        exchange_halo(plan, self, rows.matrix(2, 4), rows.matrix(3, 4), out.matrix(3, 4), out.matrix(3, 4)),
        InternalError);
    REQUIRE_THROWS_AS(
        exchange_halo(plan, self, rows.matrix(3, 4), rows.matrix(3, 4), out.matrix(3, 4), out.matrix(2, 4)),
        InternalError);
    REQUIRE_THROWS_AS(exchange_halo_backward(plan, self, rows.matrix(3, 4), out.matrix(2, 4)), InternalError);
    REQUIRE_THROWS_AS(exchange_halo_backward(plan, self, rows.matrix(2, 4), out.matrix(3, 4)), InternalError);
    REQUIRE_THROWS_AS(exchange_halo_backward(plan_halo(std::vector<std::int64_t>{3, 3}, 3, 0), self, rows.matrix(3, 4),
                                             out.matrix(3, 4)),
                      InternalError);
}

}  // namespace fenwick
