#include "worker/training/gradients.h"

#include <algorithm>
#include <functional>

#include "core/errors.h"

namespace fenwick {

Gradients::Gradients(std::span<const Parameter> parameters) {
    std::int64_t offset = 0;
    for (const Parameter& parameter : parameters) {
        ranges_.push_back({parameter.values, parameter.size, offset});
        offset += parameter.size;
    }
    // std::less orders pointers into different arrays, where < need not.
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return std::less<const float*>()(a.first, b.first); });
    values_ = Buffer<float>(offset);
    zero();
}

float* Gradients::of(const float* parameter) {
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), parameter,
        [](const float* value, const Range& range) { return std::less<const float*>()(value, range.first); });
    if (after != ranges_.begin()) {
        const Range& range = *(after - 1);
        if (std::less<const float*>()(parameter, range.first + range.size)) {
            return values_.data() + range.offset + (parameter - range.first);
        }
    }
    throw InternalError("gradients: a pointer that belongs to none of the model's parameters");
}

void Gradients::zero() {
    std::fill(values_.begin(), values_.end(), 0.0F);
}

}  // namespace fenwick
