// The scalar algebra on the GPU (RetNet, Mamba-2, simple GLA): what its kernels share.
//
// A document is cut into groups of 256 tokens (four chunks, a sixteenth of a block). A group's own tokens see each
// other by the masked product, P = (Q K^T * D * lambda) V; everything older reaches them through one state for each set
// bit of the group's number (linear read-out: one state in all). A scalar transition needs no carried copies: a state
// that enters is its node times exp(sum of log decays), so nodes are formed once, in `workspace`, and the output kernel
// scales product rows by lambda * exp(...) in fp32. Bits 0 to 3 of the group's number are nodes inside the block, the
// others nodes of blocks.
//
//   scalar_decay    G: cumulative log decay inside each block, in double
//   scalar_walk     nodes of one, two and four groups (linear: the state before each group), K^T V on the matrix units
//   scalar_quads    four-group states to block summaries, and the node of eight groups
//   scalar_blocks   nodes of blocks, by the binary counter of kernels/cpu/entering_stack.h
//   scalar_output   everything else
//
// Each value is formed by one fixed sequence of operations that depends on its place in the document alone.
#pragma once

#include <cstdint>

#include "core/fenwick.h"
#include "kernels/cuda/mixer_algebras.h"

namespace fenwick::cuda::scalar {

inline constexpr int kGroupTokens = 256;
inline constexpr int kGroupChunks = 4;
inline constexpr int kGroupsPerBlock = 16;
inline constexpr int kQuadsPerBlock = 4;  ///< runs of four groups
inline constexpr int kGroupBits = 8;      ///< log2(kGroupTokens)
inline constexpr int kGroupNodeBits = 4;  ///< bits of a group's number inside its block
inline constexpr int kMaxNodes = 64;
inline constexpr int kTensorSharedBytes =
    227 * 1024;  ///< shared memory of a block that the tensor kernels ask for at most

/// A block of a document may be 2^60 at most: the list has one place a bit.
struct EnteringList {
    const float* summary[kMaxNodes];  ///< oldest first: packed layer summaries
    int bit[kMaxNodes];
    int count;
};

/// Sizes of a call and where its intermediates lie in the workspace.
struct Plan {
    bool tensor = false;      ///< matrix units with bf16 tiles, or plain fp32 sums
    bool log_linear = false;  ///< lambda over levels, or one state
    std::int64_t heads = 0, heads_per_key = 0, key_dim = 0, value_dim = 0, levels = 0;
    std::int64_t rows = 0, blocks = 0, groups = 0, first_block = 0;
    std::int64_t tiles = 0;          ///< tiles of 64 value columns a head; a (head, tile) is a column of work
    std::int64_t columns = 0;        ///< heads * tiles
    std::int64_t padded_rows = 0;    ///< blocks * 4,096
    std::int64_t node_elements = 0;  ///< of one head's (plain) or one column's (tensor) node
    std::int64_t node_columns = 0;   ///< heads (plain) or columns (tensor)
    int entering = 0;                ///< nodes that enter the shard's first block

    // Byte offsets into the workspace.
    std::int64_t cumulative = 0;   ///< double [heads][padded_rows]: G, inclusive, from the block's start
    std::int64_t quads = 0;        ///< float [blocks][4][columns][key_dim * 64], in the order of the threads (tensor)
    std::int64_t group_nodes = 0;  ///< [groups][node_columns][node_elements]: the node that ends with the group
    std::int64_t block_nodes = 0;  ///< [entering + blocks][node_columns][node_elements] (log-linear)
    std::int64_t carries = 0;      ///< float [blocks][heads][64]: log decay from a node's end to the block (log-linear)
    std::int64_t states = 0;       ///< float [blocks][heads][key_dim * value_dim]: what enters the block (linear)
    std::int64_t bytes = 0;

    /// Place of the node of bit `bit` (of the group's number) that enters group `group` of the shard.
    struct NodePlace {
        bool inside_block;
        std::int64_t slot;
    };
#if defined(__CUDACC__)
    __host__ __device__
#endif
        NodePlace
        place(std::int64_t group, int bit) const {
        const std::int64_t number = first_block * kGroupsPerBlock + group;
        if (bit < kGroupNodeBits) {
            const std::int64_t end = ((number >> (bit + 1)) << (bit + 1)) + (std::int64_t{1} << bit);
            return {true, end - 1 - first_block * kGroupsPerBlock};
        }
        const int block_bit = bit - kGroupNodeBits;
        const std::int64_t block = number / kGroupsPerBlock;
        const std::int64_t end = ((block >> (block_bit + 1)) << (block_bit + 1)) + (std::int64_t{1} << block_bit);
        if (end > first_block) return {false, entering + end - 1 - first_block};
        std::int64_t older = 0;  // set bits of first_block above this one stand before it
        for (std::int64_t rest = first_block >> (block_bit + 1); rest != 0; rest &= rest - 1) ++older;
        return {false, older};
    }
};

[[nodiscard]] Plan make_plan(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block);

template <class T>
[[nodiscard]] T* at(void* workspace, std::int64_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

// Launchers; every one checks its launch. `call` gives inputs, workspace and stream.
void launch_decay(const Plan& plan, const MixerCall& call);
void launch_block_nodes(const Plan& plan, const MixerCall& call, const float* block_summaries);
void launch_plain_walk(const Plan& plan, const MixerCall& call, std::int64_t blocks, float* summaries);
void launch_plain_outputs(const Plan& plan, const MixerCall& call, void* out);
/// `summaries` null: nodes (or linear states) for the outputs; else the summaries of `blocks` whole blocks.
void launch_walk(const Plan& plan, const MixerCall& call, std::int64_t blocks, float* summaries);
void launch_outputs(const Plan& plan, const MixerCall& call, void* out);

}  // namespace fenwick::cuda::scalar
