// Sums and maxima over a row in one fixed order that vectorises: kLanes partial results, then a fixed tree.
#pragma once

#include <array>
#include <cstdint>

namespace fenwick {

inline constexpr int kLanes = 16;  ///< two AVX2 registers: hides the latency of one fma
using Lanes = std::array<float, kLanes>;

/// Element i of a row belongs to lane i % kLanes; lanes meet as a balanced tree.
inline float sum_lanes(Lanes lanes) {
#pragma GCC unroll 4
    for (int width = kLanes / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
        for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    return lanes[0];
}

inline float sum_of_squares(const float* x, std::int64_t n) {
    Lanes lanes{};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) lanes[l] = __builtin_fmaf(x[i + l], x[i + l], lanes[l]);
    }
    for (int l = 0; i + l < n; ++l) lanes[l] = __builtin_fmaf(x[i + l], x[i + l], lanes[l]);
    return sum_lanes(lanes);
}

inline float dot_product(const float* x, const float* y, std::int64_t n) {
    Lanes lanes{};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int l = 0; l < kLanes; ++l) lanes[l] = __builtin_fmaf(x[i + l], y[i + l], lanes[l]);
    }
    for (int l = 0; i + l < n; ++l) lanes[l] = __builtin_fmaf(x[i + l], y[i + l], lanes[l]);
    return sum_lanes(lanes);
}

}  // namespace fenwick
