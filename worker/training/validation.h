// The loss on data that is not trained on, along the way. Forward passes alone, over the same groups as training's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/communicator.h"
#include "worker/training/dataset.h"
#include "worker/training/train_settings.h"
#include "worker/training/training_engine.h"
#include "worker/training/training_ranks.h"

namespace fenwick {

/// Means over labels; none without labels.
struct MeanLoss {
    std::int64_t labels = 0;
    std::optional<double> loss;      ///< nats
    std::optional<double> accuracy;  ///< share of labels that no other token was more likely than
};

struct ValidationResult {
    MeanLoss all;
    /// Bucket 0: position 0 of the sequences; bucket b: positions [2^(b-1), 2^b). A position's loss is that of the
    /// token after it. As many buckets as the longest sequence needs.
    std::vector<MeanLoss> by_position;
};

class Validation {
public:
    /// `world`, `ranks` and `engine`, whose values are taken as they are at every run, outlive this object; `model` is
    /// the engine's. Throws as Dataset, and DataError for data that the model has no ids for.
    Validation(std::shared_ptr<const Model> model, Communicator& world, const TrainingRanks& ranks,
               const TrainSettings& settings, TrainingEngine& engine);

    /// Collective. The first micro-batches of the files' order, each whole document or piece from an empty state.
    [[nodiscard]] ValidationResult run();

private:
    std::shared_ptr<const Model> model_;
    Communicator& world_;
    const TrainingRanks& ranks_;
    std::int64_t batches_;
    Dataset data_;
    TrainingEngine& engine_;
};

}  // namespace fenwick
