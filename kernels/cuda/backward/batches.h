// A shard's blocks, as many at a time as the workspace takes: what the matrix units' paths share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/fenwick.h"
#include "kernels/cuda/backward/batch.h"
#include "kernels/cuda/backward/cumulative.h"

namespace fenwick::cuda::backward {

/// body(plan of a batch) for the shard's first `blocks` blocks. Throws as check_alignment.
template <class Plan, class Body>
void each_batch(Plan plan, const Call& call, std::int64_t blocks, const Body& body) {
    check_alignment(call);
    plan.call = call;
    for (std::int64_t b = 0; b < blocks; b += plan.blocks_at_once) {
        plan.batch_block = b;
        plan.batch_blocks = std::min(plan.blocks_at_once, blocks - b);
        body(plan);
    }
}

}  // namespace fenwick::cuda::backward
