// The mixers of the comparison of one GPU with several: measured by bench_ranks, planned by plan_mixers.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/mixer_shape.h"

namespace fenwick::bench {

struct MixerWork {
    const char* name;
    MixerShape shape;  ///< levels: those of the document where it is log-linear
    bool log_linear;
    double level_cost;  ///< of make_shard_plan, as measured on an H200 with equal shards
};

inline constexpr std::array<MixerWork, 4> kMixerWorks = {{
    {"Gated DeltaNet, 12 heads 128x128", {TransitionAlgebra::kMatrix, 12, 12, 128, 128, 0}, false, 0.0},
    {"log-linear Gated DeltaNet, 12 heads 128x128", {TransitionAlgebra::kMatrix, 12, 12, 128, 128, 0}, true, 0.2},
    {"Mamba-2, 12 heads 128x128", {TransitionAlgebra::kScalar, 12, 12, 128, 128, 0}, false, 0.0},
    {"log-linear Mamba-2, 48 heads 128x64", {TransitionAlgebra::kScalar, 48, 1, 128, 64, 0}, true, 0.1},
}};

[[nodiscard]] constexpr std::int64_t levels_of(std::int64_t tokens) {
    std::int64_t levels = 1;
    for (; tokens > 1; tokens /= 2) ++levels;
    return levels;
}

}  // namespace fenwick::bench
