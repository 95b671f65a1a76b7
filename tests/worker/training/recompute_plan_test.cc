// Plans of activation checkpointing: every step goes back once, in order, with its own input, in the places there are.
#include "worker/training/recompute_plan.h"

#include <catch2/catch.hpp>
#include <vector>

#include "core/errors.h"

using namespace fenwick;

namespace {

using Kind = RecomputeAction::Kind;

/// Follows a plan; returns the steps run.
std::int64_t follow(std::int64_t steps, std::int64_t places) {
    const std::vector<RecomputeAction> plan = plan_recompute(steps, places);
    std::vector<std::int64_t> kept(static_cast<std::size_t>(places), -1);
    std::int64_t working = 0;
    std::int64_t next_back = steps - 1;
    std::int64_t runs = 0;
    for (const RecomputeAction& action : plan) {
        INFO(steps << " steps, " << places << " places, step " << action.step << ", place " << action.place);
        REQUIRE(action.place < places);
        switch (action.kind) {
            case Kind::kRun:
                REQUIRE(working == action.step);
                ++working;
                ++runs;
                break;
            case Kind::kKeep:
                REQUIRE(working == action.step);
                kept.at(static_cast<std::size_t>(action.place)) = action.step;
                break;
            case Kind::kLoad:
                REQUIRE(kept.at(static_cast<std::size_t>(action.place)) == action.step);
                working = action.step;
                break;
            case Kind::kBack:
                REQUIRE(next_back == action.step);
                --next_back;
                if (action.place == RecomputeAction::kWorking) {
                    REQUIRE(working == action.step);
                } else {
                    REQUIRE(kept.at(static_cast<std::size_t>(action.place)) == action.step);
                }
                break;
        }
    }
    REQUIRE(next_back == -1);
    REQUIRE(steps_run(plan) == runs);
    return runs;
}

}  // namespace

TEST_CASE("plans of recomputation go back through every step once with its input") {
    for (std::int64_t steps = 1; steps <= 24; ++steps) {
        std::int64_t before = -1;
        for (std::int64_t places = 1; places <= steps + 1; ++places) {
            const std::int64_t runs = follow(steps, places);
            if (before >= 0) CHECK(runs <= before);  // more memory is never slower
            before = runs;
            if (places >= steps - 1) CHECK(runs == steps - 1);
        }
        // One place: every step's input is formed from the first one's.
        CHECK(follow(steps, 1) == steps * (steps - 1) / 2);
    }
    // Griewank and Walther: s places and r repetitions of any step reach C(s + r, s) steps. Six places, 22 steps, the
    // last of which needs none: no step runs more than three times.
    CHECK(follow(22, 6) <= 22 + 15 + 1);
}

TEST_CASE("plans of recomputation refuse what cannot be") {
    CHECK_THROWS_AS(plan_recompute(0, 1), InternalError);
    CHECK_THROWS_AS(plan_recompute(2, 0), InternalError);
    CHECK_THROWS_AS(plan_recompute(1, -1), InternalError);
    CHECK(plan_recompute(1, 0) == std::vector<RecomputeAction>{{Kind::kBack, 0, RecomputeAction::kWorking}});
}
