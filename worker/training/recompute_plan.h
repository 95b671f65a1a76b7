// In which order a model's steps run when not every step's input can be kept: activation checkpointing with as many
// places as there is memory for.
//
// Steps 0 ... n - 1 follow each other; going back through step i needs its input. There is one working place, which
// holds the input of the step that would run next, and `places` kept ones. Among all ways to cut a run of steps into a
// front part, which is run again later, and the rest, the one with the fewest steps run is taken (Griewank and Walther,
// "Revolve", ACM TOMS 26, 2000): with n - 1 places every step runs once, with fewer some run again.
#pragma once

#include <cstdint>
#include <vector>

namespace fenwick {

struct RecomputeAction {
    enum class Kind : std::uint8_t {
        kRun,   ///< runs step `step`: the working place has its input, and then the next one's
        kKeep,  ///< the working place's rows, the input of `step`, go to `place`
        kLoad,  ///< the input of `step` comes from `place` to the working place
        kBack   ///< back through `step`, whose input is in `place`, or in the working place where that is kWorking
    };
    static constexpr std::int64_t kWorking = -1;

    Kind kind = Kind::kRun;
    std::int64_t step = 0;
    std::int64_t place = kWorking;

    friend bool operator==(const RecomputeAction&, const RecomputeAction&) = default;
};

/// At the start the working place has the input of step 0. Throws InternalError for n < 1 or places < 0, and when
/// n > 1 without a place: the first input would be lost.
[[nodiscard]] std::vector<RecomputeAction> plan_recompute(std::int64_t steps, std::int64_t places);

/// Runs of steps in the plan, those that `kBack` itself does not count: steps - 1 with places enough.
[[nodiscard]] std::int64_t steps_run(const std::vector<RecomputeAction>& plan);

}  // namespace fenwick
