#include "coordinator/mpi_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/gang_host.h"
#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/end_guard.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_monitor.h"
#include "parallel/world_guard.h"
#include "worker/gpu.h"

namespace fenwick {

int run_in_mpi_world(const MpiRun& run, const std::function<int(Communicator&, int)>& body) {
    const auto timeout = std::chrono::milliseconds(std::llround(1000 * run.comm_timeout));
    int code = 0;
    std::exception_ptr error;
    // What a rank that is missing makes wait for ever, before and after the monitor watches.
    std::optional<EndGuard> guard(std::in_place, time_to_notice(timeout), [&] {
        end_process(fmt::format("MPI did not start within {} s (--comm-timeout): not all ranks came. {}",
                                run.comm_timeout, missing_ranks_on_host()),
                    run.resumable ? ExitCode::kInterrupted : ExitCode::kUnavailable);
    });
    {
        const MpiEnvironment environment;
        MpiCommunicator comm;
        comm.status().set_resumable_look(run.has_progress);
        const int local_rank = comm.local_rank();
        {
            const MpiMonitor monitor(comm, timeout);
            guard.reset();
            // Errors that every rank knows of leave the world whole: it is ended in order before they go on.
            try {
                code = body(comm, local_rank);
            } catch (...) {
                error = std::current_exception();
            }
            comm.status().set_step({Activity::kEnding, -1, 0, {}});
        }
        guard.emplace(timeout, [&] {
            end_process(fmt::format("MPI did not end within {} s, although the work is done. {}", run.comm_timeout,
                                    missing_ranks_on_host()),
                        static_cast<ExitCode>(code));
        });
    }
    guard.reset();
    if (error != nullptr) std::rethrow_exception(error);
    return code;
}

int mpi_ranks_on_host(int world_size) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"}) {
        if (const auto text = process_environment(name)) {
            const int ranks =
                std::atoi(text->c_str());  // NOLINT(cert-err34-c): no number reads as 0, which is passed over
            if (ranks >= 1) return std::min(ranks, world_size);
        }
    }
    return world_size;
}

void check_same_model(Communicator& comm, const Model& model) {
    std::array<char, 64> leader = {};
    std::array<char, 64> own = {};
    model.hash().copy(own.data(), own.size());
    if (comm.rank() == 0) leader = own;
    broadcast(comm, std::as_writable_bytes(std::span(leader)));
    together(comm, [&] {
        if (leader != own) {
            throw DataError(
                fmt::format("--model: this rank read a model with hash {}, rank 0 one with {}; give every host "
                            "the same files",
                            own.data(), leader.data()));
        }
    });
}

std::int64_t world_pass_tokens(Communicator& comm, const Model& model, const Execution& execution) {
    std::int64_t own = 0;
    together(comm, [&] { own = gpu_pass_tokens(model, execution.dtype == "bf16", execution.gpu); });
    std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()), own);
    const std::vector<std::int64_t> sizes(all.size(), sizeof(own));
    const std::span<std::int64_t> at_root(all.data(), comm.rank() == 0 ? all.size() : 0);
    gather_to_root(comm, std::as_bytes(std::span(&own, 1)), sizes, std::as_writable_bytes(at_root));
    std::int64_t least = *std::min_element(all.begin(), all.end());
    broadcast(comm, std::as_writable_bytes(std::span(&least, 1)));
    return least * comm.size();
}

}  // namespace fenwick
