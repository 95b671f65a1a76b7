// What happens to the mixer's output before the output projection, in one kernel: skip, gate and norm of each group of
// neighbouring channels (kernels/norm.h's gated_rms_norm, kernels/gates.h's add_skip).
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// Device pointers; rows of the operand type, parameters fp32. With v = o + D x where there is a skip:
///   no weight:         y = silu(z) v
///   no gate:           y = RMSNorm(v) weight
///   norm_before_gate:  y = RMSNorm(v) weight silu(z)
///   otherwise:         y = RMSNorm(v silu(z)) weight
struct ReadOut {
    void* o = nullptr;              ///< [rows, channels], contiguous; becomes y
    const void* x = nullptr;        ///< [rows, channels], the skip's input; null: no skip
    const float* skip = nullptr;    ///< D [channels / skip_channels]
    const void* gate = nullptr;     ///< z [rows, channels]; null: no gate
    const float* weight = nullptr;  ///< [weight_period]; null: no norm
    std::int64_t x_stride = 0;
    std::int64_t gate_stride = 0;
    std::int64_t rows = 0;
    std::int64_t channels = 0;
    std::int64_t skip_channels = 1;  ///< neighbouring channels that share a value of D
    std::int64_t group_size = 0;     ///< divides channels
    std::int64_t weight_period = 0;  ///< channels, or group_size: one weight for all groups
    float eps = 0.0F;
    bool norm_before_gate = false;
};

/// Throws InternalError for groups that do not fit the channels.
void read_out(Operand operand, const ReadOut& call, cudaStream_t stream);

}  // namespace fenwick::cuda
