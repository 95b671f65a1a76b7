// Everything that the gradients' kernels of one call need.
#pragma once

#include "kernels/cuda/backward/mixer.h"
#include "kernels/cuda/backward/tree.h"

namespace fenwick::cuda::backward {

struct Call {
    MixerShape shape;
    Operand operand = Operand::kBf16;
    MixerInputs inputs;
    std::int64_t first_block = 0;
    const void* d_out = nullptr;  ///< [rows, heads * d_v]; summaries' step: null
    std::int64_t d_out_stride = 0;
    MixerGradients gradients;
    cudaStream_t stream = nullptr;
};

}  // namespace fenwick::cuda::backward
