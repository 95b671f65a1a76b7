// `fenwick train`: a training run, on whatever ranks it was started.
#pragma once

#include <filesystem>
#include <optional>

namespace fenwick {

/// The command line as given; fields have the names of its options.
struct TrainOptions {
    std::filesystem::path config;
    bool resume = false;
    bool json = false;
    std::optional<int> ranks;           ///< absent: 1, or the size of the MPI world
    double comm_timeout = 30;           ///< seconds; ranks that are processes
    std::optional<double> peak_tflops;  ///< of a rank, for the MFU; absent: that of its fp32 products, measured
};

/// Returns the exit code. Throws ConfigError, UsageError, DataError (also for a loss or gradient that is not finite),
/// UnavailableError, and InterruptedError when it was told to stop and has saved.
int run_train(const TrainOptions& options);

}  // namespace fenwick
