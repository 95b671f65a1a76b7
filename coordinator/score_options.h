// What `fenwick score` was asked for, as given and as understood.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "parallel/world_guard.h"
#include "worker/pass_runner.h"

namespace fenwick {

/// The command line as given; fields have the names of its options.
struct ScoreOptions {
    std::filesystem::path model;
    std::filesystem::path output;
    std::vector<std::filesystem::path> inputs;
    std::optional<int> ranks;        ///< absent: 1, or the size of the MPI world
    std::string device = "auto";     ///< auto, cpu, cuda
    std::string dtype = "auto";      ///< auto, fp32, bf16
    std::string tokenizer = "auto";  ///< auto, bytes, or a SentencePiece model file
    std::string pass_tokens;         ///< a positive multiple of kBlockTokens, "unlimited", or empty: the default
    std::string levels = "extend";   ///< extend, strict
    bool bos = false;
    bool resume = false;
    bool overwrite = false;
    bool json = false;
    double save_seconds = 20;
    double comm_timeout = 30;  ///< seconds; ranks that are processes
};

inline constexpr std::int64_t kUnlimitedPass = 0;
/// Tokens that one rank holds in one pass when --pass-tokens is not given.
inline constexpr std::int64_t kDefaultPassTokensPerRank = 16384;

/// The text of --pass-tokens as a number of tokens; kUnlimitedPass for "unlimited", the default for an empty text.
/// Throws UsageError, naming the nearest multiples, for anything but a positive multiple of kBlockTokens.
[[nodiscard]] std::int64_t parse_pass_tokens(const std::string& text, int ranks);

/// The rank count: `asked`, which must be >= 1 and, when `world_size` > 0 (an MPI world), equal to it.
/// Throws UsageError.
[[nodiscard]] int resolve_ranks(std::optional<int> asked, int world_size);

/// What --device and --dtype come to in this build and on this machine.
struct Execution {
    std::string device;
    std::string dtype;
    int gpu = 0;                       ///< CUDA's number of this rank's GPU
    std::int64_t gpu_pass_tokens = 0;  ///< what fits into the GPUs of all ranks; 0: not asked yet
    double comm_timeout = 30;          ///< seconds
    [[nodiscard]] bool on_gpu() const { return device == "cuda"; }
    [[nodiscard]] Compute compute() const {
        return {on_gpu(), dtype == "bf16", gpu, std::chrono::milliseconds(std::llround(1000 * comm_timeout))};
    }
};

/// For ranks of this process: auto is cuda, and there bf16, where a GPU can be used and there is one rank; else the
/// CPU, which has fp32 alone. The GPU is that of the local rank in SLURM_LOCALID, if any. Throws UnavailableError for
/// cuda where no GPU can be used or with several ranks, UsageError for bf16 on the CPU.
[[nodiscard]] Execution resolve_execution(const std::string& device, const std::string& dtype, int ranks = 1,
                                          const EnvironmentReader& read = process_environment);

/// For ranks that are processes, collective: auto is cuda where this build has NCCL and every rank a GPU of its own.
/// Every rank's GPU is logged by rank 0. Throws as above, on all ranks; one of them tells why.
[[nodiscard]] Execution resolve_world_execution(const std::string& device, const std::string& dtype, Communicator& comm,
                                                int local_rank);

/// Tokens of a pass: what --pass-tokens says, else what fits into the GPU's memory, or the CPU's default.
[[nodiscard]] std::int64_t resolve_pass_tokens(const std::string& text, const Execution& execution, int ranks,
                                               const Model& model);

/// CPU threads for each of `ranks_on_host` ranks: OMP_NUM_THREADS where it is set, else an equal share of the cores
/// that this process may use, at least one. `launched_by_mpi`: each rank is a process, perhaps bound to its cores.
[[nodiscard]] int threads_per_rank(int ranks_on_host, bool launched_by_mpi);

}  // namespace fenwick
