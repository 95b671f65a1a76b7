// One rank's part of a pass: embeddings, layers with their exchanges, final norm. DESIGN section 4, "One layer, one
// pass".
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/exchange.h"
#include "parallel/halo.h"
#include "parallel/shard_plan.h"
#include "worker/arena.h"
#include "worker/model.h"
#include "worker/pass_runner.h"

namespace fenwick {

class Prefill final : public PassRunner {
public:
    /// `threads`: CPU threads of this rank.
    Prefill(std::shared_ptr<const Model> model, Communicator& comm, int threads);

    void reset() override;
    void run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                  std::span<float> nll) override;

    /// Collective. Runs the pass `plan` (which starts where the last one ended) over this rank's tokens and returns the
    /// hidden states after the final norm, [tokens.size(), hidden]; valid until the next call.
    MatrixView<const float> forward(const ShardPlan& plan, std::span<const std::int32_t> tokens);

    /// Losses of `targets` (the tokens after each of the first targets.size() rows of the last `forward`).
    /// `most_likely` as cross_entropy's (kernels/cross_entropy.h).
    void losses(std::span<const std::int32_t> targets, std::span<float> nll, std::uint8_t* most_likely = nullptr);

    [[nodiscard]] std::vector<LayerCarry>& carries() override { return carries_; }
    void collect_carries() override {}
    void carries_changed(std::int64_t /*position*/) override {}
    [[nodiscard]] const Model& model() const override { return *model_; }

private:
    void run_layer(const LayerParts& layer, LayerCarry& carry, const ShardPlan& plan, const ExchangeSchedule& schedule,
                   MatrixView<float> x);
    MatrixView<float> convolve(const TokenMixer& mixer, LayerCarry& carry, const ShardPlan& plan,
                               MatrixView<float> projected);
    MatrixView<float> mix(const TokenMixer& mixer, LayerCarry& carry, const Shard& shard,
                          const ExchangeSchedule& schedule, const MixerInputs& inputs);

    std::shared_ptr<const Model> model_;
    Communicator& comm_;
    int threads_;
    Arena arena_;
    Buffer<float> x_;
    MatrixView<const float> hidden_;
    std::vector<LayerCarry> carries_;
};

}  // namespace fenwick
