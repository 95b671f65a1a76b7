// One rank's part of a training run: from the first step, or a checkpoint, to the last or to a wish to stop.
#pragma once

#include <exception>

#include "coordinator/train_config.h"
#include "parallel/communicator.h"
#include "worker/pass_runner.h"

namespace fenwick {

struct TrainRankOptions {
    const TrainConfig& config;
    bool resume = false;
    bool json = false;
    int threads = 1;          ///< of this rank
    Compute compute;          ///< of this rank
    double peak_flops = 0.0;  ///< TrainLogOptions'; matters on rank 0
};

/// Collective. Returns an error that all ranks know of (PeerFailed on those that need not tell it), or nothing; throws
/// one of this rank alone. The world is whole after a return.
[[nodiscard]] std::exception_ptr train_rank(const TrainRankOptions& options, Communicator& world);

}  // namespace fenwick
