// Gradient of the causal short convolution on the GPU (kernels/backward/convolution.h). Conventions:
// backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/convolution.h"
#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

struct ConvolutionBackward {
    Convolution convolution;     ///< weight and bias on the device
    const void* halo = nullptr;  ///< as in the forward call; null: zeros
    const void* x = nullptr;     ///< [rows, channels] of the operand type
    /// [rows], of each row in its document: it takes nothing from rows before position 0. Null: all rows are of one
    /// document.
    const std::int32_t* positions = nullptr;
    const float* dy = nullptr;  ///< [rows, channels] fp32
    void* dx = nullptr;         ///< [rows, channels] of the operand type, overwritten; apart from dy and x
    float* d_halo = nullptr;  ///< [width - 1, channels] fp32, overwritten: what the rows before these get; may be null
    float* d_weight = nullptr;  ///< [channels, width], added to
    float* d_bias = nullptr;    ///< [channels], added to; null where there is no bias
    std::int64_t x_stride = 0;
    std::int64_t dy_stride = 0;
    std::int64_t dx_stride = 0;
    std::int64_t rows = 0;
};

[[nodiscard]] std::size_t causal_convolution_backward_workspace_bytes(std::int64_t channels, std::int64_t width);

/// Throws InternalError for a width outside [1, kMaxConvolutionWidth].
void causal_convolution_backward(Operand operand, const ConvolutionBackward& call, void* workspace,
                                 cudaStream_t stream);

}  // namespace fenwick::cuda
