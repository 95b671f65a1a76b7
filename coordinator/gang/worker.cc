#include "coordinator/gang/worker.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <exception>
#include <optional>

#include "coordinator/address.h"
#include "coordinator/gang/gang_session.h"
#include "coordinator/mpi_world.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"
#include "parallel/mpi_communicator.h"
#include "parallel/self_communicator.h"
#include "parallel/world_guard.h"

namespace fenwick {
namespace {

int run_session(const WorkerOptions& options, Communicator& comm, Launch launch, std::atomic<bool>* stop_mpi) {
    guard_world(comm);
    if (comm.rank() != 0) spdlog::set_level(spdlog::level::err);
    GangSession session(options, comm, launch, stop_mpi);
    const int code = session.run();
    session.say_bye();
    return code;
}

int run_under_mpi(const WorkerOptions& options) {
    std::atomic<bool> stop{false};
    int code = 0;
    std::exception_ptr error;
    {
        const MpiEnvironment environment;
        MpiCommunicator comm(MpiOptions{.timeout = std::nullopt, .stop = &stop});
        // Errors that every rank knows of leave the world whole: it is ended in order before they go on.
        try {
            const Launch launch{true, mpi_ranks_on_host(comm.size()), comm.local_rank()};
            code = run_session(options, comm, launch, &stop);
        } catch (...) {
            error = std::current_exception();
        }
        // Told to stop, the ranks do not wait for each other any more: one of them may be dead.
        if (stop.load()) {
            comm.abort("the coordinator gave this gang up", ExitCode::kUnavailable);
        }
    }
    if (error != nullptr) std::rethrow_exception(error);
    return code;
}

}  // namespace

int run_worker(const WorkerOptions& options) {
    (void)parse_address(options.coordinator, "--coordinator");
    if (!options.tls_certificate.empty() && (options.tls_authority.empty() || options.tls_key.empty())) {
        throw UsageError("--tls-certificate: needs --tls-ca and --tls-key, too");
    }
    catch_stop_signals();
    if (launched_under_mpi()) return run_under_mpi(options);
    SelfCommunicator self;
    std::atomic<bool> stop{false};
    return run_session(options, self, {}, &stop);
}

}  // namespace fenwick
