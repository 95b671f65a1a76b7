#include "worker/shard_cost.h"

#include <bit>

#include "core/fenwick.h"
#include "parallel/shard_plan.h"

namespace fenwick {

double level_cost(const Model& model) {
    double level = 0;
    double rest = model.head_flops_per_token();
    for (const LayerCost& cost : model.layer_costs()) {
        level += cost.flops_per_token_and_level;
        rest += cost.flops_per_token;
    }
    return level / rest;
}

double forward_flops(const Model& model, std::int64_t tokens) {
    const std::int64_t blocks = tokens >> kBlockBits;
    const auto tail = static_cast<double>(tokens & (kBlockTokens - 1));
    const double entering = static_cast<double>(kBlockTokens) * static_cast<double>(entering_states(blocks)) +
                            tail * std::popcount(static_cast<std::uint64_t>(blocks));
    double flops = static_cast<double>(tokens) * model.head_flops_per_token();
    for (const LayerCost& cost : model.layer_costs()) {
        flops += static_cast<double>(tokens) * cost.flops_per_token + entering * cost.flops_per_token_and_level;
    }
    return flops;
}

}  // namespace fenwick
