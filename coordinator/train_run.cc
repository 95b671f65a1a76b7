#include "coordinator/train_run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "coordinator/gang_host.h"
#include "coordinator/machine.h"
#include "coordinator/mpi_world.h"
#include "coordinator/score_options.h"
#include "coordinator/stop_signal.h"
#include "coordinator/train_config.h"
#include "coordinator/train_rank.h"
#include "core/errors.h"
#include "parallel/mpi_communicator.h"
#include "parallel/self_communicator.h"
#include "parallel/world_guard.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick {
namespace {

/// NVIDIA's figures for an H100 or H200 (SXM): dense products with fp32 sums.
constexpr double kGpuBf16Tflops = 989.0;
constexpr double kGpuFp32Tflops = 67.0;

/// `resolve(device, dtype)` turns model.device and model.dtype into what this rank computes on; its errors name the
/// key.
template <class Resolve>
Execution execution_of(const TrainConfig& config, const Resolve& resolve) {
    try {
        return resolve(config.device, config.dtype);
    } catch (const UnavailableError& error) {
        throw UnavailableError(fmt::format("model.device = \"{}\": {}", config.device, error.what()));
    }
}

/// What the MFU is measured against, all ranks together; `threads` threads are what `ranks_here` of them use.
double peak_flops(const TrainOptions& options, const Execution& execution, int threads, int ranks_here, int ranks) {
    if (options.peak_tflops) {
        const double peak = 1e12 * *options.peak_tflops * ranks;
        spdlog::info("MFU is against --peak-tflops {} of {} rank(s)", *options.peak_tflops, ranks);
        return peak;
    }
    if (execution.on_gpu()) {
        const double tflops = execution.dtype == "bf16" ? kGpuBf16Tflops : kGpuFp32Tflops;
        spdlog::info("MFU is against {} TFLOP/s a rank: an H200's dense {} products; --peak-tflops for other GPUs",
                     tflops, execution.dtype);
        return 1e12 * tflops * ranks;
    }
    const double here = measure_sgemm(threads);
    const double peak = here / ranks_here * ranks;
    spdlog::info("MFU is against {:.1f} GFLOP/s: fp32 products measured on {} thread(s), for {} of {} rank(s)",
                 peak / 1e9, threads, ranks_here, ranks);
    return peak;
}

int train_in_mpi_world(const TrainOptions& options, Communicator& comm, int local_rank) {
    guard_world(comm);
    if (comm.rank() != 0) spdlog::set_level(spdlog::level::err);  // what all ranks see is said once
    TrainConfig config;
    together(comm, [&] {
        (void)resolve_ranks(options.ranks, comm.size());
        config = read_train_config(options.config);
    });
    const int threads = threads_per_rank(mpi_ranks_on_host(comm.size()), true);
    Execution execution = execution_of(config, [&](const std::string& device, const std::string& dtype) {
        return resolve_world_execution(device, dtype, comm, local_rank);
    });
    execution.comm_timeout = options.comm_timeout;
    // The others wait: it has the cores that it will have.
    const double peak = comm.rank() == 0 ? peak_flops(options, execution, threads, 1, comm.size()) : 0.0;
    run_rank(comm, [&] {
        return train_rank({config, options.resume, options.json, threads, execution.compute(), peak}, comm);
    });
    return 0;
}

int train_under_mpi(const TrainOptions& options) {
    std::filesystem::path checkpoints;
    try {
        checkpoints = read_train_config(options.config).checkpoints;
    } catch (const ConfigError&) {
        // All ranks will meet it again, and one of them tell it, once the world stands.
    }
    const auto has_progress = [&] { return !checkpoints.empty() && !list_checkpoints(checkpoints).empty(); };
    const MpiRun run{options.comm_timeout, options.resume && has_progress(), has_progress};
    return run_in_mpi_world(
        run, [&](Communicator& comm, int local_rank) { return train_in_mpi_world(options, comm, local_rank); });
}

int train_with_threads(const TrainOptions& options) {
    SelfCommunicator self;
    guard_world(self);
    const int ranks = resolve_ranks(options.ranks, 0);
    const TrainConfig config = read_train_config(options.config);
    const Execution execution = execution_of(config, [&](const std::string& device, const std::string& dtype) {
        return resolve_execution(device, dtype, ranks);
    });
    const int threads = threads_per_rank(ranks, false);
    const double peak = peak_flops(options, execution, std::min(threads * ranks, usable_cores()), ranks, ranks);
    run_thread_parts(ranks, [&](Communicator& comm) {
        return train_rank({config, options.resume, options.json, threads, execution.compute(), peak}, comm);
    });
    return 0;
}

}  // namespace

int run_train(const TrainOptions& options) {
    catch_stop_signals();
    return launched_under_mpi() ? train_under_mpi(options) : train_with_threads(options);
}

}  // namespace fenwick
