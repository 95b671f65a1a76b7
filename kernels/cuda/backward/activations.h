// Gradients of the activations on the GPU (kernels/backward/activations.h).
//
// All functions of this folder: device pointers, nothing allocated or waited for, sums in one order: the same bits in
// every run. Rows of values and what goes into products are of the operand type, sums and the gradients that mixers
// hand over fp32; parameters and their gradients, which are added to, fp32. Sums over rows are kept as the CPU's
// (kernels/backward/matmul.h says the bounds). Workspaces are 256-byte aligned.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// Of y = silu(gate) * up: all [rows, columns] of the operand type.
struct SwigluBackward {
    const void* gate = nullptr;
    const void* up = nullptr;
    const void* dy = nullptr;
    void* d_gate = nullptr;     ///< may be `gate`
    void* d_up = nullptr;       ///< may be `up`
    void* y = nullptr;          ///< formed again; null: not wanted. May be `dy`
    std::int64_t stride = 0;    ///< of gate and up
    std::int64_t d_stride = 0;  ///< of d_gate and d_up
    std::int64_t y_stride = 0;  ///< of dy and y
    std::int64_t rows = 0;
    std::int64_t columns = 0;
};

void swiglu_backward(Operand operand, const SwigluBackward& call, cudaStream_t stream);

}  // namespace fenwick::cuda
