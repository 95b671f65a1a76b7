// What a trainer needs of whatever computes: the gradients of micro-batches, their sum over ranks, the optimiser's
// step, and the numbers that a checkpoint keeps. The CPU's is cpu_engine.h; worker/cuda/training/gpu_engine.h a rank's
// GPU, with everything on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/adamw.h"
#include "worker/pass_runner.h"
#include "worker/training/backprop.h"
#include "worker/training/parameters.h"
#include "worker/training/training_checkpoint.h"
#include "worker/training/training_ranks.h"

namespace fenwick {

class TrainingEngine {
public:
    virtual ~TrainingEngine() = default;

    /// Of the model, in the order of the flat vectors.
    [[nodiscard]] virtual const std::vector<Parameter>& parameters() const = 0;

    virtual void zero_gradients() = 0;
    /// Collective over the group: as Backprop::run, into this engine's gradients.
    virtual StepLoss run(std::span<const TrainingDocument> documents, float gradient_scale) = 0;
    /// Collective over the world. Sums all ranks' gradients and returns the norm of the sum, all parameters together;
    /// the same on every rank, not finite where a gradient is not.
    [[nodiscard]] virtual double reduce() = 0;
    /// Collective, after `reduce`: one AdamW step with gradients times `gradient_scale`; `update` counts from 1. The
    /// gradients are of no use afterwards.
    virtual void step(const AdamW& hyper, std::int64_t update, float gradient_scale) = 0;

    /// Of the last `run`, on this rank: as Backprop::first_not_finite.
    [[nodiscard]] virtual std::int64_t first_not_finite_rows() const = 0;
    /// Flat position of this rank's first gradient that is not finite, before they were summed. Until `step`.
    [[nodiscard]] virtual std::optional<std::int64_t> first_not_finite_gradient() = 0;

    /// This rank's slice, for checkpoints; valid until the next call.
    [[nodiscard]] virtual CheckpointSlice slice() = 0;
    /// Takes the slice and its moments from a checkpoint of the same parameters; every rank has all values after
    /// `publish`. Throws DataError when the checkpoint is damaged.
    virtual void restore(const TrainingCheckpoint& checkpoint) = 0;
    /// Collective. Gives the slices' values to every rank.
    virtual void publish() = 0;

    /// Collective over the group. Losses of the documents' rows on this rank, one document after the other, with the
    /// values as they are.
    virtual void losses(std::span<const TrainingDocument> documents, const RowScores& scores) = 0;
};

/// `model`: this rank's own, loaded for training. `ranks` are of `world`; both outlive the engine. `threads`: CPU
/// threads of this rank. Collective where compute.gpu. Throws UnavailableError when a GPU is asked for that cannot be
/// used.
[[nodiscard]] std::unique_ptr<TrainingEngine> make_training_engine(const std::shared_ptr<Model>& model,
                                                                   Communicator& world, const TrainingRanks& ranks,
                                                                   const BackpropOptions& options, int threads,
                                                                   const Compute& compute);

}  // namespace fenwick
