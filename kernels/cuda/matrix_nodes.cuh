// Where a node of the tree lies, on the device.
#pragma once

#include "kernels/cuda/matrix_plan.h"

namespace fenwick::cuda::matrix {

/// Node (bit, index): carried in, a block of the shard, formed before, or formed by the mixer.
__device__ __forceinline__ const float* find_node(const Nodes& nodes, int bit, std::int64_t index) {
    if ((index + 1) << bit <= nodes.first_block) return nodes.entering[bit];
    if (bit == 0) return nodes.blocks + (index - nodes.first_block) * nodes.layer;
    if (nodes.above[bit] != nullptr && index << bit >= nodes.first_block) {
        const std::int64_t first = (nodes.first_block + (std::int64_t{1} << bit) - 1) >> bit;
        return nodes.above[bit] + (index - first) * nodes.layer;
    }
    return nodes.formed[bit] + (index - (nodes.first_block >> bit)) * nodes.layer;
}

/// The largest set bit of n > 0.
__device__ __forceinline__ int top_bit(std::int64_t n) {
    return 63 - __clzll(static_cast<long long>(n));
}

}  // namespace fenwick::cuda::matrix
