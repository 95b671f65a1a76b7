#include "parallel/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace fenwick {

ShardPlan make_shard_plan(std::int64_t first_token, std::int64_t tokens, int ranks) {
    if (ranks < 1) throw UsageError(fmt::format("ranks: expected 1 or more, found {}", ranks));
    if (first_token < 0 || first_token % kBlockTokens != 0) {
        throw InternalError(
            fmt::format("shard plan: a pass starts at a multiple of {} tokens, found {}", kBlockTokens, first_token));
    }
    if (tokens < 0) throw InternalError(fmt::format("shard plan: negative token count {}", tokens));

    const std::int64_t blocks = tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0);
    const std::int64_t end_token = first_token + tokens;
    ShardPlan plan{first_token, tokens, {}};
    plan.shards.reserve(static_cast<std::size_t>(ranks));
    std::int64_t block = first_token / kBlockTokens;
    for (int rank = 0; rank < ranks; ++rank) {
        Shard shard;
        shard.first_block = block;
        shard.blocks = blocks / ranks + (rank < blocks % ranks ? 1 : 0);
        block += shard.blocks;
        shard.first_token = std::min(shard.first_block * kBlockTokens, end_token);
        shard.tokens = std::min(block * kBlockTokens, end_token) - shard.first_token;
        plan.shards.push_back(shard);
    }
    return plan;
}

std::vector<std::int64_t> ShardPlan::complete_block_boundaries() const {
    const std::int64_t end = (first_token + tokens) / kBlockTokens;
    std::vector<std::int64_t> boundaries;
    boundaries.reserve(shards.size() + 1);
    for (const Shard& each : shards) boundaries.push_back(std::min(each.first_block, end));
    boundaries.push_back(end);
    return boundaries;
}

}  // namespace fenwick
