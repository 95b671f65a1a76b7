// The nodes that enter a shard's blocks, for one head, with their gradients: the tree inside a shard, in reverse.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/block_walk.h"
#include "kernels/mixer.h"

namespace fenwick::cpu {

/// Where a shard's summaries and their gradients lie, all heads.
struct ShardTree {
    std::int64_t first_block = 0;
    std::int64_t end_block = 0;  ///< one past the last, which may be short; nothing reads its summary
    std::span<const EnteringNode> entering;
    std::span<float* const> d_entering;
    const float* blocks = nullptr;  ///< [blocks][summary_floats]
    float* d_blocks = nullptr;
};

/// Every complete node that ends at or before the shard's last block: those that enter the shard, its blocks, and what
/// is merged of both. A node is named by its bit and the block where it ends, so its place follows from arithmetic.
class ShardNodes {
public:
    /// Enough for every shard of `blocks` blocks with no number above `last_block`.
    [[nodiscard]] static std::int64_t workspace_floats(const MixerShape& shape, std::int64_t blocks,
                                                       std::int64_t last_block);

    /// Objects of the same tree, head and memory are one: what one of them formed or added is there for the next.
    ShardNodes(const MixerShape& shape, const ShardTree& tree, std::int64_t head, float* workspace);

    /// Forms the merged nodes and clears their gradients; first of all.
    void form();

    /// E_b(z) for each set bit of `block`, oldest first: the states that enter it. Valid until the next call.
    [[nodiscard]] std::span<const EnteringState> entering(std::int64_t block);

    /// From the gradients of the states that the last `entering` gave, d_states [n][dk, dv] (destroyed), to those of
    /// the nodes: A_l ... of what was carried, S of what it was.
    void entering_backward(float* d_states);

    /// From the merged nodes' gradients to those of the blocks and of the entering nodes; once, at the end.
    void take_apart();

private:
    static constexpr int kMaxNodes = 64;

    struct Place {
        const float* summary = nullptr;
        float* gradient = nullptr;
    };

    [[nodiscard]] Place at(int bit, std::int64_t end) const;
    [[nodiscard]] std::int64_t merged_offset(int bit, std::int64_t end) const;
    // The state of the older of two nodes that enter a block, at the end of the younger one.
    [[nodiscard]] float* carried(int younger, int older) const;
    [[nodiscard]] const float* state_at(int younger, int node) const;

    const MixerShape& shape_;
    const ShardTree& tree_;
    std::int64_t head_;
    std::int64_t transition_;
    std::int64_t state_;
    float* merged_ = nullptr;    // (A, S) of the merged nodes
    float* d_merged_ = nullptr;  // their gradients
    float* carried_ = nullptr;   // older states at each younger node's end: [younger][older][dk, dv]
    float* carry_ = nullptr;     // [dk, dv] free use

    Place met_[kMaxNodes];  // the nodes that enter one block, oldest first
    EnteringState entering_[kMaxNodes];
    int count_ = 0;
};

}  // namespace fenwick::cpu
