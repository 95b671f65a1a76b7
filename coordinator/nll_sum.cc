#include "coordinator/nll_sum.h"

#include <cmath>

#include "core/fenwick.h"

namespace fenwick {

void NllSum::add(std::span<const float> losses) {
    for (const float loss : losses) {
        open_ += static_cast<double>(loss);
        if (++count_ % kBlockTokens == 0) {
            closed_ += open_;
            open_ = 0;
        }
    }
}

std::int64_t first_non_finite(std::span<const float> losses) {
    for (std::size_t i = 0; i < losses.size(); ++i) {
        if (!std::isfinite(losses[i])) return static_cast<std::int64_t>(i);
    }
    return -1;
}

}  // namespace fenwick
