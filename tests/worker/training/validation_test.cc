// Losses and hits on data that is not trained on.
#include "worker/training/validation.h"

#include <catch2/catch.hpp>

#include "kernels/backward/cross_entropy.h"
#include "parallel/self_communicator.h"
#include "tests/worker/training/training_runs.h"
#include "worker/training/cpu_engine.h"

using namespace fenwick;
using namespace fenwick::testing;
namespace fs = std::filesystem;

TEST_CASE("validation: hits are the tokens that the head makes most likely") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    const std::shared_ptr<Model> own = Model::load_for_training(model);
    SelfCommunicator self;
    CpuEngine engine(own, self, self, {}, 1);
    // Every token of the vocabulary as the one that follows the same three: exactly one of them is the most likely.
    std::vector<TrainingDocument> documents;
    for (std::int32_t token = 0; token < own->vocab_size(); ++token) {
        documents.push_back({make_shard_plan(0, 3, 1), {1, 2, 3}, {kNoTarget, kNoTarget, token}});
    }
    std::vector<float> nll(3 * documents.size());
    std::vector<std::uint8_t> most_likely(nll.size(), 5);
    engine.losses(documents, {nll, most_likely});
    std::size_t best = 0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
        CHECK(most_likely[3 * i] == 0);
        CHECK(most_likely[3 * i + 1] == 0);
        if (nll[3 * i + 2] < nll[3 * best + 2]) best = i;
    }
    for (std::size_t i = 0; i < documents.size(); ++i) CHECK(most_likely[3 * i + 2] == (i == best ? 1 : 0));
}

TEST_CASE("validation: the loss that training sees, over groups and by position") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({4096 + 100, 300, 1}, 11));
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    TrainSettings settings = tiny_settings(tokens, 8192);
    settings.data.batch_tokens = 8192;
    settings.data.micro_batches = 1;
    settings.validation = {{tokens}, 1, 8192, 10, true};
    const StepResult first = train(model, settings, 1, 1).front();
    struct World {
        int ranks;
        int sequence;
    };
    double accuracy = 0.0;
    for (const World& shape : {World{1, 1}, World{2, 1}, World{2, 2}, World{3, 3}}) {
        settings.sequence_ranks = shape.sequence;
        ValidationResult result;
        run_thread_ranks(shape.ranks, [&](Communicator& world) {
            const TrainingRanks ranks(world, settings.sequence_ranks);
            const std::shared_ptr<Model> own = Model::load_for_training(model);
            CpuEngine engine(own, world, ranks.group(), {}, 1);
            Validation validation(own, world, ranks, settings, engine);
            const ValidationResult here = validation.run();
            if (world.rank() == 0) result = here;
        });
        INFO(shape.ranks << " ranks in groups of " << shape.sequence);
        CHECK(result.all.labels == first.labels);
        REQUIRE(result.all.loss.has_value());
        CHECK(*result.all.loss == Approx(*first.loss).epsilon(1e-5));
        // The share of hits is that of the whole, whoever counted: near ties apart, a few of 4,400 labels.
        REQUIRE(result.all.accuracy.has_value());
        if (shape.ranks == 1) accuracy = *result.all.accuracy;
        CHECK(*result.all.accuracy == Approx(accuracy).margin(1e-3));
        CHECK(*result.all.accuracy < 0.1);
        REQUIRE(result.by_position.size() == 14);
        CHECK(result.by_position[0].labels == 2);
        CHECK(result.by_position[1].labels == 2);
        CHECK(result.by_position[2].labels == 4);
        CHECK(result.by_position[13].labels == 99);
        std::int64_t labels = 0;
        double sum = 0.0;
        for (const MeanLoss& mean : result.by_position) {
            labels += mean.labels;
            sum += mean.loss.value_or(0.0) * static_cast<double>(mean.labels);
        }
        CHECK(labels == result.all.labels);
        CHECK(sum / static_cast<double>(labels) == Approx(*result.all.loss).epsilon(1e-12));
    }
}
