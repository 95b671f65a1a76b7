// The configuration file of `fenwick train`. worker/training/README.md explains every key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "worker/training/train_settings.h"

namespace fenwick {

struct TrainConfig {
    std::filesystem::path model;  ///< folder of the model to start from
    std::string device = "cpu";   ///< "cpu" or "cuda"
    std::string dtype = "fp32";   ///< "fp32", or on the GPU "bf16"
    TrainSettings training;
    std::filesystem::path checkpoints;
    std::int64_t checkpoint_steps = 1000;  ///< between checkpoints; the last step has one in any case
    std::int64_t keep = 3;                 ///< checkpoints
    std::filesystem::path log;
    std::int64_t log_steps = 1;
};

/// Relative paths are relative to the file's folder. Throws ConfigError for text that is no TOML, an unknown key, a
/// value of the wrong type or out of range, and settings that contradict each other, naming file, key, expected, found.
[[nodiscard]] TrainConfig read_train_config(const std::filesystem::path& file);

}  // namespace fenwick
