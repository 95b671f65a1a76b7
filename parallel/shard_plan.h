// Which blocks of a pass each rank holds.
//
//   blocks of the pass: [first_token >> 12, ceil((first_token + tokens) / 4096)), the last one perhaps short;
//   n blocks over P ranks: rank p holds n / P of them, one more for p < n mod P, in rank order;
//   or, where a rank has many blocks and later ones cost more (block z is entered by popcount(z) states), cut so that
//   the ranks' costs  sum over z of 1 + level_cost * popcount(z)  are nearly equal.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fenwick.h"

namespace fenwick {

/// One rank's consecutive blocks. An empty shard stands at the end of the pass.
struct Shard {
    std::int64_t first_block = 0;  ///< in the document
    std::int64_t blocks = 0;       ///< the last block of the pass may be short
    std::int64_t first_token = 0;  ///< in the document
    std::int64_t tokens = 0;
};

struct ShardPlan {
    std::int64_t first_token = 0;
    std::int64_t tokens = 0;
    std::vector<Shard> shards;  ///< [P]

    [[nodiscard]] const Shard& shard(int rank) const { return shards.at(static_cast<std::size_t>(rank)); }
    /// [P + 1]: rank p's complete blocks are [value p, value p + 1). A short last block has no summary and is left
    /// out. This is what `make_exchange_schedule` takes.
    [[nodiscard]] std::vector<std::int64_t> complete_block_boundaries() const;
};

/// `first_token`: where the pass starts in the document, a multiple of kBlockTokens. More ranks than blocks, and no
/// tokens at all, are fine: the last ranks' shards are empty. Throws UsageError for ranks < 1, InternalError for a
/// start that is negative or inside a block and for negative `tokens`.
/// `level_cost`: what a state that enters a block costs, as a share of the block's other work. Shards of unequal size
/// start at multiples of a 32nd of an equal one, so that their lists stay short; below 32 blocks a rank they are equal.
[[nodiscard]] ShardPlan make_shard_plan(std::int64_t first_token, std::int64_t tokens, int ranks,
                                        double level_cost = 0.0);

/// Sum of the number of set bits of 0, 1, ..., blocks - 1: entering states of a document's first blocks.
[[nodiscard]] std::int64_t entering_states(std::int64_t blocks);

}  // namespace fenwick
