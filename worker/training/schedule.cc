#include "worker/training/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/errors.h"

namespace fenwick {

double learning_rate(const Schedule& schedule, std::int64_t step) {
    if (step < 1) throw InternalError(fmt::format("learning_rate: step {}, steps count from 1", step));
    if (step <= schedule.warmup_steps) {
        return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
    }
    const std::int64_t s = std::min(step, schedule.steps);
    const double height = schedule.peak - schedule.least;
    switch (schedule.kind) {
        case ScheduleKind::kConstant:
            break;
        case ScheduleKind::kCosine: {
            const std::int64_t length = schedule.steps - schedule.warmup_steps;
            if (length <= 0) break;
            const double part = static_cast<double>(s - schedule.warmup_steps) / static_cast<double>(length);
            return schedule.least + height * 0.5 * (1.0 + std::cos(std::numbers::pi * part));
        }
        case ScheduleKind::kWsd:
            if (schedule.steps - s >= schedule.decay_steps) break;
            return schedule.least +
                   height * static_cast<double>(schedule.steps - s) / static_cast<double>(schedule.decay_steps);
    }
    return schedule.peak;
}

}  // namespace fenwick
