#include "worker/training/training_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace fenwick {

TrainingDocument own_part(const Sequence& sequence, double cost, const Communicator& group) {
    TrainingDocument document;
    document.plan = make_shard_plan(0, static_cast<std::int64_t>(sequence.tokens.size()), group.size(), cost);
    const Shard& shard = document.plan.shard(group.rank());
    const auto tokens = sequence.tokens.begin() + shard.first_token;
    document.tokens.assign(tokens, tokens + shard.tokens);
    const auto targets = sequence.targets.begin() + shard.first_token;
    document.targets.assign(targets, targets + shard.tokens);
    return document;
}

std::vector<std::vector<Sequence>> take_micro_batches(const Dataset& data, DataPosition& position, std::int64_t count,
                                                      const TrainingRanks& ranks) {
    std::vector<std::vector<Sequence>> own;
    for (std::int64_t done = 0; done < count; done += ranks.groups()) {
        const auto groups = static_cast<int>(std::min<std::int64_t>(ranks.groups(), count - done));
        const bool idle = ranks.group_number() >= groups;
        std::vector<Sequence> sequences = data.next(position, idle ? 0 : ranks.group_number(), groups);
        if (!idle) own.push_back(std::move(sequences));
    }
    return own;
}

void check_vocabulary(const Dataset& data, const Model& model, std::string_view key) {
    if (data.vocab_size() > model.vocab_size()) {
        throw DataError(
            fmt::format("{}: their vocabulary has {} tokens, the model's {}: it has no rows for all of them", key,
                        data.vocab_size(), model.vocab_size()));
    }
}

}  // namespace fenwick
