// Randomly initialised models in the Hugging Face layout, with flash-linear-attention's names: to start training from,
// and to try things with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fenwick {

struct RandomModelOptions {
    std::string family = "log_linear_mamba2";
    std::filesystem::path output;
    std::int64_t hidden_size = 128;
    std::int64_t layers = 2;
    std::int64_t heads = 8;
    std::int64_t head_dim = 32;    ///< Mamba-2: d_v; Gated DeltaNet: d_k (d_v is twice that)
    std::int64_t state_size = 64;  ///< Mamba-2: d_k; Gated DeltaNet does not use it
    std::int64_t vocab_size = 256;
    std::int64_t levels = 15;         ///< log-linear families: levels that lambda has
    double initializer_range = 0.02;  ///< deviation of the weights
    std::uint64_t seed = 0;
};

/// Writes config.json and model.safetensors (fp32) into `output`, which is created; the same options make the same
/// bytes. Throws ConfigError for an unknown family, UsageError for sizes that make no model or a folder that already
/// holds one, UnavailableError when the disk fails.
void write_random_model(const RandomModelOptions& options);

}  // namespace fenwick
