// What `fenwick score` was asked for, as given and as understood.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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

/// What --device and --dtype come to in this build and on this machine. auto is cuda, and there bf16, where a GPU can
/// be used and there is one rank; else the CPU, which has fp32 alone. Throws UnavailableError for cuda where no GPU can
/// be used or with several ranks, UsageError for bf16 on the CPU.
struct Execution {
    std::string device;
    std::string dtype;
    [[nodiscard]] bool on_gpu() const { return device == "cuda"; }
    [[nodiscard]] Compute compute() const { return {on_gpu(), dtype == "bf16"}; }
};
[[nodiscard]] Execution resolve_execution(const std::string& device, const std::string& dtype, int ranks = 1);

/// Tokens of a pass: what --pass-tokens says, else what fits into the GPU's memory, or the CPU's default.
[[nodiscard]] std::int64_t resolve_pass_tokens(const std::string& text, const Execution& execution, int ranks,
                                               const Model& model);

/// CPU threads for each of `ranks_on_host` ranks: OMP_NUM_THREADS where it is set, else an equal share of the cores
/// that this process may use, at least one. `launched_by_mpi`: each rank is a process, perhaps bound to its cores.
[[nodiscard]] int threads_per_rank(int ranks_on_host, bool launched_by_mpi);

}  // namespace fenwick
