#include "worker/training/flat_places.h"

#include <algorithm>
#include <functional>

#include "core/errors.h"

namespace fenwick {

FlatPlaces::FlatPlaces(std::span<const Parameter> parameters) {
    for (const Parameter& parameter : parameters) {
        ranges_.push_back({parameter.values, parameter.size, total_});
        total_ += parameter.size;
    }
    // std::less orders pointers into different arrays, where < need not.
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return std::less<const float*>()(a.first, b.first); });
}

std::optional<std::int64_t> FlatPlaces::find(const float* value) const {
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), value,
        [](const float* place, const Range& range) { return std::less<const float*>()(place, range.first); });
    if (after == ranges_.begin()) return std::nullopt;
    const Range& range = *(after - 1);
    if (!std::less<const float*>()(value, range.first + range.size)) return std::nullopt;
    return range.offset + (value - range.first);
}

std::int64_t FlatPlaces::of(const float* value) const {
    const std::optional<std::int64_t> place = find(value);
    if (!place) throw InternalError("gradients: a pointer that belongs to none of the model's parameters");
    return *place;
}

}  // namespace fenwick
