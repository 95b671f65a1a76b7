#include "worker/training/recompute_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/errors.h"

namespace fenwick {
namespace {

using Kind = RecomputeAction::Kind;

class Planner {
public:
    Planner(std::int64_t steps, std::int64_t places)
        : width_(places + 1), best_(static_cast<std::size_t>((steps + 1) * width_)) {
        for (std::int64_t length = 2; length <= steps; ++length) {
            for (std::int64_t free = 0; free <= places; ++free) at(length, free) = best_of(length, free);
        }
    }

    /// Back through steps [first, last). The input of `first` is in `place` and, when `working`, in the working place;
    /// places from `place` + 1 on are free.
    void reverse(std::int64_t first, std::int64_t last, std::int64_t place, bool working) {
        const std::int64_t free = width_ - 1 - place;
        if (last - first == 1) {
            actions_.push_back({Kind::kBack, first, place});
            return;
        }
        const std::int64_t front = at(last - first, free).front;
        run(first, first + front, place, working);
        if (first + front + 1 == last) {
            actions_.push_back({Kind::kBack, first + front, RecomputeAction::kWorking});
        } else {
            actions_.push_back({Kind::kKeep, first + front, place + 1});
            reverse(first + front, last, place + 1, true);
        }
        reverse(first, first + front, place, false);
    }

    [[nodiscard]] std::vector<RecomputeAction> take() { return std::move(actions_); }
    void add(const RecomputeAction& action) { actions_.push_back(action); }

private:
    struct Best {
        std::int64_t runs = 0;   // steps run to go back through so many
        std::int64_t front = 0;  // of them: those that are run first and again later
    };

    Best& at(std::int64_t length, std::int64_t free) { return best_[static_cast<std::size_t>(length * width_ + free)]; }

    Best best_of(std::int64_t length, std::int64_t free) {
        Best best{std::numeric_limits<std::int64_t>::max(), 0};
        for (std::int64_t front = 1; front < length; ++front) {
            const bool keeps = length - front > 1;
            if (keeps && free == 0) continue;
            const std::int64_t rest = keeps ? at(length - front, free - 1).runs : 0;
            const std::int64_t runs = front + rest + at(front, free).runs;
            if (runs < best.runs) best = {runs, front};
        }
        return best;
    }

    void run(std::int64_t first, std::int64_t end, std::int64_t place, bool working) {
        if (!working) actions_.push_back({Kind::kLoad, first, place});
        for (std::int64_t step = first; step < end; ++step) {
            actions_.push_back({Kind::kRun, step, RecomputeAction::kWorking});
        }
    }

    std::int64_t width_;
    std::vector<Best> best_;
    std::vector<RecomputeAction> actions_;
};

}  // namespace

std::vector<RecomputeAction> plan_recompute(std::int64_t steps, std::int64_t places) {
    if (steps < 1 || places < 0 || (steps > 1 && places == 0)) {
        throw InternalError(fmt::format("recompute plan: {} steps with {} places", steps, places));
    }
    if (steps == 1) return {{Kind::kBack, 0, RecomputeAction::kWorking}};
    Planner planner(steps, std::min(places, steps - 1) - 1);
    planner.add({Kind::kKeep, 0, 0});
    planner.reverse(0, steps, 0, true);
    return planner.take();
}

std::int64_t steps_run(const std::vector<RecomputeAction>& plan) {
    return std::count_if(plan.begin(), plan.end(),
                         [](const RecomputeAction& action) { return action.kind == Kind::kRun; });
}

}  // namespace fenwick
