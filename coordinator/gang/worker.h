// `fenwick worker`: the life of one rank of a gang that serves a coordinator.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fenwick {

struct WorkerOptions {
    std::string coordinator;                    ///< HOST:PORT
    std::string name;                           ///< of the gang, for people; empty: host and process of rank 0
    std::vector<std::filesystem::path> models;  ///< that this gang has; empty: the paths that the coordinator says
    std::string device = "auto";
    std::string dtype = "auto";
    std::string pass_tokens;
    std::string token;  ///< of the coordinator's configuration
    std::filesystem::path token_file;
    std::filesystem::path state_folder;
    std::filesystem::path tls_authority;
    std::filesystem::path tls_certificate;
    std::filesystem::path tls_key;
    double reconnect_seconds = 600;
    double exit_when_idle = -1;  ///< seconds; negative: never
};

/// Under mpirun or srun every process calls it; alone it is a gang of one rank. Returns the exit code: 0 after a drain
/// or an idle time, 75 after a signal. Throws fenwick::Error.
[[nodiscard]] int run_worker(const WorkerOptions& options);

}  // namespace fenwick
