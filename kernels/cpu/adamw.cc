#include "kernels/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "core/errors.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

constexpr std::int64_t kValuesOfTask = 16384;
constexpr std::int64_t kParts = 256;  // of a sum, each of whole tasks' values
constexpr int kDoubleLanes = 8;

double part_squared_norm(const float* values, std::int64_t size) {
    std::array<double, kDoubleLanes> lanes{};
    std::int64_t i = 0;
    for (; i + kDoubleLanes <= size; i += kDoubleLanes) {
        for (int l = 0; l < kDoubleLanes; ++l) {
            const auto value = static_cast<double>(values[i + l]);
            lanes[l] += value * value;  // the product is exact
        }
    }
    for (int l = 0; i + l < size; ++l) {
        const auto value = static_cast<double>(values[i + l]);
        lanes[l] += value * value;
    }
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

}  // namespace

AdamWFactors adamw_factors(const AdamW& hyper, std::int64_t step, bool decayed) {
    if (step < 1) throw InternalError("adamw_step: steps count from 1, not " + std::to_string(step));
    const auto count = static_cast<double>(step);
    return {static_cast<float>(hyper.beta1),
            static_cast<float>(1.0 - hyper.beta1),
            static_cast<float>(hyper.beta2),
            static_cast<float>(1.0 - hyper.beta2),
            static_cast<float>(hyper.learning_rate / (1.0 - std::pow(hyper.beta1, count))),
            static_cast<float>(1.0 / (1.0 - std::pow(hyper.beta2, count))),
            static_cast<float>(hyper.epsilon),
            static_cast<float>(decayed ? hyper.learning_rate * hyper.weight_decay : 0.0)};
}

void adamw_step(const AdamW& hyper, std::int64_t step, float gradient_scale, const AdamWRun& run, int threads) {
    const AdamWFactors f = adamw_factors(hyper, step, run.decayed);
    parallel_tasks((run.size + kValuesOfTask - 1) / kValuesOfTask, threads, [&](std::int64_t task, int) {
        const std::int64_t end = std::min(run.size, (task + 1) * kValuesOfTask);
        // The four vectors are apart.
#pragma GCC ivdep
        for (std::int64_t i = task * kValuesOfTask; i < end; ++i) {
            const float g = gradient_scale * run.gradient[i];
            const float m = __builtin_fmaf(f.beta1, run.first_moment[i], f.rest1 * g);
            const float v = __builtin_fmaf(f.beta2, run.second_moment[i], f.rest2 * g * g);
            run.first_moment[i] = m;
            run.second_moment[i] = v;
            const float move = f.step_size * m / (__builtin_sqrtf(v * f.correction2) + f.epsilon);
            run.values[i] -= __builtin_fmaf(f.decay, run.values[i], move);
        }
    });
}

double squared_norm(const float* values, std::int64_t size, int threads) {
    const std::int64_t part = ((size + kParts - 1) / kParts + kValuesOfTask - 1) / kValuesOfTask * kValuesOfTask;
    std::array<double, kParts> sums{};
    const std::int64_t parts = size == 0 ? 0 : (size + part - 1) / part;
    parallel_tasks(parts, threads, [&](std::int64_t p, int) {
        sums[p] = part_squared_norm(values + p * part, std::min(part, size - p * part));
    });
    double sum = 0;
    for (const double value : sums) sum += value;
    return sum;
}

}  // namespace fenwick
