// Training on the GPU beside the CPU's: engines of both on the same documents, and how far their gradients are apart.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/backward/cross_entropy.h"
#include "parallel/cuda/self_device.h"
#include "parallel/thread_world.h"
#include "tests/parallel/cuda/staged_device.h"
#include "tests/worker/small_models.h"
#include "tests/worker/training/edited_models.h"
#include "worker/cuda/training/gpu_engine.h"
#include "worker/training/cpu_engine.h"
#include "worker/training/training_data.h"

namespace fenwick::testing {

/// A small model whose norms are no steps (tests/worker/training/finite_differences_test.cc says why): gradients that
/// rounding does not tear apart. `wide`: of sizes that the matrix units take.
inline std::filesystem::path make_smooth(const TemporaryModels& models, const std::string& family, bool wide = false) {
    const std::filesystem::path folder = models.root() / ((wide ? "smooth_wide_" : "smooth_") + family);
    if (std::filesystem::exists(folder)) return folder;
    edit_model(wide ? models.make_wide(family) : models.make(family), folder,
               [](ModelTensors&, nlohmann::json& config) { config["norm_eps"] = 0.01; });
    return folder;
}

using Documents = std::vector<std::vector<std::int32_t>>;

/// This rank's parts; every 7th token of a document is not scored, nor is its last.
inline std::vector<TrainingDocument> parts_of(const Documents& documents, const Communicator& group) {
    std::vector<TrainingDocument> parts;
    for (const std::vector<std::int32_t>& ids : documents) {
        Sequence sequence;
        sequence.tokens = ids;
        sequence.targets.assign(ids.begin() + 1, ids.end());
        sequence.targets.push_back(kNoTarget);
        for (std::size_t t = 6; t < ids.size(); t += 7) sequence.targets[t] = kNoTarget;
        parts.push_back(own_part(sequence, 0.0, group));
    }
    return parts;
}

inline Documents random_documents(const std::vector<std::int64_t>& lengths, std::uint64_t seed = 5) {
    Documents documents;
    for (const std::int64_t length : lengths) documents.push_back(random_ids(length, 256, seed++));
    return documents;
}

inline std::int64_t labels_of(const Documents& documents) {
    std::int64_t labels = 0;
    const SelfCommunicator self;
    for (const TrainingDocument& document : parts_of(documents, self)) {
        labels +=
            std::ssize(document.targets) - std::count(document.targets.begin(), document.targets.end(), kNoTarget);
    }
    return labels;
}

/// What one run gives: the sum of losses and all gradients of their mean, summed over ranks.
struct Pass {
    double nll = 0.0;
    std::vector<double> gradients;
};

/// `changed`: every value is first changed by a random part of itself of at most so much.
inline Pass cpu_pass(const std::filesystem::path& folder, const Documents& documents, float z_loss = 0.0F,
                     double changed = 0.0) {
    SelfCommunicator self;
    const std::shared_ptr<Model> model = Model::load_for_training(folder);
    std::mt19937_64 random(17);
    std::uniform_real_distribution<double> part(-changed, changed);
    for (const Parameter& parameter : model->parameters()) {
        for (std::int64_t i = 0; changed > 0.0 && i < parameter.size; ++i) {
            parameter.values[i] = static_cast<float>(static_cast<double>(parameter.values[i]) * (1.0 + part(random)));
        }
    }
    Gradients gradients(model->parameters());
    Backprop backprop(model, self, 2, {true, z_loss});
    const auto scale = static_cast<float>(1.0 / static_cast<double>(labels_of(documents)));
    Pass pass;
    pass.nll = backprop.run(parts_of(documents, self), scale, gradients).nll_sum;
    pass.gradients.assign(gradients.all().begin(), gradients.all().end());
    return pass;
}

/// Calls body(engine, group) on `ranks` ranks that share this GPU; `sequence` of them to a group. Where places are
/// limited, every rank has room for one more than the rank before it.
template <class Body>
void with_gpu_engines(const std::filesystem::path& folder, int ranks, int sequence, cuda::Operand operand,
                      const cuda::GpuBackpropOptions& options, const Body& body) {
    const auto rank = [&](Communicator& world, std::unique_ptr<cuda::DeviceCommunicator> device) {
        const TrainingRanks training(world, sequence);
        cuda::GpuBackpropOptions own = options;
        if (own.most_places > 0) own.most_places += world.rank();
        cuda::GpuEngine engine(Model::load_for_training(folder), world, training, operand, std::move(device), own);
        body(engine, training);
    };
    if (ranks == 1) {
        SelfCommunicator self;
        return rank(self, std::make_unique<cuda::SelfDeviceCommunicator>());
    }
    run_thread_ranks(ranks,
                     [&](Communicator& world) { rank(world, std::make_unique<StagedDeviceCommunicator>(world)); });
}

inline Pass gpu_pass(const std::filesystem::path& folder, const Documents& documents, cuda::Operand operand,
                     int ranks = 1, const cuda::GpuBackpropOptions& options = {}) {
    Pass pass;
    std::mutex mutex;
    const auto scale = static_cast<float>(1.0 / static_cast<double>(labels_of(documents)));
    with_gpu_engines(folder, ranks, ranks, operand, options,
                     [&](cuda::GpuEngine& engine, const TrainingRanks& training) {
                         const double nll = engine.run(parts_of(documents, training.group()), scale).nll_sum;
                         const std::vector<float> gradients = engine.gradients();
                         const std::lock_guard<std::mutex> lock(mutex);
                         pass.nll += nll;
                         pass.gradients.resize(gradients.size(), 0.0);
                         for (std::size_t i = 0; i < gradients.size(); ++i)
                             pass.gradients[i] += static_cast<double>(gradients[i]);
                     });
    return pass;
}

/// Norm of the difference over the norm of what is wanted, of the parameter that is worst and of all together.
struct GradientError {
    double all = 0.0;
    double worst = 0.0;
    std::string name;
};

inline GradientError gradient_error(const std::filesystem::path& folder, const Pass& got, const Pass& want) {
    REQUIRE(got.gradients.size() == want.gradients.size());
    const std::shared_ptr<Model> model = Model::load_for_training(folder);
    GradientError error;
    double all = 0.0;
    double all_wanted = 0.0;
    std::size_t i = 0;
    for (const Parameter& parameter : model->parameters()) {
        double sum = 0.0;
        double wanted = 0.0;
        for (std::int64_t k = 0; k < parameter.size; ++k, ++i) {
            const double difference = got.gradients[i] - want.gradients[i];
            sum += difference * difference;
            wanted += want.gradients[i] * want.gradients[i];
        }
        all += sum;
        all_wanted += wanted;
        double relative = wanted > 0.0 ? std::sqrt(sum / wanted) : (sum > 0.0 ? INFINITY : 0.0);
        if (std::isnan(relative)) relative = INFINITY;
        if (relative > error.worst) {
            error.worst = relative;
            error.name = parameter.name;
        }
    }
    error.all = std::sqrt(all / all_wanted);
    return error;
}

}  // namespace fenwick::testing
