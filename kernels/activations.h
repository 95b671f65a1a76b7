// Element-wise activations over rows (strided views, fp32), threads over rows.
#pragma once

#include "core/tensor.h"

namespace fenwick {

/// out = silu(gate) * up, all [rows, cols]. `out` may be `gate` or `up`.
/// Throws InternalError when the shapes disagree.
void swiglu(MatrixView<const float> gate, MatrixView<const float> up, MatrixView<float> out, int threads);

/// x = silu(x).
void silu_in_place(MatrixView<float> x, int threads);

}  // namespace fenwick
