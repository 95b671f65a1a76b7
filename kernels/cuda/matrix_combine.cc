// The nodes that a shard's outputs read, each from its two children.
#include <algorithm>

#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/summary.h"

namespace fenwick::cuda::matrix {

void form_nodes(const MixerShape& shape, const Nodes& nodes, cudaStream_t stream) {
    for (int bit = 1; bit < kMaxBits && nodes.last_block >> bit > 0; ++bit) {
        const std::int64_t first = nodes.first_block >> bit;  // of those that end in the shard
        const std::int64_t whole = first_whole_node(nodes.first_block, bit);
        const std::int64_t end = nodes.last_block >> bit;
        if (first < std::min(whole, end)) {  // it starts before the shard
            combine_summaries(shape, find_node(nodes, bit - 1, 2 * first), find_node(nodes, bit - 1, 2 * first + 1),
                              nodes.formed[bit], stream);
        }
        if (nodes.above[bit] == nullptr && whole < end) {  // their children lie one after the other
            combine_sibling_summaries(shape, find_node(nodes, bit - 1, 2 * whole), end - whole,
                                      nodes.formed[bit] + (whole - first) * nodes.layer, stream);
        }
    }
}

}  // namespace fenwick::cuda::matrix
