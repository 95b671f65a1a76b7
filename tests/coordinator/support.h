// Scaffolding of the coordinator's tests: temporary folders, small models, and the real program as a child process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/temporary_folder.h"

namespace fenwick::testing {

void write_file(const std::filesystem::path& file, const std::string& text);
[[nodiscard]] std::string read_file(const std::filesystem::path& file);
[[nodiscard]] std::vector<nlohmann::json> read_jsonl(const std::filesystem::path& file);
/// `bytes` printable characters that repeat with no short period; equal for equal arguments.
[[nodiscard]] std::string text_of(std::size_t bytes, std::uint32_t seed);

using Arguments = std::vector<std::string>;

struct Finished {
    int code = -1;    ///< exit code, or -1 when a signal ended the process
    int signal = 0;   ///< that signal
    std::string out;  ///< stdout
    std::string err;  ///< stderr
};

/// A running program with its output in files. Killed, if it still runs, by the destructor.
class Child {
public:
    /// `file_size_limit`: RLIMIT_FSIZE of the child. `program`: path, or a name looked up in PATH.
    explicit Child(const Arguments& arguments, std::optional<std::uint64_t> file_size_limit = std::nullopt,
                   const std::string& program = FENWICK_PROGRAM);
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child();
    void send(int signal) const;
    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] Finished wait();
    /// What it has written to stdout so far.
    [[nodiscard]] std::string output() const;

private:
    TemporaryFolder outputs_;
    pid_t pid_ = -1;
};

[[nodiscard]] Finished run_program(const Arguments& arguments);

/// A random model of the family in `folder`/FAMILY: one layer of two heads, the smallest that has every part.
[[nodiscard]] std::filesystem::path small_model(const TemporaryFolder& folder,
                                                const std::string& family = "log_linear_mamba2");

/// Returns when `condition` holds; fails the test after two minutes.
void wait_for(const std::function<bool()>& condition);
/// Returns when an unfinished NLL file holds losses: at least one pass is over.
void wait_for_losses(const std::filesystem::path& file);

/// Rows without what depends on time.
[[nodiscard]] std::vector<nlohmann::json> without_timing(std::vector<nlohmann::json> rows);

/// The losses in a results NLL file; checks that header and size agree.
[[nodiscard]] std::vector<float> read_nll(const std::filesystem::path& file);

/// Requires that two complete outputs hold the same rows, apart from timing and ranks, and the same NLL bytes.
void require_same_output(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace fenwick::testing
