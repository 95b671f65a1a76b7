// Gradients of the norms on the GPU (kernels/backward/norm.h has the formulas). Conventions: backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

struct RmsNormBackward {
    const float* x = nullptr;       ///< [rows, channels] fp32, contiguous (the residual stream)
    const float* weight = nullptr;  ///< [channels]
    float eps = 0.0F;
    Operand dy_operand = Operand::kFp32;
    const void* dy = nullptr;   ///< [rows, channels] of dy_operand, contiguous
    float* dx = nullptr;        ///< [rows, channels] fp32, contiguous; may be `dy` (fp32)
    bool accumulate = false;    ///< add to dx: the residual stream's own gradient
    float* d_weight = nullptr;  ///< [channels], added to
    std::int64_t rows = 0;
    std::int64_t channels = 0;
};

[[nodiscard]] std::size_t rms_norm_backward_workspace_bytes(std::int64_t rows, std::int64_t channels);

void rms_norm_backward(const RmsNormBackward& call, void* workspace, cudaStream_t stream);

/// Of l2_norm: heads of head_dim neighbouring channels.
struct L2NormBackward {
    const void* x = nullptr;  ///< [rows, heads * head_dim] of the operand type, before the norm
    const float* dy = nullptr;
    float* dx = nullptr;  ///< fp32, overwritten; may be `dy`
    std::int64_t x_stride = 0;
    std::int64_t dy_stride = 0;  ///< of dy and dx
    std::int64_t rows = 0;
    std::int64_t heads = 0;
    std::int64_t head_dim = 0;
    float eps = 0.0F;
    float scale = 1.0F;
};

[[nodiscard]] std::size_t l2_norm_backward_workspace_bytes(std::int64_t rows, std::int64_t heads);

void l2_norm_backward(Operand operand, const L2NormBackward& call, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
