// The causal short convolution on the GPU (kernels/convolution.h), with SiLU, and with Mamba-2's v = x dt where asked
// for. Products and sums are fp32, in the order of the taps.
#pragma once

#include "kernels/convolution.h"
#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// Device pointers; rows of the operand type, parameters fp32.
struct ConvolutionCall {
    Convolution convolution;     ///< weight [channels, width] and bias [channels] on the device
    const void* halo = nullptr;  ///< [width - 1, channels] before row 0, oldest first; null: zeros
    const void* x = nullptr;     ///< [rows, channels]
    /// [rows], of each row in its document, or null: all rows are of one. Taps that reach back past position 0 read
    /// zeros, so that documents which lie behind each other do not see each other.
    const std::int32_t* positions = nullptr;
    void* y = nullptr;  ///< [rows, channels], contiguous; apart from x
    std::int64_t x_stride = 0;
    std::int64_t rows = 0;
    void* v = nullptr;          ///< [rows, v_channels], contiguous: y of the first channels times dt; null: none
    const float* dt = nullptr;  ///< [rows, v_channels / v_head_dim]
    std::int64_t dt_stride = 0;
    std::int64_t v_channels = 0;
    std::int64_t v_head_dim = 1;
};

/// Throws InternalError for a width outside [1, kMaxConvolutionWidth].
void causal_convolution(Operand operand, const ConvolutionCall& call, cudaStream_t stream);

/// The halo of the rows that follow: next [width - 1, channels] = the last rows of (halo, x). `next` is apart from
/// `halo`.
void next_halo(Operand operand, const ConvolutionCall& call, void* next, cudaStream_t stream);

}  // namespace fenwick::cuda
