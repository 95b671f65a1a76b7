// Randomly initialised models in the Hugging Face layout, with flash-linear-attention's names: to start training from,
// and to try things with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

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
    std::int64_t levels = 15;  ///< log-linear families: levels that lambda has
    /// What L starts with: lambda = softplus(L dl). The published start is 1; a smaller one leaves lambda nearly the
    /// same at all levels for longer, the linear form, from which small models learn sooner.
    double level_scale = 1.0;
    double initializer_range = 0.02;  ///< deviation of the weights; of lambda's projections at most 0.02
    // Steps dt are drawn log-uniformly, decay rates a uniformly; a head decays by exp(-a dt) a token where its
    // projection is 0. These are the published ranges: with few heads all of them may start with steps so small that
    // the state hardly counts beside the skip, or forget within some tokens.
    std::pair<double, double> dt_range = {1e-3, 1e-1};
    std::pair<double, double> a_range = {1.0, 16.0};
    std::uint64_t seed = 0;
};

/// Writes config.json and model.safetensors (fp32) into `output`, which is created; the same options make the same
/// bytes. Throws ConfigError for an unknown family, UsageError for sizes or ranges that make no model or a folder that
/// already holds one, UnavailableError when the disk fails.
void write_random_model(const RandomModelOptions& options);

}  // namespace fenwick
