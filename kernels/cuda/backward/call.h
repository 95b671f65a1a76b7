// Everything that the gradients' kernels of one call need.
#pragma once

#include "core/fenwick.h"
#include "kernels/cuda/backward/mixer.h"
#include "kernels/cuda/backward/tree.h"

namespace fenwick::cuda::backward {

inline constexpr int kChunk = static_cast<int>(kChunkTokens);
inline constexpr int kChunks = static_cast<int>(kChunksPerBlock);  ///< of a block
inline constexpr int kOwnLevels = kChunkBits + 1;                  ///< levels inside a chunk

struct Call {
    MixerShape shape;
    Operand operand = Operand::kBf16;
    MixerInputs inputs;
    std::int64_t first_block = 0;
    const void* d_out = nullptr;  ///< [rows, heads * d_v]
    std::int64_t d_out_stride = 0;
    MixerGradients gradients;
    cudaStream_t stream = nullptr;
    bool after_outputs = false;  ///< the workspace holds what the forward pass left there
};

}  // namespace fenwick::cuda::backward
