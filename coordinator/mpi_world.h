// Runs of an MPI world's processes, and what these agree on before they work together.
#pragma once

#include <cstdint>
#include <functional>

#include "coordinator/score_options.h"
#include "parallel/communicator.h"
#include "worker/model.h"

namespace fenwick {

struct MpiRun {
    double comm_timeout = 30;            ///< seconds that MPI, and a rank that is silent, may take
    bool resumable = false;              ///< whether --resume would find progress already before the start
    std::function<bool()> has_progress;  ///< whether it would now; asked from any thread
};

/// Starts MPI, runs `body` with the world and this rank's number on its host while the ranks watch each other, and ends
/// MPI. Returns what `body` returns, or throws its error after the world has ended in order; a world that is not whole
/// any more ends the process.
[[nodiscard]] int run_in_mpi_world(const MpiRun& run, const std::function<int(Communicator&, int)>& body);

/// Ranks of an MPI world that share this host, as the launcher says; all of them when it says nothing.
[[nodiscard]] int mpi_ranks_on_host(int world_size);

/// Collective. Every process reads the model for itself; they must have read the same. Throws DataError, or PeerFailed.
void check_same_model(Communicator& comm, const Model& model);

/// Collective. Tokens of a pass that fit into the GPUs of all ranks: equal shares of what the smallest one takes.
[[nodiscard]] std::int64_t world_pass_tokens(Communicator& comm, const Model& model, const Execution& execution);

}  // namespace fenwick
