// Gradients of the normalisations (kernels/norm.h). Conventions: backward/matmul.h.
//
// With r = 1 / sqrt(mean(x^2) + eps), n = x r and y = n w:  dn = dy w,  dx = r (dn - n mean(dn n)),  dw = sum over rows
// of dy n.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/norm.h"

namespace fenwick {

/// Floats of workspace for the functions below that have parameters: `channels` as in their views.
[[nodiscard]] std::int64_t norm_backward_workspace_floats(std::int64_t channels);

/// dx = the gradient of rms_norm's x (+ dx when `accumulate`); d_weight [channels] added to. `dx` may be `dy`.
void rms_norm_backward(MatrixView<const float> x, const float* weight, float eps, MatrixView<const float> dy,
                       MatrixView<float> dx, bool accumulate, float* d_weight, int threads, float* workspace);

/// The same for group_rms_norm; d_weight [norm.weight_period]. `dx` may be `dy`.
void group_rms_norm_backward(MatrixView<const float> x, const GroupNorm& norm, MatrixView<const float> dy,
                             MatrixView<float> dx, float* d_weight, int threads, float* workspace);

/// The same for gated_rms_norm. `dx` may be `dy`; `d_gate` is memory apart from all else.
void gated_rms_norm_backward(MatrixView<const float> x, MatrixView<const float> gate, const GroupNorm& norm,
                             bool norm_before_gate, MatrixView<const float> dy, MatrixView<float> dx,
                             MatrixView<float> d_gate, float* d_weight, int threads, float* workspace);

/// dx of l2_norm: with s = 1 / sqrt(sum(x^2) + eps) and n = x s:  dx = scale s (dy - n (dy . n)). `dx` may be `dy`.
void l2_norm_backward(MatrixView<const float> x, std::int64_t head_dim, float eps, float scale,
                      MatrixView<const float> dy, MatrixView<float> dx, int threads);

}  // namespace fenwick
