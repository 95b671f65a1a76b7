// AdamW over ranks: every rank of the world holds one slice of the flat vector of parameters (parameters.h) with its
// moments, and steps that alone.
//
//   reduce:  g[i] = sum over ranks, in rank order, of their gradients[i], for i of the own slice
//   step:    the own slice by adamw_step (kernels/adamw.h), then every rank's parameters[i] = the slices' values[i]
//
// fp32 master values are the slices; what a rank's model holds is a copy, the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "kernels/adamw.h"
#include "parallel/collectives.h"
#include "parallel/communicator.h"
#include "worker/training/gradients.h"
#include "worker/training/parameters.h"
#include "worker/training/slice_parts.h"
#include "worker/training/training_checkpoint.h"

namespace fenwick {

class ShardedOptimizer {
public:
    /// `parameters`: the model's, whose memory outlives this object. The slice starts with their values and no moments.
    ShardedOptimizer(std::vector<Parameter> parameters, Communicator& world, int threads);

    /// Collective. Sums all ranks' gradients into the slices and returns the norm of the sum, all parameters together;
    /// the same on every rank, not finite where a gradient is not.
    double reduce(Gradients& gradients);

    /// Collective, after `reduce`. One AdamW step with gradients times `gradient_scale`; `update` counts from 1.
    /// `gradients` is room for the new values on their way to the model; what it holds afterwards is of no use.
    void step(const AdamW& hyper, std::int64_t update, float gradient_scale, Gradients& gradients);

    [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
    [[nodiscard]] std::int64_t total() const { return total_; }
    [[nodiscard]] CheckpointSlice slice() const;
    /// Takes the slice and its moments from a checkpoint of the same parameters (TrainingCheckpoint::check_model); the
    /// model has its values after `publish`. Throws DataError when the checkpoint is damaged.
    void restore(const TrainingCheckpoint& checkpoint);
    /// Collective. Gives the slices' values to every rank's model. `gradients` is room as in `step`.
    void publish(Gradients& gradients);

private:
    std::vector<Parameter> parameters_;
    Communicator& world_;
    int threads_;
    std::int64_t total_;
    Slice own_;
    std::vector<SliceRun> runs_;
    Buffer<float> gradient_;
    Buffer<float> values_;
    Buffer<float> exp_avg_;
    Buffer<float> exp_avg_sq_;
};

/// The parameters' places in the flat vector, as checkpoints have them.
[[nodiscard]] std::vector<ParameterPlace> parameter_table(std::span<const Parameter> parameters);

}  // namespace fenwick
