// One rank's slice of the flat vector (parallel/collectives.h) in terms of the parameters that it cuts through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/collectives.h"
#include "worker/training/parameters.h"

namespace fenwick {

/// Calls part(parameter, its first element in the slice, the slice's first element of it, count) for every parameter
/// that the slice touches.
template <class Part>
void for_parts(std::span<const Parameter> parameters, const Slice& slice, const Part& part) {
    std::int64_t offset = 0;
    for (const Parameter& parameter : parameters) {
        const std::int64_t first = std::max(offset, slice.first);
        const std::int64_t last = std::min(offset + parameter.size, slice.first + slice.size);
        if (first < last) part(parameter, first - offset, first - slice.first, last - first);
        offset += parameter.size;
    }
}

/// Neighbours in a slice that are all decayed or all not.
struct SliceRun {
    std::int64_t first = 0;  ///< in the slice
    std::int64_t size = 0;
    bool decayed = false;
};

[[nodiscard]] inline std::vector<SliceRun> slice_runs(std::span<const Parameter> parameters, const Slice& slice) {
    std::vector<SliceRun> runs;
    for_parts(parameters, slice, [&](const Parameter& parameter, std::int64_t, std::int64_t place, std::int64_t count) {
        if (!runs.empty() && runs.back().decayed == parameter.decayed) {
            runs.back().size += count;
        } else {
            runs.push_back({place, count, parameter.decayed});
        }
    });
    return runs;
}

}  // namespace fenwick
