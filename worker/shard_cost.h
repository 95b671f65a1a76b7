// What later blocks of a document cost more than earlier ones, for cutting a pass into shards of equal work.
#pragma once

#include "worker/model.h"

namespace fenwick {

/// Useful operations for a state that enters a block over those of the block's other work (DESIGN section 8), whole
/// model: `level_cost` of make_shard_plan. 0 for linear models.
[[nodiscard]] double level_cost(const Model& model);

}  // namespace fenwick
