// Which blocks of a pass each rank holds.
//
//   blocks of the pass: [first_token >> 12, ceil((first_token + tokens) / 4096)), the last one perhaps short;
//   n blocks over P ranks: rank p holds n / P of them, one more for p < n mod P, in rank order.
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
[[nodiscard]] ShardPlan make_shard_plan(std::int64_t first_token, std::int64_t tokens, int ranks);

}  // namespace fenwick
