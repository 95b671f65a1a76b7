// The whole-model part of bench_ranks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "parallel/communicator.h"

namespace fenwick::bench {

/// Collective. Scores a random document of `tokens` tokens on rank 0 alone and on all ranks, then prints the times of a
/// pass's exchanges. Returns false, on rank 0, where the losses' bytes differ. `json`: where figures are appended to.
[[nodiscard]] bool bench_model(Communicator& world, const std::filesystem::path& folder, std::int64_t tokens, int runs,
                               const std::filesystem::path& json);

}  // namespace fenwick::bench
