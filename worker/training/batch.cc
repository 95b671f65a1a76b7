#include "worker/training/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "kernels/backward/cross_entropy.h"

namespace fenwick {
namespace {

void check(const TrainingDocument& document, std::size_t number, const Communicator& group) {
    const ShardPlan& plan = document.plan;
    if (plan.first_token != 0 || std::ssize(plan.shards) != group.size()) {
        throw InternalError(fmt::format(
            "training document {}: expected a plan from token 0 over {} ranks, found one from token {} over {}", number,
            group.size(), plan.first_token, plan.shards.size()));
    }
    const std::int64_t rows = plan.shard(group.rank()).tokens;
    if (std::ssize(document.tokens) != rows || std::ssize(document.targets) != rows) {
        throw InternalError(
            fmt::format("training document {}: expected {} tokens and targets on rank {}, found {} and {}", number,
                        rows, group.rank(), document.tokens.size(), document.targets.size()));
    }
}

}  // namespace

Batch lay_out(std::span<const TrainingDocument> documents, const Communicator& group) {
    Batch batch;
    batch.documents.reserve(documents.size());
    for (const TrainingDocument& document : documents) {
        check(document, batch.documents.size(), group);
        const std::vector<Shard>& shards = document.plan.shards;
        DocumentRows rows;
        rows.plan = &document.plan;
        rows.shard = document.plan.shard(group.rank());
        rows.first_row = batch.rows();
        rows.over_ranks =
            std::count_if(shards.begin(), shards.end(), [](const Shard& shard) { return shard.tokens > 0; }) > 1;
        if (rows.over_ranks) rows.schedule = make_entering_schedule(document.plan.complete_block_boundaries());
        batch.documents.push_back(std::move(rows));
        batch.tokens.insert(batch.tokens.end(), document.tokens.begin(), document.tokens.end());
        batch.targets.insert(batch.targets.end(), document.targets.begin(), document.targets.end());
    }
    batch.labels = std::ssize(batch.targets) - std::count(batch.targets.begin(), batch.targets.end(), kNoTarget);
    return batch;
}

}  // namespace fenwick
