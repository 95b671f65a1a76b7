// The learning rate of a step. Steps count from 1 to N; W steps warm up.
//
//   s <= W:        peak * s / W
//   constant:      peak
//   cosine:        least + (peak - least) * (1 + cos(pi * (s - W) / (N - W))) / 2             (arXiv 1608.03983, no
//   restarts) wsd:           peak up to step N - D, then least + (peak - least) * (N - s) / D           (arXiv
//   2404.06395, linear decay)
//
// so that lr(N) is `least` for both that decay.
#pragma once

#include <cstdint>

namespace fenwick {

enum class ScheduleKind { kConstant, kCosine, kWsd };

struct Schedule {
    ScheduleKind kind = ScheduleKind::kConstant;
    double peak = 0.0;
    double least = 0.0;             ///< where cosine and WSD end
    std::int64_t steps = 0;         ///< N
    std::int64_t warmup_steps = 0;  ///< W <= N
    std::int64_t decay_steps = 0;   ///< D, WSD alone; W + D <= N
};

/// `step` from 1 on; past N what it is at N. Throws InternalError for steps before 1.
[[nodiscard]] double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace fenwick
