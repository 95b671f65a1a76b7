#include "coordinator/mpi_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>

#include "coordinator/gang_host.h"
#include "core/errors.h"
#include "parallel/world_guard.h"

namespace fenwick {

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

}  // namespace fenwick
