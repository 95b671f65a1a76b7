// A row's logits, met panel by panel of the vocabulary: their maximum, the sum of their exponentials, the target's own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/vector_math.h"

namespace fenwick {

/// What has been seen of one row's logits.
struct RunningSum {
    float maximum = -std::numeric_limits<float>::infinity();
    double sum = 0;  // of exp(logit - maximum)
    float target = std::numeric_limits<float>::quiet_NaN();

    [[nodiscard]] double log_sum() const { return static_cast<double>(maximum) + std::log(sum); }
};

inline float row_maximum(const float* logits, std::int64_t n) {
    Lanes lanes;
    lanes.fill(-std::numeric_limits<float>::infinity());
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
    }
    for (int l = 0; i + l < n; ++l) lanes[l] = logits[i + l] > lanes[l] ? logits[i + l] : lanes[l];
    return *std::max_element(lanes.begin(), lanes.end());
}

/// exp(logit - maximum), and NaN for an infinite logit: exp alone would hide -inf behind a 0.
[[gnu::always_inline]] inline float shifted_exp(float logit, float maximum) {
    return __builtin_fmaf(logit, 0.0F, vexp(logit - maximum));
}

inline float sum_shifted_exp(const float* logits, std::int64_t n, float maximum) {
    Lanes lanes{};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) lanes[l] += shifted_exp(logits[i + l], maximum);
    }
    for (int l = 0; i + l < n; ++l) lanes[l] += shifted_exp(logits[i + l], maximum);
    return sum_lanes(lanes);
}

inline void add_panel(const float* logits, std::int64_t n, RunningSum& running) {
    const float maximum = std::max(running.maximum, row_maximum(logits, n));
    // The first panel rescales nothing; a maximum of -inf gives NaN in the sum below.
    const float rescale = running.maximum == maximum ? 1.0F : vexp(running.maximum - maximum);
    running.sum = running.sum * static_cast<double>(rescale) + static_cast<double>(sum_shifted_exp(logits, n, maximum));
    running.maximum = maximum;
}

}  // namespace fenwick
