// What a training run is asked to do, apart from where its files lie. README.md explains every setting.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "worker/training/schedule.h"

namespace fenwick {

/// The data of a step: `micro_batches` micro-batches of at most `batch_tokens` tokens, whatever the world; group g of G
/// takes those of numbers g, g + G, ...
struct DataSettings {
    std::vector<std::filesystem::path> files;  ///< token files (core/token_file.h)
    std::int64_t sequence_tokens = 4096;       ///< longer documents are cut
    std::int64_t batch_tokens = 4096;          ///< of a micro-batch, >= sequence_tokens
    std::int64_t micro_batches = 1;            ///< of a step
    std::uint64_t seed = 0;                    ///< of the order of documents
};

struct OptimizerSettings {
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip_norm = 1.0;  ///< largest norm of all gradients together; 0: no limit
};

struct ValidationSettings {
    std::vector<std::filesystem::path> files;  ///< none: no validation
    std::int64_t every_steps = 0;
    std::int64_t sequence_tokens = 4096;  ///< longer documents are cut
    std::int64_t batches = 1;             ///< micro-batches, as training's; always the first ones of the files' order
    bool by_position = false;             ///< also the loss of positions [2^k, 2^(k+1)) in their sequences
};

struct TrainSettings {
    DataSettings data;
    OptimizerSettings optimizer;
    Schedule schedule;
    ValidationSettings validation;
    double z_loss = 0.0;     ///< of logsumexp^2, added to each token's objective; not part of the reported loss
    bool recompute = true;   ///< keep each layer's input rows alone
    int sequence_ranks = 1;  ///< ranks of a group, which work on the same documents; the world is a multiple
};

}  // namespace fenwick
