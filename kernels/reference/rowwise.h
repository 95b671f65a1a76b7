// The row-wise kernels in double: norm.h, convolution.h, activations.h and gates.h, as plainly as they can be written.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace fenwick::reference {

[[nodiscard]] double sigmoid(double x);
[[nodiscard]] double silu(double x);
[[nodiscard]] double softplus(double x);

/// RMSNorm per group of group_size channels; `weight` has one value per channel, or group_size values shared by groups.
[[nodiscard]] std::vector<double> group_rms_norm(MatrixView<const double> x, const std::vector<double>& weight,
                                                 std::int64_t group_size, double eps);

/// norm_before_gate: RMSNorm(x) * weight * silu(gate); otherwise RMSNorm(x * silu(gate)) * weight.
[[nodiscard]] std::vector<double> gated_rms_norm(MatrixView<const double> x, MatrixView<const double> gate,
                                                 const std::vector<double>& weight, std::int64_t group_size, double eps,
                                                 bool norm_before_gate);

/// scale * x / sqrt(sum(x^2) + eps) per head of head_dim channels.
[[nodiscard]] std::vector<double> l2_norm(MatrixView<const double> x, std::int64_t head_dim, double eps, double scale);

/// Causal depthwise convolution: weight [channels, width], bias [channels] or empty, halo [width - 1, channels] or a
/// null view (zeros).
[[nodiscard]] std::vector<double> causal_convolution(MatrixView<const double> weight, const std::vector<double>& bias,
                                                     MatrixView<const double> halo, MatrixView<const double> x,
                                                     bool apply_silu);

/// silu(gate) * up.
[[nodiscard]] std::vector<double> swiglu(MatrixView<const double> gate, MatrixView<const double> up);

/// clamp(softplus(raw + dt_bias), dt_min, dt_max): Mamba-2's dt.
[[nodiscard]] double time_step(double raw, double dt_bias, double dt_min, double dt_max);

/// -exp(a_log) * step: the log decay of Mamba-2 (step = dt) and Gated DeltaNet (step = softplus(a + dt_bias)).
[[nodiscard]] double log_decay(double a_log, double step);

}  // namespace fenwick::reference
