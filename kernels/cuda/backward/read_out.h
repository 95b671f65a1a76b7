// Gradient of what happens to the mixer's output before the output projection (kernels/cuda/read_out.h).
// Conventions: backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/read_out.h"

namespace fenwick::cuda {

struct ReadOutBackward {
    ReadOut forward;           ///< as it was called; `o` is the mixer's output, before the read-out, and only read
    const void* dy = nullptr;  ///< [rows, channels] of the operand type, contiguous
    void* d_o = nullptr;       ///< [rows, channels] of the operand type, contiguous; may be `dy`
    void* y = nullptr;       ///< [rows, channels] of the operand type, contiguous, formed again; null: not wanted. May
                             ///< be `o`
    float* d_x = nullptr;    ///< [rows, channels] fp32: the skip's share, overwritten; with `forward.x`
    void* d_gate = nullptr;  ///< [rows, channels] of the operand type; with `forward.gate`
    float* d_weight = nullptr;  ///< [weight_period], added to; with `forward.weight`
    float* d_skip = nullptr;    ///< [channels / skip_channels], added to; with `forward.x`
    std::int64_t d_x_stride = 0;
    std::int64_t d_gate_stride = 0;
};

[[nodiscard]] std::size_t read_out_backward_workspace_bytes(const ReadOut& forward);

/// Throws InternalError for groups that do not fit the channels.
void read_out_backward(Operand operand, const ReadOutBackward& call, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
