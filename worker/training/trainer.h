// One rank of a training run: steps, their data, and what a checkpoint keeps of them.
//
// A step's objective is the sum over all its scored tokens, on all ranks and in all micro-batches, of their losses,
// divided by their number: never a mean of means. A step without a scored token changes nothing but the position.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "worker/model.h"
#include "worker/training/dataset.h"
#include "worker/training/train_settings.h"
#include "worker/training/training_checkpoint.h"
#include "worker/training/training_engine.h"
#include "worker/training/training_ranks.h"

namespace fenwick {

/// How far a run has come: with the flat vectors all that a checkpoint needs.
struct TrainerState {
    std::int64_t step = 0;       ///< steps done
    std::int64_t updates = 0;    ///< of the parameters: steps that had scored tokens
    std::int64_t tokens = 0;     ///< seen by the model, over all steps
    std::int64_t labels = 0;     ///< scored tokens
    DataPosition position;       ///< of the next step's data
    std::optional<double> loss;  ///< of the last step that had one
};

/// What a step did; the same on every rank.
struct StepResult {
    TrainerState state;          ///< after the step
    std::optional<double> loss;  ///< nats a scored token, before the update; none without such a token
    std::int64_t tokens = 0;     ///< of this step
    std::int64_t labels = 0;     ///< of this step
    double learning_rate = 0.0;
    double gradient_norm = 0.0;  ///< before clipping
    double flops = 0.0;          ///< useful ones: three times the forward pass's (DESIGN section 8)
    /// Not empty: the loss or a gradient was not finite, for this reason. Then nothing was changed: neither parameters
    /// nor state.
    std::string failure;
};

class Trainer {
public:
    /// Collective over `world`, which outlives this object. `model`: this rank's own, loaded for training; it changes
    /// with every step. `folder`: where the model came from. Throws UsageError for a world that does not fit
    /// `settings.sequence_ranks`, DataError for data that the model has no ids for, and as make_training_engine.
    Trainer(std::shared_ptr<Model> model, Communicator& world, const TrainSettings& settings, int threads,
            const Compute& compute = {});

    /// Collective.
    [[nodiscard]] StepResult step();

    [[nodiscard]] const TrainerState& state() const { return state_; }
    [[nodiscard]] const Dataset& data() const { return data_; }
    [[nodiscard]] const TrainingRanks& ranks() const { return ranks_; }
    /// This rank's part of values and moments.
    [[nodiscard]] CheckpointSlice slice() { return engine_->slice(); }
    [[nodiscard]] TrainingEngine& engine() { return *engine_; }

    /// Collective. `model_config`: text of the model's config.json. Throws as write_training_checkpoint.
    std::filesystem::path save(const std::filesystem::path& folder, const std::string& model_config, int keep);
    /// Goes on from a checkpoint of whatever world, once `publish` has been called as well. `model_config` as in
    /// `save`. Throws DataError when it belongs to another model or is damaged, UsageError when its position in the
    /// data means nothing here.
    void restore(const TrainingCheckpoint& checkpoint, const std::string& model_config);
    /// Collective, after all ranks' `restore`: every rank's model gets the restored values.
    void publish() { engine_->publish(); }

private:
    struct Batch {
        std::vector<TrainingDocument> documents;
        std::int64_t tokens = 0;  // of the whole documents
        double flops = 0.0;
    };
    [[nodiscard]] std::vector<Batch> next_batches(DataPosition& position) const;
    [[nodiscard]] std::string why_not_finite(std::int64_t bad_layer, std::int64_t step);

    std::shared_ptr<Model> model_;
    Communicator& world_;
    TrainSettings settings_;
    TrainingRanks ranks_;
    Dataset data_;
    std::unique_ptr<TrainingEngine> engine_;
    TrainerState state_;
};

}  // namespace fenwick
