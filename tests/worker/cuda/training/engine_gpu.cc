// The GPU's training engine: steps beside the CPU's, over worlds of any shape, losses, and numbers that are not finite.
#include <cstring>
#include <limits>

#include "tests/worker/cuda/training/gpu_training.h"

using namespace fenwick;
using namespace fenwick::testing;
using cuda::Operand;

namespace {

constexpr int kSteps = 4;
constexpr AdamW kHyper{1e-3, 0.9, 0.95, 1e-8, 0.1};

struct Steps {
    std::vector<double> losses;  ///< before each step
    std::vector<double> norms;
    std::vector<float> values;  ///< afterwards
};

/// Some steps of one engine; micro-batch b of a step is taken by group b mod groups.
Steps take_steps(TrainingEngine& engine, Communicator& world, const TrainingRanks& ranks,
                 const std::vector<Documents>& batches) {
    Steps steps;
    double labels = 0.0;
    for (const Documents& batch : batches) labels += static_cast<double>(labels_of(batch));
    for (int step = 1; step <= kSteps; ++step) {
        engine.zero_gradients();
        double nll = 0.0;
        for (std::size_t b = 0; b < batches.size(); ++b) {
            if (static_cast<int>(b) % ranks.groups() != ranks.group_number()) continue;
            nll += engine.run(parts_of(batches[b], ranks.group()), static_cast<float>(1.0 / labels)).nll_sum;
        }
        all_sum(world, std::span(&nll, 1));
        steps.losses.push_back(nll / labels);
        steps.norms.push_back(engine.reduce());
        engine.step(kHyper, step, 0.5F);
    }
    const std::span<const float> own = engine.slice().values;
    std::int64_t total = 0;
    for (const Parameter& parameter : engine.parameters()) total += parameter.size;
    steps.values.resize(static_cast<std::size_t>(total));
    all_gather_slices(world, own, steps.values);
    return steps;
}

std::vector<Documents> two_batches() {
    return {random_documents({300, 20, 64}, 1), random_documents({129, 2}, 40)};
}

Steps gpu_steps(const std::filesystem::path& folder, int ranks, int sequence, Operand operand) {
    Steps result;
    std::mutex mutex;
    const auto run = [&](Communicator& world, std::unique_ptr<cuda::DeviceCommunicator> device) {
        const TrainingRanks training(world, sequence);
        cuda::GpuEngine engine(Model::load_for_training(folder), world, training, operand, std::move(device), {});
        const Steps steps = take_steps(engine, world, training, two_batches());
        const std::lock_guard<std::mutex> lock(mutex);
        result = steps;
    };
    if (ranks == 1) {
        SelfCommunicator self;
        run(self, std::make_unique<cuda::SelfDeviceCommunicator>());
    } else {
        run_thread_ranks(ranks,
                         [&](Communicator& world) { run(world, std::make_unique<StagedDeviceCommunicator>(world)); });
    }
    return result;
}

Steps cpu_steps(const std::filesystem::path& folder) {
    SelfCommunicator self;
    const TrainingRanks training(self, 1);
    CpuEngine engine(Model::load_for_training(folder), self, training.group(), {}, 2);
    return take_steps(engine, self, training, two_batches());
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0.0;
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    }
    return largest;
}

void check_steps(const Steps& got, const Steps& want, double tolerance) {
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
        INFO("step " << i + 1);
        CHECK(std::fabs(got.losses[i] - want.losses[i]) <= tolerance * want.losses[i]);
        CHECK(std::fabs(got.norms[i] - want.norms[i]) <= 10.0 * tolerance * want.norms[i]);
    }
}

}  // namespace

TEST_CASE("training steps on the GPU are the CPU's") {
    const TemporaryModels models;
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = make_smooth(models, family);
        INFO(family);
        const Steps want = cpu_steps(folder);
        REQUIRE(want.losses.back() < want.losses.front());
        const Steps fp32 = gpu_steps(folder, 1, 1, Operand::kFp32);
        check_steps(fp32, want, 1e-5);
        // Adam's first steps divide a gradient by its own size: where it is almost 0, its rounding decides the sign of
        // a step of the learning rate. No value can be further away than all steps together.
        CHECK(largest_difference(fp32.values, want.values) <= 2.0 * kSteps * kHyper.learning_rate);
        check_steps(gpu_steps(folder, 1, 1, Operand::kBf16), want, 5e-3);
    }
}

TEST_CASE("training steps on the GPU hardly depend on the world, and have the same bits on the same one") {
    const TemporaryModels models;
    const std::filesystem::path folder = make_smooth(models, "log_linear_mamba2");
    const Steps want = gpu_steps(folder, 1, 1, Operand::kFp32);
    struct World {
        int ranks, sequence;
    };
    for (const World world : {World{2, 1}, World{2, 2}, World{3, 3}, World{4, 2}}) {
        INFO(world.ranks << " ranks, groups of " << world.sequence);
        const Steps got = gpu_steps(folder, world.ranks, world.sequence, Operand::kFp32);
        check_steps(got, want, 1e-5);
        const Steps again = gpu_steps(folder, world.ranks, world.sequence, Operand::kFp32);
        CHECK(again.losses == got.losses);
        CHECK(again.values == got.values);
    }
}

TEST_CASE("losses of a training engine on the GPU are the CPU's") {
    const TemporaryModels models;
    const Documents documents = random_documents({300, 5, 64, 1});
    for (const char* family : kFamilies) {
        const std::filesystem::path folder = make_smooth(models, family);
        SelfCommunicator self;
        const TrainingRanks training(self, 1);
        const std::vector<TrainingDocument> parts = parts_of(documents, self);
        CpuEngine cpu(Model::load_for_training(folder), self, training.group(), {}, 2);
        std::vector<float> want(370, -1.0F);
        std::vector<std::uint8_t> best(want.size(), 7);
        cpu.losses(parts, {want, best});
        with_gpu_engines(folder, 1, 1, Operand::kFp32, {}, [&](cuda::GpuEngine& engine, const TrainingRanks&) {
            std::vector<float> got(want.size(), -2.0F);
            std::vector<std::uint8_t> got_best(got.size(), 8);
            engine.losses(parts, {got, got_best});
            // Near ties may fall either way: no more than these few.
            std::size_t others = 0;
            for (std::size_t i = 0; i < best.size(); ++i) others += best[i] != got_best[i] ? 1 : 0;
            CHECK(others <= best.size() / 100);
            INFO(family);
            CHECK(largest_difference(got, want) <= 2e-4);
            // Losses and gradients of one engine do not disturb each other.
            double sum = 0.0;
            for (const float nll : got) sum += static_cast<double>(nll);
            CHECK(std::fabs(engine.run(parts, 1.0F).nll_sum - sum) <= 1e-5 * sum);
        });
    }
}

TEST_CASE("a GPU engine goes on from a checkpoint with the same bits, and on another world") {
    const TemporaryModels models;
    const std::filesystem::path folder = make_smooth(models, "log_linear_mamba2");
    const Documents documents = random_documents({30, 10});
    const auto step = [&](cuda::GpuEngine& engine, const TrainingRanks& ranks, std::int64_t update) {
        engine.zero_gradients();
        const StepLoss loss = engine.run(parts_of(documents, ranks.group()), 1.0F / 30.0F);
        (void)engine.reduce();
        engine.step(kHyper, update, 1.0F);
        return loss.nll_sum;
    };
    const std::filesystem::path checkpoints = models.root() / "checkpoints";
    std::filesystem::path saved;
    double third = 0.0;  // loss of the third step
    std::vector<float> values;
    with_gpu_engines(folder, 1, 1, Operand::kFp32, {}, [&](cuda::GpuEngine& engine, const TrainingRanks& ranks) {
        for (const std::int64_t update : {1, 2}) (void)step(engine, ranks, update);
        SelfCommunicator self;
        const CheckpointHead head{2, parameter_table(engine.parameters()), "{}", nlohmann::json::object()};
        saved = write_training_checkpoint(self, checkpoints, head, engine.slice(), 0);
        third = step(engine, ranks, 3);
        const std::span<const float> own = engine.slice().values;
        values.assign(own.begin(), own.end());
    });
    for (const int world : {1, 2}) {
        double nll = 0.0;
        std::mutex mutex;
        with_gpu_engines(folder, world, world, Operand::kFp32, {},
                         [&](cuda::GpuEngine& engine, const TrainingRanks& ranks) {
                             engine.restore(TrainingCheckpoint::open(saved));
                             engine.publish();
                             const double part = step(engine, ranks, 3);
                             const std::span<const float> own = engine.slice().values;
                             const std::lock_guard<std::mutex> lock(mutex);
                             nll += part;
                             if (world > 1) return;
                             CHECK(std::memcmp(own.data(), values.data(), own.size_bytes()) == 0);
                         });
        INFO(world << " ranks");
        if (world == 1) CHECK(nll == third);
        CHECK(std::fabs(nll - third) <= 1e-6 * third);
    }
}

TEST_CASE("a GPU engine says where numbers stop being finite") {
    const TemporaryModels models;
    const std::filesystem::path folder = make_smooth(models, "log_linear_mamba2");
    const std::filesystem::path bad = models.root() / "bad";
    edit_model(folder, bad, [](ModelTensors& tensors, nlohmann::json&) {
        tensors.at("backbone.layers.1.mixer.out_proj.weight").values[3] = std::numeric_limits<float>::infinity();
    });
    const Documents documents = random_documents({100, 30});
    with_gpu_engines(folder, 1, 1, Operand::kFp32, {}, [&](cuda::GpuEngine& engine, const TrainingRanks& ranks) {
        (void)engine.run(parts_of(documents, ranks.group()), 1.0F);
        CHECK(engine.first_not_finite_rows() == -1);
        CHECK(!engine.first_not_finite_gradient().has_value());
        CHECK(std::isfinite(engine.reduce()));
    });
    with_gpu_engines(bad, 1, 1, Operand::kFp32, {}, [&](cuda::GpuEngine& engine, const TrainingRanks& ranks) {
        CHECK(!std::isfinite(engine.run(parts_of(documents, ranks.group()), 1.0F).nll_sum));
        CHECK(engine.first_not_finite_rows() == 2);
        CHECK(engine.first_not_finite_gradient().has_value());
        CHECK(!std::isfinite(engine.reduce()));
    });
}
