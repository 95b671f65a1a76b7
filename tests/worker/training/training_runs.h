// Small training runs for tests: a tiny model, token files, and trainers on thread ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/scratch_folder.h"
#include "core/token_file.h"
#include "parallel/thread_world.h"
#include "worker/init.h"
#include "worker/training/trainer.h"

namespace fenwick::testing {

inline constexpr std::int32_t kTinyVocab = 32;

/// A model of 2 layers and 2 heads, of the smallest sizes that have every part.
inline std::filesystem::path tiny_model(const ScratchFolder& folder, const std::string& family,
                                        const std::string& name = "model") {
    RandomModelOptions options;
    options.family = family;
    options.output = folder / name;
    options.hidden_size = 16;
    options.layers = 2;
    options.heads = 2;
    options.head_dim = 8;
    options.state_size = 8;
    options.vocab_size = kTinyVocab;
    options.initializer_range = 0.1;
    options.seed = 5;
    if (!std::filesystem::exists(options.output)) write_random_model(options);
    return options.output;
}

using Documents = std::vector<std::vector<std::int32_t>>;

/// Documents of the given lengths. Not noise: most tokens follow from the one before, so that there is something to
/// learn.
inline Documents documents_of(const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Documents documents;
    for (const std::int64_t length : lengths) {
        std::vector<std::int32_t> ids;
        auto id = static_cast<std::int32_t>(random() % kTinyVocab);
        for (std::int64_t t = 0; t < length; ++t) {
            ids.push_back(id);
            id = random() % 8 == 0 ? static_cast<std::int32_t>(random() % kTinyVocab) : (5 * id + 3) % kTinyVocab;
        }
        documents.push_back(std::move(ids));
    }
    return documents;
}

/// `is_target`: whether token t of a document is one; null: no mask.
inline std::filesystem::path write_tokens(const std::filesystem::path& file, const Documents& documents,
                                          const std::function<bool(std::size_t, std::int64_t)>& is_target = nullptr) {
    TokenFileWriter writer(file, {kTinyVocab, "", is_target != nullptr});
    for (std::size_t d = 0; d < documents.size(); ++d) {
        std::vector<bool> targets;
        if (is_target != nullptr) {
            for (std::size_t t = 0; t < documents[d].size(); ++t) {
                targets.push_back(is_target(d, static_cast<std::int64_t>(t)));
            }
        }
        writer.append(documents[d], targets);
        writer.end_document();
    }
    (void)writer.commit();
    return file;
}

inline TrainSettings tiny_settings(const std::filesystem::path& tokens, std::int64_t sequence_tokens) {
    TrainSettings settings;
    settings.data.files = {tokens};
    settings.data.sequence_tokens = sequence_tokens;
    settings.data.batch_tokens = 2 * sequence_tokens;
    settings.data.micro_batches = 2;
    settings.data.seed = 3;
    settings.schedule = {ScheduleKind::kCosine, 3e-3, 3e-4, 20, 4, 0};
    return settings;
}

/// Runs `body` with a trainer on every one of `ranks` thread ranks.
inline void with_trainers(const std::filesystem::path& model, const TrainSettings& settings, int ranks,
                          const std::function<void(Trainer&, Communicator&)>& body, int threads = 1) {
    run_thread_ranks(ranks, [&](Communicator& world) {
        Trainer trainer(Model::load_for_training(model), world, settings, threads);
        body(trainer, world);
    });
}

/// What rank 0 sees of `steps` steps on `ranks` ranks.
inline std::vector<StepResult> train(const std::filesystem::path& model, const TrainSettings& settings, int ranks,
                                     int steps, int threads = 1) {
    std::vector<StepResult> results;
    with_trainers(
        model, settings, ranks,
        [&](Trainer& trainer, Communicator& world) {
            for (int i = 0; i < steps; ++i) {
                const StepResult result = trainer.step();
                if (world.rank() == 0) results.push_back(result);
            }
        },
        threads);
    return results;
}

}  // namespace fenwick::testing
