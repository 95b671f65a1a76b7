// What the benchmarks of a whole model share: the model's options on the command line, and a clock.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/worker/small_models.h"

namespace fenwick::testing {

inline double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Adds the options of a random model and of the documents' lengths; `options` and `lengths` hold the defaults.
inline void add_model_options(CLI::App& app, RandomModelOptions& options, std::vector<std::int64_t>& lengths) {
    app.add_option("--family", options.family, "model family");
    app.add_option("--hidden", options.hidden_size, "hidden size");
    app.add_option("--layers", options.layers, "layers");
    app.add_option("--heads", options.heads, "heads");
    app.add_option("--head-dim", options.head_dim, "head dimension");
    app.add_option("--state", options.state_size, "state size");
    app.add_option("--vocab", options.vocab_size, "vocabulary");
    app.add_option("tokens", lengths, "document lengths");
}

}  // namespace fenwick::testing
