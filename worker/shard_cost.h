// What a document costs: useful operations, and how much more later blocks cost than earlier ones, for cutting a pass
// into shards of equal work.
#pragma once

#include "worker/model.h"

namespace fenwick {

/// Useful operations for a state that enters a block over those of the block's other work (DESIGN section 8), whole
/// model: `level_cost` of make_shard_plan. 0 for linear models.
[[nodiscard]] double level_cost(const Model& model);

/// Useful operations of the forward pass over a document of `tokens` tokens (DESIGN section 8), head included.
[[nodiscard]] double forward_flops(const Model& model, std::int64_t tokens);

}  // namespace fenwick
