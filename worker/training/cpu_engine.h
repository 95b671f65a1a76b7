// Training on the CPU: Backprop, its gradients and the sharded optimiser as one engine.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/prefill.h"
#include "worker/training/gradients.h"
#include "worker/training/sharded_optimizer.h"
#include "worker/training/training_engine.h"

namespace fenwick {

class CpuEngine final : public TrainingEngine {
public:
    /// As make_training_engine.
    CpuEngine(const std::shared_ptr<Model>& model, Communicator& world, Communicator& group,
              const BackpropOptions& options, int threads);

    [[nodiscard]] const std::vector<Parameter>& parameters() const override { return optimizer_.parameters(); }
    void zero_gradients() override { gradients_.zero(); }
    StepLoss run(std::span<const TrainingDocument> documents, float gradient_scale) override {
        return backprop_.run(documents, gradient_scale, gradients_);
    }
    [[nodiscard]] double reduce() override { return optimizer_.reduce(gradients_); }
    void step(const AdamW& hyper, std::int64_t update, float gradient_scale) override {
        optimizer_.step(hyper, update, gradient_scale, gradients_);
    }
    [[nodiscard]] std::int64_t first_not_finite_rows() const override { return backprop_.first_not_finite(); }
    [[nodiscard]] std::optional<std::int64_t> first_not_finite_gradient() override;
    [[nodiscard]] CheckpointSlice slice() override { return optimizer_.slice(); }
    void restore(const TrainingCheckpoint& checkpoint) override { optimizer_.restore(checkpoint); }
    void publish() override { optimizer_.publish(gradients_); }
    void losses(std::span<const TrainingDocument> documents, const RowScores& scores) override;

private:
    std::shared_ptr<const Model> model_;
    Communicator& group_;
    int threads_;
    Backprop backprop_;
    ShardedOptimizer optimizer_;
    Gradients gradients_;
    std::unique_ptr<Prefill> prefill_;  // made when it is first needed
};

}  // namespace fenwick
