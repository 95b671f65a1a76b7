// Is the world what its launcher meant? Asked once at the start of a job, before anything is written.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace fenwick {

/// Value of an environment variable, or nothing.
using EnvironmentReader = std::function<std::optional<std::string>(const std::string& name)>;
[[nodiscard]] std::optional<std::string> process_environment(const std::string& name);

/// Compares the number of processes that know of each other with what the launcher says it started
/// (OMPI_COMM_WORLD_SIZE, else SLURM_STEP_NUM_TASKS or SLURM_NTASKS; the script of sbatch itself is one process).
/// Throws UnavailableError that states the mismatch: without it, N copies would each think that they are rank 0 of 1
/// and write the same output.
void check_launcher(int processes, const EnvironmentReader& read = process_environment);

/// One rank's account of itself.
struct RankIdentity {
    int rank = 0;
    int size = 0;
    std::string host;
    long pid = 0;
};

/// Throws UnavailableError, naming hosts and processes, when the accounts do not make up one world of
/// `identities.size()` different processes with ranks 0, 1, 2, ... in order.
void check_identities(const std::vector<RankIdentity>& identities);

/// Collective. `check_launcher`, and in a world of processes `check_identities` on rank 0, whose verdict every rank
/// throws.
void guard_world(Communicator& comm, const EnvironmentReader& read = process_environment);

}  // namespace fenwick
