// Learning rates against their closed forms, and those of CASES H3.
#include "worker/training/schedule.h"

#include <catch2/catch.hpp>

#include "core/errors.h"

using namespace fenwick;

TEST_CASE("learning rates: warm-up and cosine as CASES H3 has them") {
    const Schedule schedule{ScheduleKind::kCosine, 1e-3, 1e-4, 20, 4, 0};
    CHECK(learning_rate(schedule, 1) == Approx(2.5e-4).epsilon(1e-12));  // what a restarted schedule shows at step 11
    CHECK(learning_rate(schedule, 4) == Approx(1e-3).epsilon(1e-12));
    CHECK(learning_rate(schedule, 10) == Approx(7.222075e-4).epsilon(1e-6));
    CHECK(learning_rate(schedule, 11) == Approx(6.377906e-4).epsilon(1e-6));
    CHECK(learning_rate(schedule, 20) == Approx(1e-4).epsilon(1e-12));
    CHECK(learning_rate(schedule, 21) == learning_rate(schedule, 20));
}

TEST_CASE("learning rates: WSD is flat, then falls in equal steps to the least") {
    const Schedule schedule{ScheduleKind::kWsd, 2.0, 0.5, 100, 10, 20};
    CHECK(learning_rate(schedule, 5) == 1.0);
    CHECK(learning_rate(schedule, 10) == 2.0);
    CHECK(learning_rate(schedule, 11) == 2.0);
    CHECK(learning_rate(schedule, 80) == 2.0);
    CHECK(learning_rate(schedule, 81) == Approx(2.0 - 1.5 / 20));
    CHECK(learning_rate(schedule, 90) == Approx(1.25));
    CHECK(learning_rate(schedule, 100) == 0.5);
}

TEST_CASE("learning rates: constant, and the edges") {
    CHECK(learning_rate({ScheduleKind::kConstant, 3.0, 0.0, 5, 0, 0}, 1) == 3.0);
    CHECK(learning_rate({ScheduleKind::kConstant, 3.0, 0.0, 5, 2, 0}, 1) == 1.5);
    CHECK(learning_rate({ScheduleKind::kConstant, 3.0, 0.0, 5, 2, 0}, 5) == 3.0);
    // Warm-up alone; one step alone.
    CHECK(learning_rate({ScheduleKind::kCosine, 3.0, 1.0, 5, 5, 0}, 5) == 3.0);
    CHECK(learning_rate({ScheduleKind::kCosine, 3.0, 1.0, 1, 0, 0}, 1) == 1.0);
    CHECK(learning_rate({ScheduleKind::kWsd, 3.0, 1.0, 5, 0, 5}, 5) == 1.0);
    CHECK(learning_rate({ScheduleKind::kWsd, 3.0, 1.0, 5, 5, 0}, 5) == 3.0);
    CHECK_THROWS_AS(learning_rate({}, 0), InternalError);
}
