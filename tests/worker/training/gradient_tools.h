// Batches for gradients: documents, their cut over ranks, and the gradients that thread ranks compute together.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backward/cross_entropy.h"
#include "parallel/shard_plan.h"
#include "parallel/thread_world.h"
#include "tests/worker/training/edited_models.h"
#include "worker/training/backprop.h"

namespace fenwick::testing {

inline constexpr std::int32_t kTinyVocab = 37;

/// Two layers of two heads with room for every case, every tensor away from its usual start (norms of ones, biases of
/// zeros), decays from slow to fast; `edit` may change it further.
inline std::filesystem::path make_tiny(const TemporaryModels& models, const std::string& family,
                                       const std::string& name = "", const ModelEdit& edit = nullptr) {
    std::filesystem::path folder = models.root() / ("tiny-" + family + name);
    if (std::filesystem::exists(folder)) return folder;
    RandomModelOptions options;
    options.family = family;
    options.output = models.root() / ("raw-" + family + name);
    options.hidden_size = 24;
    options.layers = 2;
    options.heads = 2;
    options.head_dim = 8;
    options.state_size = 12;
    options.vocab_size = kTinyVocab;
    options.levels = 9;
    options.seed = 5;
    options.initializer_range = 0.25;
    write_random_model(options);
    edit_model(options.output, folder, [&](ModelTensors& tensors, nlohmann::json& config) {
        std::mt19937_64 random(17);
        std::normal_distribution<float> noise(0.0F, 0.2F);
        for (auto& [tensor_name, tensor] : tensors) {
            if (tensor_name.ends_with("dt_bias") || tensor_name.ends_with("A_log")) continue;
            for (float& value : tensor.values) value += noise(random);
        }
        if (edit) edit(tensors, config);
    });
    return folder;
}

/// The same with norms that are no steps (finite_differences_test.cc says why): with the published eps of 1e-6 the
/// rounding of some BLAS kernels alone comes to 2e-5 in Gated DeltaNet's gradients.
inline std::filesystem::path make_smooth_tiny(const TemporaryModels& models, const std::string& family) {
    return make_tiny(models, family, "-smooth",
                     [](ModelTensors&, nlohmann::json& config) { config["norm_eps"] = 0.01; });
}

struct Document {
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> targets;
};

/// `tokens` random ids; every row but the last has a target.
inline Document random_document(std::int64_t tokens, std::uint64_t seed) {
    Document document;
    document.ids = random_ids(tokens, kTinyVocab, seed);
    for (std::size_t t = 1; t < document.ids.size(); ++t) document.targets.push_back(document.ids[t]);
    if (tokens > 0) document.targets.push_back(kNoTarget);
    return document;
}

/// What one rank of `ranks` gets of the documents.
inline std::vector<TrainingDocument> part_of(const std::vector<Document>& documents, int rank, int ranks) {
    std::vector<TrainingDocument> parts;
    for (const Document& document : documents) {
        TrainingDocument part;
        part.plan = make_shard_plan(0, std::ssize(document.ids), ranks);
        const Shard& shard = part.plan.shard(rank);
        const auto cut = [&](const std::vector<std::int32_t>& all) {
            return std::vector(all.begin() + shard.first_token, all.begin() + shard.first_token + shard.tokens);
        };
        part.tokens = cut(document.ids);
        part.targets = cut(document.targets);
        parts.push_back(std::move(part));
    }
    return parts;
}

struct RunOptions {
    int ranks = 1;
    int threads = 1;
    float scale = 1.0F;
    BackpropOptions backprop;
};

/// Sums over the ranks, in their order.
struct BatchResult {
    double nll_sum = 0.0;
    std::int64_t labels = 0;
    std::vector<float> gradients;  // flat, as Model::parameters
};

inline BatchResult run_batch(const std::shared_ptr<Model>& model, const std::vector<Document>& documents,
                             const RunOptions& options = {}) {
    const std::vector<Parameter> parameters = model->parameters();
    std::vector<Gradients> of_rank;
    of_rank.reserve(static_cast<std::size_t>(options.ranks));
    std::vector<StepLoss> losses(static_cast<std::size_t>(options.ranks));
    for (int rank = 0; rank < options.ranks; ++rank) of_rank.emplace_back(parameters);
    run_thread_ranks(options.ranks, [&](Communicator& comm) {
        const auto rank = static_cast<std::size_t>(comm.rank());
        Backprop backprop(model, comm, options.threads, options.backprop);
        losses[rank] = backprop.run(part_of(documents, comm.rank(), comm.size()), options.scale, of_rank[rank]);
    });
    BatchResult result;
    result.gradients.assign(of_rank.front().all().size(), 0.0F);
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
        result.nll_sum += losses[rank].nll_sum;
        result.labels += losses[rank].labels;
        for (std::size_t i = 0; i < result.gradients.size(); ++i) result.gradients[i] += of_rank[rank].all()[i];
    }
    return result;
}

/// Largest over the tensors of |got - want| / |want| (Euclidean norms); a tensor whose gradient is zero in `want` has
/// to be zero. `worst`: its name.
inline double relative_error(const std::vector<Parameter>& parameters, const std::vector<float>& got,
                             const std::vector<float>& want, std::string& worst) {
    double largest = 0.0;
    std::size_t at = 0;
    for (const Parameter& parameter : parameters) {
        double square = 0.0;
        double difference = 0.0;
        for (std::int64_t i = 0; i < parameter.size; ++i, ++at) {
            square += static_cast<double>(want[at]) * want[at];
            difference += (static_cast<double>(got[at]) - want[at]) * (static_cast<double>(got[at]) - want[at]);
        }
        const double error = difference == 0.0 ? 0.0 : std::sqrt(difference / square);
        if (!(error <= largest)) {
            largest = std::isnan(error) ? INFINITY : error;
            worst = parameter.name;
        }
    }
    return largest;
}

}  // namespace fenwick::testing
