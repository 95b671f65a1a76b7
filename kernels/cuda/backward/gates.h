// Gradients of the gates on the GPU (kernels/backward/gates.h). Conventions: backward/activations.h. Values are fp32,
// as the forward functions take them; gradients of what the projection gave are of the operand type, for the products
// that follow.
#pragma once

#include <cstddef>

#include "kernels/cuda/mixer.h"
#include "kernels/gates.h"

namespace fenwick::cuda {

/// Rows of one gate: [rows, heads], rows `stride` elements apart.
struct GateRows {
    const float* data = nullptr;
    std::int64_t stride = 0;
};
struct GateTarget {
    void* data = nullptr;  ///< of the operand type
    std::int64_t stride = 0;
};

/// For `heads` heads, or that many columns.
[[nodiscard]] std::size_t gates_backward_workspace_bytes(std::int64_t heads);

/// Of mamba2_gates: `raw` as it was before. d_dt_bias, d_a_log [heads] added to.
void mamba2_gates_backward(Operand operand, const Mamba2Gates& gates, GateRows raw, GateRows d_dt, GateRows d_log_decay,
                           GateTarget d_raw, float* d_dt_bias, float* d_a_log, std::int64_t rows, std::int64_t heads,
                           void* workspace, cudaStream_t stream);

/// Of delta_gates: `a` and `b` as they were before.
void delta_gates_backward(Operand operand, const DeltaGates& gates, GateRows a, GateRows b, GateRows d_log_decay,
                          GateRows d_beta, GateTarget d_a, GateTarget d_b, float* d_dt_bias, float* d_a_log,
                          std::int64_t rows, std::int64_t heads, void* workspace, cudaStream_t stream);

/// Of level_scales: `dl` as it was before; d_scale [columns] added to.
void level_scales_backward(Operand operand, const float* scale, GateRows dl, GateRows d_lambda, GateTarget d_dl,
                           float* d_scale, std::int64_t rows, std::int64_t columns, void* workspace,
                           cudaStream_t stream);

/// Of v = x factor for each head (Mamba-2's v = x dt): x [rows, heads * head_dim] of the operand type, d_v and d_x
/// fp32.
struct ScaleHeadsBackward {
    const void* x = nullptr;
    const float* factor = nullptr;  ///< [rows, heads]
    const float* d_v = nullptr;
    float* d_x = nullptr;       ///< may be `d_v` when not accumulated
    float* d_factor = nullptr;  ///< [rows, heads], overwritten
    bool accumulate = false;    ///< add to d_x
    std::int64_t x_stride = 0;
    std::int64_t factor_stride = 0;
    std::int64_t d_v_stride = 0;
    std::int64_t d_x_stride = 0;
    std::int64_t d_factor_stride = 0;
    std::int64_t rows = 0;
    std::int64_t heads = 0;
    std::int64_t head_dim = 0;
};

void scale_heads_backward(Operand operand, const ScaleHeadsBackward& call, cudaStream_t stream);

}  // namespace fenwick::cuda
