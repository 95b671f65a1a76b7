// Who owns what of a flat vector of parameters: equal slices in rank order, the last ones short or empty.
#pragma once

#include <algorithm>
#include <cstdint>

namespace fenwick {

struct FlatSlice {
    std::int64_t first = 0;
    std::int64_t size = 0;
};

/// Slice of rank `rank` of `world`: elements [first, first + size) of `total`.
[[nodiscard]] inline FlatSlice slice_of_rank(std::int64_t total, int world, int rank) {
    const std::int64_t each = (total + world - 1) / world;
    const std::int64_t first = std::min(total, each * rank);
    return {first, std::min(each, total - first)};
}

}  // namespace fenwick
