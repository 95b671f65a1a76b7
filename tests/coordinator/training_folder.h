// Scaffolding of the tests of training runs: a folder with a small model and its data, and what a run left behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/coordinator/support.h"

namespace fenwick::testing {

inline constexpr int kTrainingSteps = 24;
inline constexpr std::size_t kTrainingDocumentBytes[] = {300, 1, 77, 150, 64, 200, 5, 129};

/// A folder with a model, a token file, and a configuration of a short run in DIR/checkpoints and DIR/log.
class TrainingFolder {
public:
    TrainingFolder();
    [[nodiscard]] std::filesystem::path path() const { return folder_ / ""; }
    /// The file of a run named `name` that saves every so many steps; `more` goes to its end.
    [[nodiscard]] std::filesystem::path config(const std::string& name, const std::string& more = "",
                                               int steps = kTrainingSteps, int save_steps = 4) const;
    [[nodiscard]] std::filesystem::path run(const std::string& name) const { return folder_ / name; }

private:
    TemporaryFolder folder_;
};

[[nodiscard]] Arguments train(const std::filesystem::path& config, const Arguments& more = {});

/// metrics.jsonl without what depends on the clock.
[[nodiscard]] std::vector<nlohmann::json> rows_of(const std::filesystem::path& run);
/// Whether metrics.jsonl has at least so many whole rows by now.
[[nodiscard]] bool has_rows(const std::filesystem::path& run, std::size_t least);
/// The newest checkpoint's, or 0.
[[nodiscard]] std::int64_t newest_step(const std::filesystem::path& run);
/// Two runs of `steps` steps have the same rows, and the same parameters and moments to the bit.
void require_same_run(const std::filesystem::path& found, const std::filesystem::path& expected,
                      int steps = kTrainingSteps);

}  // namespace fenwick::testing
