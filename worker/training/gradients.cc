#include "worker/training/gradients.h"

#include <algorithm>

namespace fenwick {

Gradients::Gradients(std::span<const Parameter> parameters) : places_(parameters), values_(places_.total()) {
    zero();
}

void Gradients::zero() {
    std::fill(values_.begin(), values_.end(), 0.0F);
}

}  // namespace fenwick
