#include <algorithm>
#include <bit>

#include "core/cuda/check.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/backward/combine_matrix.cuh"
#include "kernels/cuda/backward/summary.h"
#include "kernels/cuda/backward/tree.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/operand.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kThreads = 256;

/// The positions of one number of trailing zeros, as the kernels see them.
struct Level {
    HeadSizes sizes;
    matrix::Nodes nodes;
    NodeGradients gradients;
    float* states;
    float* d_states;
    std::int64_t first_block;
    std::int64_t first;   // the first of them in the shard; the others follow 2^(bit + 1) apart
    std::int64_t before;  // the one before the shard, or -1: it comes first
    int count;            // with that one
    int bit;
    int entering;
    int slots;
    bool linear;
};

// One position, its parent, and the node between them, for one head.
struct Step {
    std::int64_t position, parent;
    int slots;        // of the parent
    const float* a;   // A, then S
    float* gradient;  // dA, then dS
    float* state;     // [slots of the level][heads * d_k * d_v] at this head
    float* d_state;
    float* parent_state;  // of position 0: not read
    float* d_parent;
    std::int64_t slot;  // floats from slot to slot
};

__device__ Step step_of(const Level& level, unsigned number, int head) {
    Step s;
    const bool before = level.before >= 0;
    s.position = before && number == 0
                     ? level.before
                     : level.first + (static_cast<std::int64_t>(number - (before ? 1 : 0)) << (level.bit + 1));
    s.parent = s.position & (s.position - 1);
    s.slots = s.parent == 0 ? 0 : level.linear ? 1 : __popcll(static_cast<unsigned long long>(s.parent));
    const std::int64_t index = (s.position >> level.bit) - 1;
    const std::int64_t at = head * (level.sizes.transition + level.sizes.state);
    s.a = matrix::find_node(level.nodes, level.bit, index) + at;
    s.gradient = level.gradients.find(level.bit, index);
    s.gradient = s.gradient == nullptr ? nullptr : s.gradient + at;
    s.slot = level.sizes.heads * level.sizes.state;
    const auto place = [&](std::int64_t z) {
        const std::int64_t n = z >= level.first_block ? level.entering + z - level.first_block
                                                      : __popcll(static_cast<unsigned long long>(z));
        return n * level.slots * s.slot + head * level.sizes.state;
    };
    s.state = level.states + place(s.position);
    s.d_state = level.d_states + place(s.position);
    s.parent_state = level.states + place(s.parent);
    s.d_parent = level.d_states + place(s.parent);
    return s;
}

// Where A is a log decay: a thread for each element of a state.
__global__ void enter_states(const __grid_constant__ Level level, unsigned parts) {
    const std::int64_t e = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (e >= level.sizes.state) return;
    const Step s = step_of(level, blockIdx.y, static_cast<int>(blockIdx.x / parts));
    const float decay = node_decay(level.sizes, s.a, static_cast<int>(e) / level.sizes.dv);
    const float own = s.a[level.sizes.transition + e];
    for (int slot = 0; slot < s.slots; ++slot) {
        const float carried = decay * s.parent_state[slot * s.slot + e];
        s.state[slot * s.slot + e] = level.linear ? own + carried : carried;
    }
    if (!level.linear || s.slots == 0) s.state[s.slots * s.slot + e] = own;
}

__global__ void leave_states(const __grid_constant__ Level level, unsigned parts) {
    const std::int64_t e = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (e >= level.sizes.state) return;
    const Step s = step_of(level, blockIdx.y, static_cast<int>(blockIdx.x / parts));
    const float decay = node_decay(level.sizes, s.a, static_cast<int>(e) / level.sizes.dv);
    s.gradient[level.sizes.transition + e] += s.d_state[(level.linear ? 0 : s.slots) * s.slot + e];
    for (int slot = 0; slot < s.slots; ++slot) s.d_parent[slot * s.slot + e] += decay * s.d_state[slot * s.slot + e];
}

// Matrix transitions: a thread block for a tile of a state.
__global__ void __launch_bounds__(kProductThreads) enter_matrices(const __grid_constant__ Level level, unsigned tiles) {
    const Step s = step_of(level, blockIdx.y, static_cast<int>(blockIdx.x / tiles));
    const HeadSizes& sizes = level.sizes;
    ProductTile product(blockIdx.x % tiles, sizes.dk, sizes.dv);
    const float* own = s.a + sizes.transition;
    for (int slot = 0; slot < s.slots; ++slot) {
        product.clear();
        product.add<false, false>(s.a, s.parent_state + slot * s.slot, sizes.dk);
        product.store(s.state + slot * s.slot, [&](int i, float sum) { return level.linear ? own[i] + sum : sum; });
    }
    if (level.linear && s.slots > 0) return;
    product.store(s.state + s.slots * s.slot, [&](int i, float) { return own[i]; });
}

// A thread block for a tile of S, or of A after those.
__global__ void __launch_bounds__(kProductThreads)
    leave_matrices(const __grid_constant__ Level level, unsigned of_state, unsigned tiles) {
    const Step s = step_of(level, blockIdx.y, static_cast<int>(blockIdx.x / tiles));
    const HeadSizes& sizes = level.sizes;
    const unsigned tile = blockIdx.x % tiles;
    if (tile < of_state) {
        ProductTile product(tile, sizes.dk, sizes.dv);
        const float* own = s.d_state + (level.linear ? 0 : s.slots) * s.slot;
        product.add_copy(own, s.gradient + sizes.transition);
        for (int slot = 0; slot < s.slots; ++slot) {
            product.clear();
            product.add<true, false>(s.a, s.d_state + slot * s.slot, sizes.dk);
            product.add_to(s.d_parent + slot * s.slot);
        }
    } else if (s.slots > 0) {
        ProductTile product(tile - of_state, sizes.dk, sizes.dk);
        for (int slot = 0; slot < s.slots; ++slot) {
            product.add<false, true>(s.d_state + slot * s.slot, s.parent_state + slot * s.slot, sizes.dv);
        }
        product.add_to(s.gradient);
    }
}

// The gradients of all nodes of a bit go to their children: no two have one in common.
__global__ void __launch_bounds__(kProductThreads)
    split_matrices(const __grid_constant__ Level level, unsigned of_state, unsigned tiles) {
    const std::int64_t index = (level.first_block >> level.bit) + blockIdx.y;
    const std::int64_t head = blockIdx.x / tiles * (level.sizes.transition + level.sizes.state);
    const int child = level.bit - 1;
    // Of a node that starts the document nobody reads A.
    combine_matrix_backward(
        level.sizes, blockIdx.x % tiles, of_state, matrix::find_node(level.nodes, child, 2 * index) + head,
        matrix::find_node(level.nodes, child, 2 * index + 1) + head, level.gradients.find(level.bit, index) + head,
        level.gradients.find(child, 2 * index) + head, level.gradients.find(child, 2 * index + 1) + head, index != 0);
}

// A thread block for each log decay of the node.
__global__ void leave_log_decays(const __grid_constant__ Level level) {
    __shared__ float scratch[32];
    const HeadSizes& sizes = level.sizes;
    const int part = static_cast<int>(blockIdx.x) % static_cast<int>(sizes.transition);
    const Step s = step_of(level, blockIdx.y, static_cast<int>(blockIdx.x / sizes.transition));
    float sum = 0.0F;
    for (int slot = 0; slot < s.slots; ++slot) {
        sum += decay_gradient(sizes, s.a, s.d_state + slot * s.slot, s.parent_state + slot * s.slot, part,
                              [&](float x) { return block_sum(x, scratch); });
        __syncthreads();
    }
    if (threadIdx.x == 0 && s.slots > 0) s.gradient[part] += sum;
}

std::int64_t last_block(const Tree& tree) {
    return tree.first_block + tree.blocks - 1;
}

std::int64_t formed_nodes(const Tree& tree, int bit) {
    return (last_block(tree) >> bit) - (tree.first_block >> bit);
}

int top_bit(const Tree& tree) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(last_block(tree)))) - 1;
}

Level level_of(const Tree& tree, int bit) {
    Level level{};
    level.sizes = head_sizes(tree.shape);
    level.nodes = tree.nodes;
    level.gradients = tree.gradients;
    level.states = tree.states;
    level.d_states = tree.d_states;
    level.first_block = tree.first_block;
    level.bit = bit;
    level.entering = tree.entering;
    level.slots = tree.slots;
    level.linear = !tree.shape.log_linear();
    // Odd multiples of 2^bit from first_block to the last block.
    std::int64_t odd = (tree.first_block + (std::int64_t{1} << bit) - 1) >> bit;
    odd += 1 - (odd & 1);
    level.first = odd << bit;
    const std::int64_t last = last_block(tree);
    std::int64_t count = level.first > last ? 0 : ((last - level.first) >> (bit + 1)) + 1;
    level.before = -1;
    const std::int64_t cleared = tree.first_block >> bit << bit;
    if ((tree.first_block >> bit & 1) != 0 && cleared != tree.first_block) {
        level.before = cleared;
        ++count;
    }
    level.count = static_cast<int>(count);
    return level;
}

constexpr std::int64_t kMostAtOnce = 65535;  // of a grid's second dimension

// body(level): the positions of one number of trailing zeros, as many as a launch takes.
template <class Body>
void for_level(const Tree& tree, int bit, const Body& body) {
    Level level = level_of(tree, bit);
    if (level.count == 0) return;
    if (level.count > kMostAtOnce) {
        throw InternalError("mixer_outputs_backward: a shard of more than 131,070 blocks; use smaller passes");
    }
    body(level);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

int Tree::slots_of(std::int64_t block) const {
    const std::int64_t z = first_block + block;
    if (z == 0) return 0;
    return shape.log_linear() ? std::popcount(static_cast<std::uint64_t>(z)) : 1;
}

Tree make_tree(const MixerShape& shape, std::int64_t rows, std::int64_t first_block, const matrix::Kept* kept,
               Carver& carver) {
    Tree tree;
    tree.shape = shape;
    tree.first_block = first_block;
    tree.blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    tree.entering = std::popcount(static_cast<std::uint64_t>(first_block));
    for (std::int64_t b = 0; b < tree.blocks; ++b) tree.slots = std::max(tree.slots, tree.slots_of(b));
    if (last_block(tree) >> kMaxBits != 0) throw InternalError("mixer_outputs_backward: a document of too many blocks");
    if (kept != nullptr) tree.nodes = kept->nodes;
    tree.nodes.first_block = tree.gradients.first_block = first_block;
    tree.nodes.last_block = last_block(tree);
    tree.nodes.layer = tree.gradients.layer = summary_floats(shape);
    for (int bit = 1; bit <= top_bit(tree); ++bit) {
        const std::int64_t floats = formed_nodes(tree, bit) * summary_floats(shape);
        if (kept == nullptr) tree.nodes.formed[bit] = carver.take<float>(floats);
        tree.gradients.formed[bit] = carver.take<float>(floats);
    }
    const std::int64_t before = tree.entering * tree.slots * tree.slot_floats();
    const std::int64_t states = before + tree.blocks * tree.slots * tree.slot_floats();
    if (kept == nullptr) {
        tree.states = carver.take<float>(states);
        tree.entered = tree.states == nullptr ? nullptr : tree.states + before;
    } else {
        tree.entered = kept->entering;
    }
    tree.d_states = carver.take<float>(states);
    return tree;
}

void set_nodes(Tree& tree, std::span<const EnteringNode> entering, const ShardNodes& nodes,
               std::span<float* const> d_entering, float* d_blocks) {
    matrix::place_nodes(nodes, tree.nodes);
    tree.gradients.blocks = d_blocks;
    for (std::size_t i = 0; i < entering.size(); ++i) {
        tree.nodes.entering[entering[i].bit] = entering[i].summary;
        tree.gradients.entering[entering[i].bit] = d_entering[i];
    }
}

void launch_enter(const Tree& tree, cudaStream_t stream) {
    matrix::form_nodes(tree.shape, tree.nodes, stream);
    if (tree.states == nullptr) {
        if (last_block(tree) > 0) {
            matrix::launch_enter(tree.shape, tree.nodes, tree.blocks, tree.slots, tree.entered, stream);
        }
        return;
    }
    for (int bit = top_bit(tree); bit >= 0; --bit) {
        for_level(tree, bit, [&](const Level& level) {
            const auto heads = static_cast<unsigned>(level.sizes.heads);
            const auto count = static_cast<unsigned>(level.count);
            if (level.sizes.algebra == TransitionAlgebra::kMatrix) {
                const unsigned tiles = state_tiles(level.sizes);
                enter_matrices<<<dim3(tiles * heads, count), kProductThreads, 0, stream>>>(level, tiles);
                return;
            }
            const auto parts = static_cast<unsigned>((level.sizes.state + kThreads - 1) / kThreads);
            enter_states<<<dim3(parts * heads, count), kThreads, 0, stream>>>(level, parts);
        });
    }
}

void launch_leave(const Tree& tree, bool transitions, cudaStream_t stream) {
    // The positions before the shard get from its blocks alone.
    if (tree.entering > 0) {
        FENWICK_CUDA_CHECK(cudaMemsetAsync(
            tree.d_states, 0, static_cast<std::size_t>(tree.d_entered_by(0) - tree.d_states) * sizeof(float), stream));
    }
    for (int bit = 1; bit <= top_bit(tree); ++bit) {
        FENWICK_CUDA_CHECK(cudaMemsetAsync(
            tree.gradients.formed[bit], 0,
            static_cast<std::size_t>(formed_nodes(tree, bit) * tree.gradients.layer) * sizeof(float), stream));
    }
    for (int bit = 0; bit <= top_bit(tree); ++bit) {
        for_level(tree, bit, [&](const Level& level) {
            const auto heads = static_cast<unsigned>(level.sizes.heads);
            const auto count = static_cast<unsigned>(level.count);
            if (level.sizes.algebra == TransitionAlgebra::kMatrix) {
                const unsigned of_state = state_tiles(level.sizes);
                const unsigned tiles = of_state + (transitions ? transition_tiles(level.sizes) : 0);
                leave_matrices<<<dim3(tiles * heads, count), kProductThreads, 0, stream>>>(level, of_state, tiles);
                return;
            }
            const auto parts = static_cast<unsigned>((level.sizes.state + kThreads - 1) / kThreads);
            leave_states<<<dim3(parts * heads, count), kThreads, 0, stream>>>(level, parts);
            if (!transitions) return;
            leave_log_decays<<<dim3(static_cast<unsigned>(level.sizes.transition) * heads, count), kThreads, 0,
                               stream>>>(level);
        });
    }
    for (int bit = top_bit(tree); bit >= 1; --bit) {
        if (tree.shape.algebra == TransitionAlgebra::kMatrix) {
            const Level level = level_of(tree, bit);
            const unsigned of_state = state_tiles(level.sizes);
            const unsigned tiles = of_state + (transitions ? transition_tiles(level.sizes) : 0);
            const auto nodes = static_cast<unsigned>(formed_nodes(tree, bit));  // fewer than the positions above
            if (nodes == 0) continue;
            split_matrices<<<dim3(tiles * static_cast<unsigned>(level.sizes.heads), nodes), kProductThreads, 0,
                             stream>>>(level, of_state, tiles);
            FENWICK_CUDA_CHECK(cudaGetLastError());
            continue;
        }
        for (std::int64_t i = tree.first_block >> bit; i < last_block(tree) >> bit; ++i) {
            // Of a node that starts the document nobody reads A.
            combine_summaries_backward(
                tree.shape, matrix::find_node(tree.nodes, bit - 1, 2 * i),
                matrix::find_node(tree.nodes, bit - 1, 2 * i + 1),
                tree.gradients.formed[bit] + (i - (tree.first_block >> bit)) * tree.gradients.layer,
                tree.gradients.find(bit - 1, 2 * i), tree.gradients.find(bit - 1, 2 * i + 1), i != 0, stream);
        }
    }
}

}  // namespace fenwick::cuda::backward
