// Whole training steps: worlds of any shape against one rank, resuming, accumulation, clipping, labels, and numbers
// that are not finite. CASES H1, H3, H4.
#include "worker/training/trainer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "core/files.h"
#include "tests/worker/training/training_runs.h"
#include "worker/training/cpu_engine.h"

using namespace fenwick;
using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

/// Losses and norms of the same steps: sums in other orders, so fp32 rounding of the parameters and of gradients.
void check_alike(const std::vector<StepResult>& found, const std::vector<StepResult>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("step " << expected[i].state.step);
        CHECK(found[i].tokens == expected[i].tokens);
        CHECK(found[i].labels == expected[i].labels);
        CHECK(found[i].state.position == expected[i].state.position);
        CHECK(found[i].learning_rate == expected[i].learning_rate);
        REQUIRE(found[i].loss.has_value());
        CHECK(*found[i].loss == Approx(*expected[i].loss).epsilon(1e-5));
        CHECK(found[i].gradient_norm == Approx(expected[i].gradient_norm).epsilon(1e-4));
    }
}

void check_same_bits(const std::vector<StepResult>& found, const std::vector<StepResult>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO("step " << expected[i].state.step);
        CHECK(found[i].state.position == expected[i].state.position);
        CHECK(found[i].learning_rate == expected[i].learning_rate);
        CHECK(found[i].loss == expected[i].loss);
        CHECK(found[i].gradient_norm == expected[i].gradient_norm);
    }
}

std::vector<float> values_of(Model& model) {
    std::vector<float> all;
    for (const Parameter& parameter : model.parameters()) {
        all.insert(all.end(), parameter.values, parameter.values + parameter.size);
    }
    return all;
}

}  // namespace

TEST_CASE("trainer: a tiny model learns what follows from what") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of(std::vector<std::int64_t>(40, 64), 1));
    for (const char* family : {"log_linear_mamba2", "gated_deltanet"}) {
        TrainSettings settings = tiny_settings(tokens, 64);
        settings.data.batch_tokens = 320;
        settings.data.micro_batches = 1;
        settings.schedule = {ScheduleKind::kWsd, 1e-2, 0.0, 60, 5, 20};
        const std::vector<StepResult> steps = train(tiny_model(folder, family, family), settings, 1, 60);
        INFO(family << ": " << *steps.front().loss << " to " << *steps.back().loss);
        CHECK(*steps.front().loss == Approx(std::log(kTinyVocab)).margin(0.3));
        // The least there is: a token follows from the one before with probability 7/8 + 1/256: 0.785 nats.
        CHECK(*steps.back().loss < 1.6);
    }
}

TEST_CASE("trainer: data-parallel worlds take the same steps, whatever their size") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens =
        write_tokens(folder / "t", documents_of({100, 3, 1, 64, 0, 65, 200, 17, 90, 2, 128, 40}, 2));
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    TrainSettings settings = tiny_settings(tokens, 100);
    settings.data.micro_batches = 3;
    const std::vector<StepResult> one = train(model, settings, 1, 6);
    for (const int ranks : {2, 3, 5}) {
        INFO(ranks << " ranks");
        check_alike(train(model, settings, ranks, 6), one);
    }
    check_same_bits(train(model, settings, 1, 2, 2), {one[0], one[1]});  // threads
    check_same_bits(train(model, settings, 2, 6), train(model, settings, 2, 6));
}

TEST_CASE("trainer: sequence-parallel groups, alone and beside each other, take the same steps") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({4096 + 2, 2 * 4096 + 30, 50}, 3));
    for (const char* family : {"log_linear_mamba2", "h_gated_deltanet"}) {
        const fs::path model = tiny_model(folder, family, family);
        TrainSettings settings = tiny_settings(tokens, 3 * 4096);
        settings.data.batch_tokens = 3 * 4096;
        const std::vector<StepResult> one = train(model, settings, 1, 2);
        struct World {
            int ranks;
            int sequence;
        };
        for (const World& world : {World{2, 2}, World{3, 3}, World{4, 2}}) {
            if (world.ranks > 2 && family != std::string("log_linear_mamba2")) continue;
            INFO(family << ", " << world.ranks << " ranks in groups of " << world.sequence);
            settings.sequence_ranks = world.sequence;
            check_alike(train(model, settings, world.ranks, 2), one);
        }
    }
    TrainSettings settings = tiny_settings(tokens, 100);
    settings.sequence_ranks = 2;
    CHECK_THROWS_AS(train(tiny_model(folder, "mamba2", "m"), settings, 3, 1), UsageError);
}

TEST_CASE("trainer: two micro-batches of n are one of 2 n") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of(std::vector<std::int64_t>(24, 50), 4));
    const fs::path model = tiny_model(folder, "gated_deltanet");
    TrainSettings two = tiny_settings(tokens, 50);
    two.data.batch_tokens = 100;
    two.data.micro_batches = 2;
    TrainSettings whole = two;
    whole.data.batch_tokens = 200;
    whole.data.micro_batches = 1;
    const std::vector<StepResult> expected = train(model, whole, 1, 4);
    const std::vector<StepResult> found = train(model, two, 1, 4);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(found[i].tokens == 200);
        CHECK(*found[i].loss == Approx(*expected[i].loss).epsilon(1e-5));
        CHECK(found[i].gradient_norm == Approx(expected[i].gradient_norm).epsilon(1e-4));
    }
}

TEST_CASE("trainer: recomputing activations changes no bit") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({100, 70, 130}, 4));
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    TrainSettings settings = tiny_settings(tokens, 100);
    const std::vector<StepResult> expected = train(model, settings, 1, 3);
    settings.recompute = false;
    check_same_bits(train(model, settings, 1, 3), expected);
}

TEST_CASE("trainer: clipping by the norm of all gradients together") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({100, 100}, 5));
    const fs::path model = tiny_model(folder, "mamba2");
    for (const double clip : {0.0, 1e-3, 1e6}) {
        TrainSettings settings = tiny_settings(tokens, 100);
        settings.optimizer.clip_norm = clip;
        std::vector<double> squares(2, 0.0);
        double norm = 0.0;
        with_trainers(model, settings, 2, [&](Trainer& trainer, Communicator& world) {
            const StepResult result = trainer.step();
            const CheckpointSlice slice = trainer.slice();
            // After one step the first moment is (1 - beta1) times the clipped gradient.
            for (const float m : slice.exp_avg) {
                squares[static_cast<std::size_t>(world.rank())] += static_cast<double>(m) * static_cast<double>(m);
            }
            if (world.rank() == 0) norm = result.gradient_norm;
        });
        REQUIRE(norm > 1e-2);
        const double used = std::sqrt(squares[0] + squares[1]) / (1.0 - settings.optimizer.beta1);
        CHECK(used == Approx(clip == 1e-3 ? clip : norm).epsilon(1e-5));
    }
}

TEST_CASE("trainer: a step without labels changes nothing, CASES H1") {
    const ScratchFolder folder("fenwick-trainer-");
    const Documents documents = documents_of({40, 30, 1}, 6);
    const fs::path none = write_tokens(folder / "none", documents, [](std::size_t, std::int64_t) { return false; });
    const fs::path one = write_tokens(folder / "one", documents_of({1}, 6));
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    const std::vector<float> before = values_of(*Model::load_for_training(model));
    for (const fs::path& tokens : {none, one}) {
        for (const int ranks : {1, 2}) {
            std::vector<float> after;
            StepResult result;
            const auto trained = Model::load_for_training(model);
            run_thread_ranks(ranks, [&](Communicator& world) {
                const auto own = world.rank() == 0 ? trained : Model::load_for_training(model);
                Trainer trainer(own, world, tiny_settings(tokens, 40), 1);
                const StepResult here = trainer.step();
                if (world.rank() == 0) result = here;
            });
            CHECK_FALSE(result.loss.has_value());
            CHECK(result.labels == 0);
            CHECK(result.failure.empty());
            CHECK(result.state.step == 1);
            CHECK(result.state.updates == 0);
            CHECK(values_of(*trained) == before);
        }
    }
}

TEST_CASE("trainer: a rank whose share has no label, CASES H1") {
    const ScratchFolder folder("fenwick-trainer-");
    // Two blocks on two ranks; labels only among the last tokens, so all on rank 1.
    const Documents documents = documents_of({4096 + 20}, 7);
    const fs::path tokens =
        write_tokens(folder / "t", documents, [](std::size_t, std::int64_t t) { return t >= 4096 + 15; });
    const fs::path model = tiny_model(folder, "h_gated_deltanet");
    TrainSettings settings = tiny_settings(tokens, 8192);
    settings.data.micro_batches = 1;
    const std::vector<StepResult> one = train(model, settings, 1, 1);
    CHECK(one.front().labels == 5);
    settings.sequence_ranks = 2;
    check_alike(train(model, settings, 2, 1), one);
}

TEST_CASE("trainer: going on from a checkpoint has the bits of a run that did not stop, CASES H3") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({100, 3, 64, 65, 200, 17, 90, 2, 128, 40}, 8));
    const fs::path model = tiny_model(folder, "log_linear_mamba2");
    const std::string config = read_text_file(model / "config.json", 1 << 20);
    const TrainSettings settings = tiny_settings(tokens, 64);
    for (const int ranks : {1, 3}) {
        const std::vector<StepResult> straight = train(model, settings, ranks, 20);
        CHECK(straight[9].learning_rate ==
              Approx(3e-4 + 1.35e-3 * (1 + std::cos(std::acos(-1.0) * 6 / 16))).epsilon(1e-9));
        const fs::path checkpoints = folder / ("c" + std::to_string(ranks));
        std::vector<StepResult> parts;
        with_trainers(model, settings, ranks, [&](Trainer& trainer, Communicator& world) {
            for (int i = 0; i < 10; ++i) {
                const StepResult result = trainer.step();
                if (world.rank() == 0) parts.push_back(result);
            }
            (void)trainer.save(checkpoints, config, 3);
        });
        with_trainers(model, settings, ranks, [&](Trainer& trainer, Communicator& world) {
            trainer.restore(latest_checkpoint(checkpoints), config);
            trainer.publish();
            for (int i = 0; i < 10; ++i) {
                const StepResult result = trainer.step();
                if (world.rank() == 0) parts.push_back(result);
            }
        });
        INFO(ranks << " ranks");
        check_same_bits(parts, straight);
    }
}

TEST_CASE("trainer: a checkpoint of 4 ranks goes on, on 1, 2, 3 and 8, CASES H4") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({100, 3, 64, 65, 200, 17, 90, 2, 128, 40}, 9));
    const fs::path model = tiny_model(folder, "gated_deltanet");
    TrainSettings settings = tiny_settings(tokens, 64);
    settings.data.micro_batches = 4;
    const std::string config = read_text_file(model / "config.json", 1 << 20);
    std::vector<StepResult> expected;
    with_trainers(model, settings, 4, [&](Trainer& trainer, Communicator& world) {
        for (int i = 0; i < 3; ++i) (void)trainer.step();
        (void)trainer.save(folder / "c", config, 1);
        for (int i = 0; i < 2; ++i) {
            const StepResult result = trainer.step();
            if (world.rank() == 0) expected.push_back(result);
        }
    });
    for (const int ranks : {1, 2, 3, 8}) {
        std::vector<StepResult> found;
        with_trainers(model, settings, ranks, [&](Trainer& trainer, Communicator& world) {
            trainer.restore(latest_checkpoint(folder / "c"), config);
            trainer.publish();
            for (int i = 0; i < 2; ++i) {
                const StepResult result = trainer.step();
                if (world.rank() == 0) found.push_back(result);
            }
        });
        INFO(ranks << " ranks");
        check_alike(found, expected);
    }
    // Other data, or another cut of the same data: the position would mean something else.
    const auto refuses = [&](const TrainSettings& other, const std::string& says) {
        INFO(says);
        const auto restore = [&](Trainer& trainer, Communicator&) {
            trainer.restore(latest_checkpoint(folder / "c"), config);
        };
        CHECK_THROWS_WITH(with_trainers(model, other, 1, restore), Catch::Contains(says));
    };
    TrainSettings other = settings;
    other.data.sequence_tokens = 32;
    refuses(other, "other data.files, or another data.sequence_tokens");
    other = settings;
    other.data.micro_batches = 2;
    refuses(other, "data.micro_batches = 4, this run has 2");
}

TEST_CASE("trainer: numbers that are not finite stop a step, by name, and change nothing") {
    const ScratchFolder folder("fenwick-trainer-");
    const fs::path tokens = write_tokens(folder / "t", documents_of({100, 64, 65, 200}, 10));
    const fs::path folder_of_model = tiny_model(folder, "log_linear_mamba2");
    const TrainSettings settings = tiny_settings(tokens, 64);
    for (const int ranks : {1, 2}) {
        StepResult result;
        bool unchanged = false;
        run_thread_ranks(ranks, [&](Communicator& world) {
            const std::shared_ptr<Model> model = Model::load_for_training(folder_of_model);
            Trainer trainer(model, world, settings, 1);
            (void)trainer.step();
            // The second layer's, in the middle of a run.
            for (const Parameter& parameter : model->parameters()) {
                if (parameter.name.find("layers.1.") != std::string::npos &&
                    parameter.name.find("out_proj.weight") != std::string::npos) {
                    parameter.values[3] = std::numeric_limits<float>::infinity();
                }
            }
            const std::vector<float> before = values_of(*model);
            const StepResult here = trainer.step();
            if (world.rank() != 0) return;
            result = here;
            unchanged = values_of(*model) == before && trainer.state().step == 1;
        });
        INFO(result.failure);
        CHECK(result.failure.find("step 2: rank 0: the loss is not finite: layer 1 is the first") == 0);
        CHECK(unchanged);
    }
}

TEST_CASE("trainer: data that the model has no rows for") {
    const ScratchFolder folder("fenwick-trainer-");
    TokenFileWriter writer(folder / "t", {kTinyVocab + 1, "", false});
    const std::vector<std::int32_t> ids = {1, 2};
    writer.append(ids);
    writer.end_document();
    (void)writer.commit();
    const fs::path model = tiny_model(folder, "mamba2");
    CHECK_THROWS_WITH(train(model, tiny_settings(folder / "t", 4), 1, 1),
                      Catch::Contains("data.files") && Catch::Contains("33") && Catch::Contains("32"));
}
