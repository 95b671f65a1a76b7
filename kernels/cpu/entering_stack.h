// What enters each block of a shard, for one head: the states E_b(z) of DESIGN section 3, kept up as z moves on.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/block_walk.h"
#include "kernels/mixer.h"

namespace fenwick::cpu {

/// Throws InternalError, in the name of `caller`, unless `entering` is the canonical list of `first_block`.
void check_entering(const char* caller, std::int64_t first_block, std::span<const EnteringNode> entering);

/// The nodes of a prefix, oldest first, with every older state carried to the end of each younger node. Appending a
/// block merges siblings as a binary counter does and carries only what is new, by the same products in the same order
/// as the definition: A of the nearest younger node first.
class EnteringStack {
public:
    [[nodiscard]] static std::int64_t workspace_floats(const MixerShape& shape, std::int64_t last_block);

    EnteringStack(const MixerShape& shape, std::int64_t last_block, float* workspace);

    /// Pushes a node that enters the shard's first block; oldest first.
    void push(int bit, const float* node);
    /// Appends the block after the prefix; `node` is its (A, S).
    void append_block(const float* node);

    /// E_b for each node, oldest first; valid until the next push or append.
    [[nodiscard]] std::span<const EnteringState> entering() const;

private:
    static constexpr int kMaxNodes = 64;

    struct Frame {
        int bit = 0;
        const float* node = nullptr;  // (A, S)
        float* carried = nullptr;     // the older nodes' states at this node's end, [older nodes][dk, dv]
    };

    [[nodiscard]] const float* state_at(int frame, int node) const;

    const MixerShape& shape_;
    std::int64_t transition_;
    std::int64_t state_;
    Frame frames_[kMaxNodes];
    int count_ = 0;
    EnteringState entering_[kMaxNodes];
    float* merged_ = nullptr;  // (A, S) of merged nodes: [bit][left, right sibling]
};

}  // namespace fenwick::cpu
