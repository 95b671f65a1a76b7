#include "parallel/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/errors.h"

namespace fenwick {
namespace {

constexpr std::int64_t kLeastBlocksToBalance = 32;

/// First block of each rank's shard, and the end of the last: [ranks + 1].
std::vector<std::int64_t> equal_cuts(std::int64_t first, std::int64_t blocks, int ranks) {
    std::vector<std::int64_t> cuts(1, first);
    for (int rank = 0; rank < ranks; ++rank)
        cuts.push_back(cuts.back() + blocks / ranks + (rank < blocks % ranks ? 1 : 0));
    return cuts;
}

/// The same by cost: each cut at the multiple of `unit` that comes nearest to its share of the whole.
std::vector<std::int64_t> balanced_cuts(std::int64_t first, std::int64_t blocks, int ranks, double level_cost) {
    const auto cost_before = [&](std::int64_t block) {
        return static_cast<double>(block - first) +
               level_cost * static_cast<double>(entering_states(block) - entering_states(first));
    };
    const auto unit =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(blocks / ranks))) / kLeastBlocksToBalance;
    const double whole = cost_before(first + blocks);
    std::vector<std::int64_t> cuts(1, first);
    for (int rank = 1; rank < ranks; ++rank) {
        const double share = whole * rank / ranks;
        std::int64_t low = first / unit;
        std::int64_t high = (first + blocks) / unit;
        while (low < high) {  // the first multiple at which the share is reached
            const std::int64_t middle = low + (high - low) / 2;
            if (cost_before(middle * unit) < share) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        std::int64_t cut = low * unit;
        if (share - cost_before(cut - unit) < cost_before(cut) - share) cut -= unit;
        cuts.push_back(std::clamp(cut, cuts.back(), first + blocks));
    }
    cuts.push_back(first + blocks);
    return cuts;
}

}  // namespace

std::int64_t entering_states(std::int64_t blocks) {
    std::int64_t sum = 0;
    for (int bit = 0; (std::int64_t{1} << bit) < blocks; ++bit) {
        // Of every 2^(bit + 1) numbers in a row, the upper half has the bit.
        const std::int64_t period = std::int64_t{2} << bit;
        sum += blocks / period * (period / 2) + std::max<std::int64_t>(0, blocks % period - period / 2);
    }
    return sum;
}

ShardPlan make_shard_plan(std::int64_t first_token, std::int64_t tokens, int ranks, double level_cost) {
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
    const std::int64_t first_block = first_token / kBlockTokens;
    const bool balance = level_cost > 0 && blocks / ranks >= kLeastBlocksToBalance;
    const std::vector<std::int64_t> cuts =
        balance ? balanced_cuts(first_block, blocks, ranks, level_cost) : equal_cuts(first_block, blocks, ranks);
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
        Shard shard;
        shard.first_block = cuts[rank];
        shard.blocks = cuts[rank + 1] - cuts[rank];
        shard.first_token = std::min(cuts[rank] * kBlockTokens, end_token);
        shard.tokens = std::min(cuts[rank + 1] * kBlockTokens, end_token) - shard.first_token;
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
