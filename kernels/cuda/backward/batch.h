// What the plans of all algebras have: the shape, and the blocks that are worked on at once.
#pragma once

#include <algorithm>

#include "kernels/cuda/backward/call.h"
#include "kernels/cuda/backward/workspace.h"

namespace fenwick::cuda::backward {

[[nodiscard]] inline std::int64_t blocks_of(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens;
}

/// Blocks are worked on as many at a time as the tiles that they need have room (most_batch_bytes).
struct Batch {
    Call call;
    int heads = 0, heads_per_key = 0, key_dim = 0, value_dim = 0, levels = 0;
    int tiles = 0;  ///< of 64 value columns a head
    int slots = 1;  ///< places for states that enter a block
    bool linear = false;
    std::int64_t rows = 0;         ///< of the shard
    std::int64_t padded_rows = 0;  ///< the same in whole blocks
    std::int64_t blocks_at_once = 0;
    std::int64_t batch_block = 0;  ///< the batch's first block in the shard
    std::int64_t batch_blocks = 0;

    [[nodiscard]] constexpr std::int64_t batch_rows() const {
        const std::int64_t left = rows - batch_block * kBlockTokens;
        const std::int64_t most = batch_blocks * kBlockTokens;
        return left < most ? left : most;
    }
    /// Of a state's 64 value columns.
    [[nodiscard]] constexpr std::int64_t state_elements() const { return static_cast<std::int64_t>(key_dim) * 64; }
};

/// All but the call and the batch; `slots`: the tree's.
inline void set_shape(Batch& batch, const MixerShape& shape, std::int64_t rows, int slots) {
    batch.heads = static_cast<int>(shape.heads);
    batch.heads_per_key = static_cast<int>(shape.heads / shape.key_heads);
    batch.key_dim = static_cast<int>(shape.key_dim);
    batch.value_dim = static_cast<int>(shape.value_dim);
    batch.levels = static_cast<int>(shape.levels);
    batch.tiles = static_cast<int>((shape.value_dim + 63) / 64);
    batch.slots = slots;
    batch.linear = !shape.log_linear();
    batch.rows = rows;
    batch.padded_rows = blocks_of(rows) * kBlockTokens;
}

inline void set_blocks_at_once(Batch& batch, std::int64_t block_bytes) {
    batch.blocks_at_once =
        std::clamp<std::int64_t>(most_batch_bytes() / block_bytes, 1, std::max<std::int64_t>(blocks_of(batch.rows), 1));
}

}  // namespace fenwick::cuda::backward
