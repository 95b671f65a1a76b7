// Where a model's values lie in the flat vector of all parameters (parameters.h), by their place in the model's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "worker/training/parameters.h"

namespace fenwick {

class FlatPlaces {
public:
    /// The model that the parameters belong to outlives this object.
    explicit FlatPlaces(std::span<const Parameter> parameters);

    /// Of any value of any parameter; none for a pointer outside all of them. Parameters that follow each other in
    /// memory and in order (a stacked in_proj's) follow each other in the flat vector too.
    [[nodiscard]] std::optional<std::int64_t> find(const float* value) const;
    /// The same; throws InternalError for a pointer outside all parameters.
    [[nodiscard]] std::int64_t of(const float* value) const;

    [[nodiscard]] std::int64_t total() const { return total_; }  ///< length of the flat vector

private:
    struct Range {
        const float* first = nullptr;
        std::int64_t size = 0;
        std::int64_t offset = 0;
    };
    std::vector<Range> ranges_;  // ascending addresses
    std::int64_t total_ = 0;
};

}  // namespace fenwick
