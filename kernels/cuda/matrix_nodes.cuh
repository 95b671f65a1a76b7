// Where a node of the tree lies, on the device.
#pragma once

#include "kernels/cuda/matrix_plan.h"

namespace fenwick::cuda::matrix {

/// Node (bit, index): carried in, a block of the shard, or formed in the shard.
__device__ __forceinline__ const float* find_node(const Nodes& nodes, int bit, std::int64_t index) {
    if ((index + 1) << bit <= nodes.first_block) return nodes.entering[bit];
    if (bit == 0) return nodes.blocks + (index - nodes.first_block) * nodes.layer;
    return nodes.formed[bit] + (index - (nodes.first_block >> bit)) * nodes.layer;
}

/// The largest set bit of n > 0.
__device__ __forceinline__ int top_bit(std::int64_t n) {
    return 63 - __clzll(static_cast<long long>(n));
}

}  // namespace fenwick::cuda::matrix
