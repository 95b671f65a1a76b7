#include "kernels/reference/adamw.h"

#include <cmath>

namespace fenwick::reference {

AdamWState adamw_step(const AdamW& hyper, std::int64_t step, double gradient, bool decayed, const AdamWState& before) {
    AdamWState after;
    after.m = hyper.beta1 * before.m + (1 - hyper.beta1) * gradient;
    after.v = hyper.beta2 * before.v + (1 - hyper.beta2) * gradient * gradient;
    const double m = after.m / (1 - std::pow(hyper.beta1, static_cast<double>(step)));
    const double v = after.v / (1 - std::pow(hyper.beta2, static_cast<double>(step)));
    const double decay = decayed ? hyper.weight_decay * before.value : 0.0;
    after.value = before.value - hyper.learning_rate * (m / (std::sqrt(v) + hyper.epsilon) + decay);
    return after;
}

}  // namespace fenwick::reference
