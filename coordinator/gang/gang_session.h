// The life of one rank of a gang, from its first words to the coordinator to its last.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/gang/control_client.h"
#include "coordinator/gang/lease_run.h"
#include "coordinator/gang/worker.h"
#include "coordinator/gang_host.h"
#include "coordinator/score_options.h"
#include "parallel/communicator.h"
#include "worker/model.h"

namespace fenwick {

/// How this rank was started.
struct Launch {
    bool by_mpi = false;
    int ranks_on_host = 1;
    int local_rank = 0;
};

/// Rank 0 asks for leases and leads; the other ranks load the models that it says and serve.
class GangSession {
public:
    /// `stop_mpi` is set when the coordinator gives the gang up: the ranks must not wait for each other any more.
    GangSession(const WorkerOptions& options, Communicator& comm, Launch launch, std::atomic<bool>* stop_mpi);

    /// Collective. Returns the exit code. Throws fenwick::Error.
    int run();
    void say_bye();

private:
    struct Order;

    // All ranks.
    void learn_models();
    void connect();
    void serve(const std::filesystem::path& path);
    [[nodiscard]] std::optional<std::string> load_model(const std::filesystem::path& path);

    // Rank 0.
    Order next_order();
    void wait_for_grant();
    void look_for_grant(std::uint64_t& asked);
    void refuse_grant(const std::string& why);
    void lead(LedGang& gang, const LeaseSettings& settings);
    void end_with(ExitCode code, const std::string& reason);
    [[nodiscard]] std::filesystem::path path_of(const idl::Grant& grant) const;

    const WorkerOptions& options_;
    Communicator& comm_;
    Launch launch_;
    int threads_;
    std::atomic<bool>* stop_mpi_;
    Execution execution_;
    std::shared_ptr<const Model> model_;
    std::filesystem::path model_path_;
    std::vector<std::pair<std::string, std::filesystem::path>> known_;  ///< hashes and folders
    std::unique_ptr<ControlClient> client_;
    std::optional<idl::Grant> grant_;
    std::uint64_t grant_session_ = 0;  ///< of `client_`, in which it came
    std::optional<ExitCode> end_;      ///< rank 0: the gang is to end
    std::string end_reason_;
};

}  // namespace fenwick
