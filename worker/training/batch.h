// The documents of a micro-batch, as rows that lie behind each other on this rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/exchange_schedule.h"
#include "parallel/shard_plan.h"

namespace fenwick {

/// This rank's part of one document. A document starts with empty states: nothing is carried in.
struct TrainingDocument {
    ShardPlan plan;                     ///< of the group's ranks, from token 0 on
    std::vector<std::int32_t> tokens;   ///< [plan.shard(rank).tokens]
    std::vector<std::int32_t> targets;  ///< as many: the token after each row, or kNoTarget (kernels/backward)
};

/// Where one document lies among this rank's rows.
struct DocumentRows {
    const ShardPlan* plan = nullptr;
    Shard shard;                 ///< this rank's
    std::int64_t first_row = 0;  ///< of shard.tokens rows
    bool over_ranks = false;     ///< several ranks have rows of it: states and halos are exchanged
    ExchangeSchedule schedule;   ///< where it lies over ranks
};

struct Batch {
    std::vector<DocumentRows> documents;
    std::vector<std::int32_t> tokens;   ///< [rows]
    std::vector<std::int32_t> targets;  ///< [rows]
    std::int64_t labels = 0;            ///< rows with a target

    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// `documents` outlive the result. Throws InternalError for a plan that does not start at token 0 or is of another
/// world, and for tokens or targets that do not fit it.
[[nodiscard]] Batch lay_out(std::span<const TrainingDocument> documents, const Communicator& group);

}  // namespace fenwick
