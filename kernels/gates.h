// Gates: what decides decay, step and read-out of each token and head. Row-wise over strided fp32 views, threads over
// rows. Log decays are <= 0; -inf is legal as A_log and gives exactly 0. Shapes that disagree throw InternalError.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// Mamba-2's parameters, each [heads].
struct Mamba2Gates {
    const float* dt_bias = nullptr;
    const float* a_log = nullptr;
    float dt_min = 0;  ///< time_step_limit; the upper one may be inf
    float dt_max = 0;
};

/// dt = clamp(softplus(raw + dt_bias), dt_min, dt_max); log_decay = -exp(A_log) * dt. raw, dt, log_decay [rows, heads];
/// `dt` may be `raw`.
void mamba2_gates(const Mamba2Gates& gates, MatrixView<const float> raw, MatrixView<float> dt,
                  MatrixView<float> log_decay, int threads);

/// Gated DeltaNet's parameters, each [heads].
struct DeltaGates {
    const float* dt_bias = nullptr;
    const float* a_log = nullptr;
    bool allow_negative_eigenvalues = false;  ///< beta in (0, 2)
};

/// log_decay = -exp(A_log) * softplus(a + dt_bias); beta = sigmoid(b), doubled for negative eigenvalues.
/// a, b, log_decay, beta [rows, heads]; `log_decay` may be `a`, `beta` may be `b`.
void delta_gates(const DeltaGates& gates, MatrixView<const float> a, MatrixView<const float> b,
                 MatrixView<float> log_decay, MatrixView<float> beta, int threads);

/// lambda = softplus(scale * dl), with dl, lambda [rows, heads * levels] and scale [heads * levels] (attn.L, L).
/// `lambda` may be `dl`.
void level_scales(const float* scale, MatrixView<const float> dl, MatrixView<float> lambda, int threads);

/// out[t, h, :] = x[t, h, :] * factor[t, h]: Mamba-2's v = x dt. x, out [rows, heads * head_dim], factor [rows, heads].
/// `out` may be `x`.
void scale_heads(MatrixView<const float> x, MatrixView<const float> factor, MatrixView<float> out, int threads);

/// y += D * x, with y, x [rows, heads * head_dim]. d_count = heads (a value per head) or heads * head_dim (per
/// channel).
void add_skip(const float* d, std::int64_t d_count, MatrixView<const float> x, MatrixView<float> y, int threads);

}  // namespace fenwick
