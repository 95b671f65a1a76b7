// Gradients of the causal short convolution (kernels/convolution.h). Conventions: backward/matmul.h.
#pragma once

#include "core/tensor.h"
#include "kernels/convolution.h"

namespace fenwick {

struct ConvolutionGradients {
    MatrixView<float> x;      ///< [rows, channels], overwritten; may be `dy`
    MatrixView<float> halo;   ///< [width - 1, channels], overwritten: what the rows before these get; data may be null
    float* weight = nullptr;  ///< [channels, width], added to
    float* bias = nullptr;    ///< [channels], added to; null where the convolution has none
};

/// `halo` and `x` as in causal_convolution (the values before SiLU are formed again); dy [rows, channels]. With fewer
/// rows than width - 1 a halo row still gets what every row takes of it.
void causal_convolution_backward(const Convolution& convolution, MatrixView<const float> halo,
                                 MatrixView<const float> x, MatrixView<const float> dy,
                                 const ConvolutionGradients& gradients, int threads);

}  // namespace fenwick
