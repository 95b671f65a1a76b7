// What a shard's blocks are entered by, and how its gradients flow back to the nodes: all algebras, both read-outs,
// fp32.
//
// Positions are the blocks z of the shard and, before them, the blocks that first_block becomes when its lowest bits
// are cleared one by one (the ends of its entering nodes). Each position z but 0 has a parent z0 = z & (z - 1); the
// node n(z) of bit ctz(z) that ends at z lies between the two. With E_b(z) in slot s for the s-th set bit, largest
// first:
//
//   E(z)[s] = A_n E(z0)[s] for all slots of z0,  E(z)[last] = S_n         (linear: one slot, E(z) = A_n E(z0) + S_n)
//   back:  dE(z0)[s] += A_n^T dE(z)[s],  dA_n += sum over s of dE(z)[s] E(z0)[s]^T,  dS_n += dE(z)[last]
//
// Of the positions with ctz(z) = c no two have the same parent, and a parent has more trailing zeros: forward goes from
// large c to small, back from small to large, each c at once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/backward/workspace.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/mixer.h"

namespace fenwick::cuda::backward {

using matrix::kMaxBits;

/// Where gradients of nodes lie: of those that enter the shard, its blocks, and what it forms.
struct NodeGradients {
    std::int64_t first_block = 0;
    std::int64_t layer = 0;          ///< floats of a layer summary
    float* blocks = nullptr;         ///< [blocks of the shard][layer]
    float* entering[kMaxBits] = {};  ///< by bit
    float* formed[kMaxBits] = {};  ///< [bit >= 1][nodes that end in the shard, before its last block or with its start]

#if defined(__CUDACC__)
    __host__ __device__
#endif
        float*
        find(int bit, std::int64_t index) const {
        if ((index + 1) << bit <= first_block) return entering[bit];
        if (bit == 0) return blocks + (index - first_block) * layer;
        return formed[bit] + (index - (first_block >> bit)) * layer;
    }
};

/// A shard's tree with its workspace.
struct Tree {
    MixerShape shape;
    std::int64_t first_block = 0;
    std::int64_t blocks = 0;  ///< of the shard, the open one included
    int entering = 0;         ///< nodes that enter first_block
    int slots = 1;            ///< most states that enter a position; linear: 1
    matrix::Nodes nodes;      ///< as the forward pass has them
    NodeGradients gradients;
    float* states = nullptr;    ///< E  [entering + blocks][slots][heads][d_k, d_v], or null: those of `entered` alone
    float* d_states = nullptr;  ///< dE, the same
    float* entered = nullptr;   ///< E  [blocks][slots][heads][d_k, d_v] of the shard's

    /// Floats of one position's slot.
    [[nodiscard]] std::int64_t slot_floats() const { return shape.heads * shape.key_dim * shape.value_dim; }
    /// E and dE of block `block` of the shard, from 0.
    [[nodiscard]] float* entered_by(std::int64_t block) const { return entered + block * slots * slot_floats(); }
    [[nodiscard]] float* d_entered_by(std::int64_t block) const {
        return d_states + (entering + block) * slots * slot_floats();
    }
    /// States that enter block `block` of the shard.
    [[nodiscard]] int slots_of(std::int64_t block) const;
};

/// Lays the tree out in the workspace; nodes' pointers that are the caller's are set by set_nodes. `kept`: what the
/// forward pass of a linear matrix model leaves, or null; no E is formed beside it, nor gradients of A.
[[nodiscard]] Tree make_tree(const MixerShape& shape, std::int64_t rows, std::int64_t first_block,
                             const matrix::Kept* kept, Carver& carver);
/// `d_entering` and `d_blocks` as in mixer_outputs_backward.
void set_nodes(Tree& tree, std::span<const EnteringNode> entering, const ShardNodes& nodes,
               std::span<float* const> d_entering, float* d_blocks);

/// Forms the nodes and E of every position, or (kept) of every block.
void launch_enter(const Tree& tree, cudaStream_t stream);
/// From dE of the shard's blocks (all slots that are there) to the gradients of entering nodes and blocks.
/// `transitions` false: those of A are not wanted.
void launch_leave(const Tree& tree, bool transitions, cudaStream_t stream);

}  // namespace fenwick::cuda::backward
