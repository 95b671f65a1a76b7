// Element-wise activations over rows on the GPU.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// gate = silu(gate) * up, in place: both [rows, columns] of the operand type, `stride` elements from row to row.
void swiglu(Operand operand, void* gate, const void* up, std::int64_t stride, std::int64_t rows, std::int64_t columns,
            cudaStream_t stream);

}  // namespace fenwick::cuda
