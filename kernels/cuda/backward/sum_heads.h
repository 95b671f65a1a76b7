// Heads that share a key head: the gradients of q and k are sums over them, in their order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mixer_shape.h"

namespace fenwick::cuda::backward {

/// Shares [run of tokens][parts][tokens of a run][d_k]: parts follow each other by key head.
struct HeadShares {
    MixerShape shape;
    std::int64_t run_tokens = 0;  ///< tokens of a run
    std::int64_t rows = 0;        ///< tokens in all; the last run may have fewer
    std::int64_t parts = 0;       ///< a multiple of the key heads; 0: one for each head
};

/// to [rows, key_heads * d_k] += the shares of each key head's parts, first to last.
void launch_sum_heads(const HeadShares& shares, const float* from, float* to, std::int64_t stride, cudaStream_t stream);

}  // namespace fenwick::cuda::backward
