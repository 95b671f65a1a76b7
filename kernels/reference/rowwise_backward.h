// Gradients of the row-wise operations in double (kernels/backward/*.h but the mixers), written as plainly as the
// formulas: dy is the gradient of the result, gradients of parameters are sums over rows from zero.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace fenwick::reference {

using Matrix = MatrixView<const double>;

struct MatmulGradients {
    std::vector<double> x, weight, bias;
};
[[nodiscard]] MatmulGradients matmul_backward(Matrix x, Matrix weight, Matrix dy);

struct NormGradients {
    std::vector<double> x, gate, weight;  ///< weight: as long as the weights given
};
[[nodiscard]] NormGradients group_rms_norm_backward(Matrix x, const std::vector<double>& weight,
                                                    std::int64_t group_size, double eps, Matrix dy);
[[nodiscard]] NormGradients gated_rms_norm_backward(Matrix x, Matrix gate, const std::vector<double>& weight,
                                                    std::int64_t group_size, double eps, bool norm_before_gate,
                                                    Matrix dy);
[[nodiscard]] std::vector<double> l2_norm_backward(Matrix x, std::int64_t head_dim, double eps, double scale,
                                                   Matrix dy);

struct ConvolutionGradients {
    std::vector<double> x, halo, weight, bias;
};
/// `bias` may be empty, `halo` null (its gradient is formed all the same).
[[nodiscard]] ConvolutionGradients causal_convolution_backward(Matrix weight, const std::vector<double>& bias,
                                                               Matrix halo, Matrix x, bool apply_silu, Matrix dy);

struct SwigluGradients {
    std::vector<double> gate, up;
};
[[nodiscard]] SwigluGradients swiglu_backward(Matrix gate, Matrix up, Matrix dy);

/// Of one token and head. `raw` is also the term of dt_bias.
struct GateGradients {
    double raw = 0;
    double a_log = 0;
};
/// Of (dt, log decay) of Mamba-2: time_step and log_decay of rowwise.h.
[[nodiscard]] GateGradients mamba2_gate_backward(double raw, double dt_bias, double a_log, double dt_min, double dt_max,
                                                 double d_dt, double d_log_decay);
/// Of the log decay of Gated DeltaNet.
[[nodiscard]] GateGradients delta_gate_backward(double a, double dt_bias, double a_log, double d_log_decay);

struct CrossEntropyGradients {
    std::vector<double> nll, h, lm_head;
};
/// Of scale * sum of (nll + z_loss logsumexp^2) over rows whose target is not negative; nll 0 in the others.
[[nodiscard]] CrossEntropyGradients cross_entropy_backward(Matrix h, Matrix lm_head, const std::int32_t* targets,
                                                           double scale, double z_loss);

/// [vocab, hidden].
[[nodiscard]] std::vector<double> embed_rows_backward(std::int64_t vocab, const std::int32_t* ids, Matrix dy);

}  // namespace fenwick::reference
