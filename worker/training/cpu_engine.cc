#include "worker/training/cpu_engine.h"

#include <algorithm>
#include <cmath>

#include "kernels/backward/cross_entropy.h"
#include "worker/gpu.h"

namespace fenwick {

CpuEngine::CpuEngine(const std::shared_ptr<Model>& model, Communicator& world, Communicator& group,
                     const BackpropOptions& options, int threads)
    : model_(model),
      group_(group),
      threads_(threads),
      backprop_(model, group, threads, options),
      optimizer_(model->parameters(), world, threads),
      gradients_(optimizer_.parameters()) {}

std::optional<std::int64_t> CpuEngine::first_not_finite_gradient() {
    const std::span<const float> all = gradients_.all();
    const auto bad = std::find_if(all.begin(), all.end(), [](float value) { return !std::isfinite(value); });
    if (bad == all.end()) return std::nullopt;
    return bad - all.begin();
}

void CpuEngine::losses(std::span<const TrainingDocument> documents, const RowScores& scores) {
    if (prefill_ == nullptr) prefill_ = std::make_unique<Prefill>(model_, group_, threads_);
    std::span<float> nll = scores.nll;
    std::span<std::uint8_t> most_likely = scores.most_likely;
    for (const TrainingDocument& document : documents) {
        std::vector<std::int32_t> targets = document.targets;
        std::replace(targets.begin(), targets.end(), kNoTarget, 0);  // a loss that is not looked at
        const std::span<float> own = nll.first(targets.size());
        prefill_->reset();
        prefill_->forward(document.plan, document.tokens);
        if (!targets.empty()) prefill_->losses(targets, own, most_likely.data());
        for (std::size_t t = 0; t < targets.size(); ++t) {
            if (document.targets[t] != kNoTarget) continue;
            own[t] = 0.0F;
            most_likely[t] = 0;
        }
        nll = nll.subspan(targets.size());
        most_likely = most_likely.subspan(targets.size());
    }
}

std::unique_ptr<TrainingEngine> make_training_engine(const std::shared_ptr<Model>& model, Communicator& world,
                                                     const TrainingRanks& ranks, const BackpropOptions& options,
                                                     int threads, const Compute& compute) {
    if (compute.gpu) return make_gpu_engine(model, world, ranks, options, compute);
    return std::make_unique<CpuEngine>(model, world, ranks.group(), options, threads);
}

}  // namespace fenwick
