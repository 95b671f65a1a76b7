// What the processes of an MPI world agree on before they work together.
#pragma once

#include <cstdint>

#include "coordinator/score_options.h"
#include "parallel/communicator.h"
#include "worker/model.h"

namespace fenwick {

/// Ranks of an MPI world that share this host, as the launcher says; all of them when it says nothing.
[[nodiscard]] int mpi_ranks_on_host(int world_size);

/// Collective. Every process reads the model for itself; they must have read the same. Throws DataError, or PeerFailed.
void check_same_model(Communicator& comm, const Model& model);

/// Collective. Tokens of a pass that fit into the GPUs of all ranks: equal shares of what the smallest one takes.
[[nodiscard]] std::int64_t world_pass_tokens(Communicator& comm, const Model& model, const Execution& execution);

}  // namespace fenwick
