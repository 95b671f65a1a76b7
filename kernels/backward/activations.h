// Gradients of the activations (kernels/activations.h). Conventions: backward/matmul.h.
#pragma once

#include "core/tensor.h"

namespace fenwick {

/// Of out = silu(gate) * up. `d_gate` may be `gate`, `d_up` may be `up`; `dy` is memory apart from both.
void swiglu_backward(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<const float> dy,
                     MatrixView<float> d_gate, MatrixView<float> d_up, int threads);

}  // namespace fenwick
