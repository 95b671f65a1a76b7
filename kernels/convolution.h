// Causal depthwise short convolution over a rank's rows, with the rows before them as a halo.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

inline constexpr std::int64_t kMaxConvolutionWidth = 8;

/// Weights of one layer's convolution (torch's Conv1d(groups = channels) without its middle dimension of 1).
struct Convolution {
    const float* weight = nullptr;  ///< [channels, width]; tap width - 1 meets the row itself
    const float* bias = nullptr;    ///< [channels], or null
    std::int64_t channels = 0;
    std::int64_t width = 0;  ///< 1 to kMaxConvolutionWidth
    bool silu = false;       ///< apply SiLU to the result
};

/// y[t, c] = act(bias[c] + sum over w of weight[c, w] * x[t - (width - 1) + w, c]).
/// x, y [rows, channels], not overlapping. `halo` [width - 1, channels] holds the rows just before row 0, oldest first;
/// halo.data may be null: zeros, the start of a document. Throws InternalError when the shapes disagree.
void causal_convolution(const Convolution& convolution, MatrixView<const float> halo, MatrixView<const float> x,
                        MatrixView<float> y, int threads);

}  // namespace fenwick
