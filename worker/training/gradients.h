// The gradients of all parameters: a flat vector laid out as the parameters are (parameters.h).
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"
#include "worker/training/flat_places.h"

namespace fenwick {

class Gradients {
public:
    /// All zero. The model that the parameters belong to outlives this object.
    explicit Gradients(std::span<const Parameter> parameters);

    /// Where the gradient of the value at `parameter` lies: of any value of any parameter. Parameters that follow each
    /// other in memory and in order (a stacked in_proj's) have gradients that do so too. Throws InternalError for a
    /// pointer outside all parameters.
    [[nodiscard]] float* of(const float* parameter) { return values_.data() + places_.of(parameter); }
    /// The same for a matrix of parameters whose rows follow each other.
    [[nodiscard]] MatrixView<float> of(MatrixView<const float> parameter) {
        return {of(parameter.data), parameter.rows, parameter.cols, parameter.stride};
    }

    [[nodiscard]] std::span<float> all() { return {values_.data(), static_cast<std::size_t>(values_.size())}; }
    void zero();

private:
    FlatPlaces places_;
    Buffer<float> values_;
};

}  // namespace fenwick
