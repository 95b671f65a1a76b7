// What a training run tells of its steps: lines on stdout, metrics.jsonl, TensorBoard's event files, a progress bar.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "coordinator/progress.h"
#include "worker/training/event_file.h"
#include "worker/training/trainer.h"
#include "worker/training/validation.h"

namespace fenwick {

struct TrainLogOptions {
    std::filesystem::path folder;
    std::int64_t every_steps = 1;
    std::int64_t steps = 0;               ///< of the whole run
    std::optional<std::int64_t> resumed;  ///< the step that a resumed run goes on after; its later rows are cut off
    double peak_flops = 0.0;              ///< a second, of all ranks: what the MFU is measured against
    bool json = false;                    ///< the report alone on stdout, no progress
};

/// Rank 0's.
class TrainLog {
public:
    /// Throws UnavailableError.
    explicit TrainLog(const TrainLogOptions& options);

    /// A step that took `seconds`; `validation` where it was followed by one. Rows are written where `every_steps`
    /// says, with a validation, and after the last step. Rates are of all steps since the last row.
    void step(const StepResult& result, double seconds, const std::optional<ValidationResult>& validation);
    /// Everything so far is on the disk.
    void sync();
    /// At the end of the run.
    void report(const TrainerState& state, const std::filesystem::path& checkpoint);

private:
    TrainLogOptions options_;
    MetricsFile metrics_;
    EventFile events_;
    Progress progress_;
    double seconds_ = 0.0;  // since the last row, as the two below
    double flops_ = 0.0;
    std::int64_t tokens_ = 0;
    double all_seconds_ = 0.0;
    std::int64_t all_tokens_ = 0;
};

}  // namespace fenwick
