// Normalisations over rows [rows, channels] (strided views, fp32), threads over rows. Sums of squares run in a fixed
// order (16 lanes, then a fixed tree), so a row's value depends on the row alone.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// y = x / sqrt(mean(x^2) + eps) * weight over all channels; weight [channels]. `y` may be `x`.
/// Throws InternalError when the shapes disagree; so do all functions of this file.
void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> y, int threads);

/// RMSNorm of each group of consecutive channels, on its own mean.
struct GroupNorm {
    std::int64_t group_size = 0;     ///< divides the channels (per head: head_dim)
    const float* weight = nullptr;   ///< [weight_period]
    std::int64_t weight_period = 0;  ///< channels: a weight per channel; group_size: one shared by all groups
    float eps = 0;                   ///< added to the mean inside the root
};

/// y = RMSNorm(x) * weight per group. `y` may be `x`.
void group_rms_norm(MatrixView<const float> x, const GroupNorm& norm, MatrixView<float> y, int threads);

/// The same with a gate z [rows, channels] (Mamba-2's RMSNormGated, Gated DeltaNet's FusedRMSNormGated):
///   norm_before_gate:  y = RMSNorm(x) * weight * silu(z)
///   otherwise:         y = RMSNorm(x * silu(z)) * weight
/// `y` may be `x`, not `gate`.
void gated_rms_norm(MatrixView<const float> x, MatrixView<const float> gate, const GroupNorm& norm,
                    bool norm_before_gate, MatrixView<float> y, int threads);

/// y = scale * x / sqrt(sum(x^2) + eps) per head of head_dim consecutive channels. `y` may be `x`.
void l2_norm(MatrixView<const float> x, std::int64_t head_dim, float eps, float scale, MatrixView<float> y,
             int threads);

/// x += y, the residual stream.
void add_rows(MatrixView<float> x, MatrixView<const float> y, int threads);

}  // namespace fenwick
