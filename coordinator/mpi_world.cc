#include "coordinator/mpi_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <vector>

#include "coordinator/gang_host.h"
#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/world_guard.h"
#include "worker/gpu.h"

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
