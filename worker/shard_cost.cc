#include "worker/shard_cost.h"

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

}  // namespace fenwick
