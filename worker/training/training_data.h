// From a data set's sequences to what one rank of a training world works on.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "worker/model.h"
#include "worker/training/backprop.h"
#include "worker/training/dataset.h"
#include "worker/training/training_ranks.h"

namespace fenwick {

/// This rank's rows of a sequence. `cost`: level_cost of the model (shard_cost.h).
[[nodiscard]] TrainingDocument own_part(const Sequence& sequence, double cost, const Communicator& group);

/// The micro-batches of this rank's group among the next `count` ones, whatever the number of groups; moves `position`
/// past all of them. Where `count` is no multiple of the groups the last groups have one less.
[[nodiscard]] std::vector<std::vector<Sequence>> take_micro_batches(const Dataset& data, DataPosition& position,
                                                                    std::int64_t count, const TrainingRanks& ranks);

/// Throws DataError when the files have ids that the model has not; `key` is the setting that names them.
void check_vocabulary(const Dataset& data, const Model& model, std::string_view key);

}  // namespace fenwick
