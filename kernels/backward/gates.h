// Gradients of the gates (kernels/gates.h). Conventions: backward/matmul.h; gradients of rows are overwritten unless
// said otherwise.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/gates.h"

namespace fenwick {

/// Floats of workspace for every function of this file: `columns` of the parameter's gradient.
[[nodiscard]] std::int64_t gates_backward_workspace_floats(std::int64_t columns);

/// Of mamba2_gates: raw, d_dt, d_log_decay, d_raw [rows, heads]; d_dt_bias, d_a_log [heads]. A clamped dt passes
/// nothing on. `d_raw` may be `d_dt` or `d_log_decay`. Workspace: gates_backward_workspace_floats(2 * heads).
void mamba2_gates_backward(const Mamba2Gates& gates, MatrixView<const float> raw, MatrixView<const float> d_dt,
                           MatrixView<const float> d_log_decay, MatrixView<float> d_raw, float* d_dt_bias,
                           float* d_a_log, int threads, float* workspace);

/// Of delta_gates: all views [rows, heads]; d_dt_bias, d_a_log [heads]. `d_a` may be `d_log_decay`, `d_b` may be
/// `d_beta`. Workspace: gates_backward_workspace_floats(2 * heads).
void delta_gates_backward(const DeltaGates& gates, MatrixView<const float> a, MatrixView<const float> b,
                          MatrixView<const float> d_log_decay, MatrixView<const float> d_beta, MatrixView<float> d_a,
                          MatrixView<float> d_b, float* d_dt_bias, float* d_a_log, int threads, float* workspace);

/// Of level_scales: dl, d_lambda, d_dl [rows, columns] (columns = heads * levels), scale, d_scale [columns]. `d_dl` may
/// be `d_lambda`. Workspace: gates_backward_workspace_floats(columns).
void level_scales_backward(const float* scale, MatrixView<const float> dl, MatrixView<const float> d_lambda,
                           MatrixView<float> d_dl, float* d_scale, int threads, float* workspace);

/// Of scale_heads: d_x added to when `accumulate`; d_factor [rows, heads] overwritten. `d_x` may be `dy`.
void scale_heads_backward(MatrixView<const float> x, MatrixView<const float> factor, MatrixView<const float> dy,
                          MatrixView<float> d_x, bool accumulate, MatrixView<float> d_factor, int threads);

/// Of add_skip: d_x = D * dy (overwritten), d_d [d_count] added to. Workspace:
/// gates_backward_workspace_floats(d_count).
void add_skip_backward(const float* d, std::int64_t d_count, MatrixView<const float> x, MatrixView<const float> dy,
                       MatrixView<float> d_x, float* d_d, int threads, float* workspace);

}  // namespace fenwick
