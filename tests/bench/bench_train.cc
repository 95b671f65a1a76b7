// Forward and backward of a whole random model on the GPU, and the optimiser's step: tokens a second, MFU, the memory
// plan. Alone, or started by mpirun with a rank for each GPU: then rank 0 alone first, and all ranks on one document.
//
//   bench_train [OPTION...] [TOKENS...]      (--help lists them)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/device_info.h"
#include "core/errors.h"
#include "kernels/backward/cross_entropy.h"
#include "parallel/collectives.h"
#include "parallel/cuda/self_device.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_monitor.h"
#include "parallel/self_communicator.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/bench_options.h"
#include "worker/cuda/training/gpu_engine.h"
#include "worker/cuda/training/training_memory.h"
#include "worker/shard_cost.h"
#include "worker/training/training_data.h"
#ifdef FENWICK_NCCL
#include "parallel/cuda/nccl_communicator.h"
#endif

namespace fenwick {
namespace {

struct Settings {
    RandomModelOptions model;
    std::filesystem::path folder;  ///< of a model; empty: a random one is made
    std::vector<std::int64_t> lengths{131072};
    std::int64_t documents = 1;
    int runs = 3;
    bool fp32 = false;
    bool plan_only = false;
    std::filesystem::path json;  ///< what figures are appended to; empty: none
    double budget_gib = 139.0;
    double peak_tflops = 989.0;

    [[nodiscard]] cuda::Operand operand() const { return fp32 ? cuda::Operand::kFp32 : cuda::Operand::kBf16; }
};

/// `documents` documents of `tokens` tokens in all.
std::vector<TrainingDocument> make_documents(const Settings& settings, const Model& model, std::int64_t tokens,
                                             const Communicator& group) {
    std::vector<TrainingDocument> documents;
    const auto vocab = static_cast<std::int32_t>(model.vocab_size());
    for (std::int64_t i = 0; i < settings.documents; ++i) {
        Sequence sequence;
        sequence.tokens = testing::random_ids(tokens / settings.documents, vocab, static_cast<std::uint64_t>(i));
        sequence.targets.assign(sequence.tokens.begin() + 1, sequence.tokens.end());
        sequence.targets.push_back(kNoTarget);
        documents.push_back(own_part(sequence, level_cost(model), group));
    }
    return documents;
}

std::unique_ptr<cuda::DeviceCommunicator> join(Communicator& world) {
    if (world.size() == 1) return std::make_unique<cuda::SelfDeviceCommunicator>();
#ifdef FENWICK_NCCL
    return std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{std::chrono::milliseconds(120000)});
#else
    throw UnavailableError("bench_train: this build has no NCCL");
#endif
}

double median(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

struct Result {
    double seconds = 0.0;  ///< of forward and backward
    double loss = 0.0;     ///< of the first run, nats a token
    double norm = 0.0;     ///< of its gradients
};

/// Collective. One result for each length.
std::vector<Result> bench(const Settings& settings, const std::filesystem::path& folder, Communicator& world) {
    const std::shared_ptr<Model> model = Model::load_for_training(folder);
    const TrainingRanks ranks(world, world.size());
    const std::int64_t free_before = cuda::free_device_bytes();
    cuda::GpuEngine engine(model, world, ranks, settings.operand(), join(world), {});
    std::vector<Result> all;
    std::int64_t update = 0;
    for (const std::int64_t tokens : settings.lengths) {
        const std::vector<TrainingDocument> documents = make_documents(settings, *model, tokens, world);
        const float scale = 1.0F / static_cast<float>(tokens);
        StepLoss loss;
        Result result;
        double norm = 0.0;
        const auto gradients = [&] {
            engine.zero_gradients();
            loss = engine.run(documents, scale);
            barrier(world);
        };
        const auto step = [&] {
            norm = engine.reduce();
            engine.step({1e-4, 0.9, 0.95, 1e-8, 0.1}, ++update, static_cast<float>(std::min(1.0, 1.0 / norm)));
            (void)engine.first_not_finite_gradient();  // waits for the device
            barrier(world);
        };
        std::vector<double> pass_seconds;
        std::vector<double> step_seconds;
        for (int run = -1; run < settings.runs; ++run) {  // the first one plans and warms up
            const double pass = testing::seconds_of(gradients);
            const double update_seconds = testing::seconds_of(step);
            if (run < 0) {
                result.loss = loss.nll_sum;
                all_sum(world, std::span(&result.loss, 1));
                result.loss /= static_cast<double>(tokens);
                result.norm = norm;
                continue;
            }
            pass_seconds.push_back(pass);
            step_seconds.push_back(update_seconds);
        }
        result.seconds = median(pass_seconds);
        all.push_back(result);
        if (world.rank() != 0) continue;
        std::vector<double> ms;
        for (std::size_t i = 0; i < pass_seconds.size(); ++i) ms.push_back(1e3 * (pass_seconds[i] + step_seconds[i]));
        bench::append_figure(settings.json, {{"what", fmt::format("{}, {:.0f} M parameters", model->family(),
                                                                  static_cast<double>(model->parameter_count()) / 1e6)},
                                             {"part", "training"},
                                             {"tokens", tokens},
                                             {"ranks", world.size()},
                                             {"ms", ms},
                                             {"update_ms", 1e3 * median(step_seconds)},
                                             {"inputs_kept", engine.backprop().places()},
                                             {"layers", std::ssize(model->layer_costs())},
                                             {"loss", result.loss}});
        const double flops =
            3.0 * static_cast<double>(settings.documents) * forward_flops(*model, tokens / settings.documents);
        fmt::print(
            "{:>3} GPU {:>9} tokens {:>9.4f} s {:>10.0f} tokens/s, MFU {:>5.1f} %, step {:.4f} s, {} inputs kept, "
            "{:.2f} GiB, loss {:.4f}\n",
            world.size(), tokens, result.seconds, static_cast<double>(tokens) / result.seconds,
            100.0 * flops / result.seconds / (1e12 * settings.peak_tflops * world.size()), median(step_seconds),
            engine.backprop().places(),
            static_cast<double>(free_before - cuda::free_device_bytes()) / (std::int64_t{1} << 30), result.loss);
        std::fflush(stdout);
    }
    return all;
}

void print_plans(const Settings& settings, const std::filesystem::path& folder, int ranks) {
    const std::shared_ptr<const Model> model = Model::load(folder);
    const auto budget = static_cast<std::int64_t>(settings.budget_gib * (std::int64_t{1} << 30));
    for (const std::int64_t tokens : settings.lengths) {
        for (int count : ranks == 1 ? std::vector{1} : std::vector{1, ranks}) {
            const std::int64_t rows = (tokens + count - 1) / count;
            fmt::print("plan, {} tokens on {} GPU of {:.0f} GiB: {}\n", tokens, count, settings.budget_gib,
                       cuda::plan_training(*model, settings.operand(), rows, count, budget).text());
        }
    }
    std::fflush(stdout);
}

void bench_world(const Settings& settings, const std::filesystem::path& folder, Communicator& world) {
    if (world.rank() == 0) print_plans(settings, folder, world.size());
    std::vector<Result> alone;
    SelfCommunicator self;
    try {
        if (world.rank() == 0) alone = bench(settings, folder, self);
    } catch (const UnavailableError& error) {
        if (world.size() == 1) throw;
        fmt::print("one GPU alone: {}\n", error.what());  // what several have room for may be too long for one
    }
    barrier(world);
    if (world.size() == 1) return;
    const std::vector<Result> together = bench(settings, folder, world);
    if (world.rank() != 0) return;
    for (std::size_t i = 0; i < alone.size(); ++i) {
        const auto apart = [](double a, double b) { return std::fabs(a - b) / std::fabs(b); };
        fmt::print("{} tokens: {} GPUs are {:.3f}x of one; loss differs by {:.1e}, norm of the gradients by {:.1e}\n",
                   settings.lengths[i], world.size(), alone[i].seconds / together[i].seconds,
                   apart(together[i].loss, alone[i].loss), apart(together[i].norm, alone[i].norm));
    }
}

std::filesystem::path folder_of(const Settings& settings, const testing::TemporaryModels& models) {
    if (!settings.folder.empty()) return settings.folder;
    RandomModelOptions options = settings.model;
    options.output = models.root() / "bench";
    write_random_model(options);
    return options.output;
}

int run(int argc, char** argv) {
    Settings settings;
    RandomModelOptions& options = settings.model;
    options.hidden_size = 1536;
    options.layers = 21;
    options.heads = 48;
    options.head_dim = 64;
    options.state_size = 128;
    options.vocab_size = 32000;
    CLI::App app("Benchmark of training a whole model on the GPU");
    testing::add_model_options(app, options, settings.lengths);
    app.add_option("--model", settings.folder, "folder of a model, instead of a random one of the sizes above");
    app.add_option("--levels", options.levels, "levels of lambda");
    app.add_option("--documents", settings.documents, "documents that the tokens are cut into")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--runs", settings.runs, "runs of each length")->check(CLI::Range(1, 1000));
    app.add_option("--peak-tflops", settings.peak_tflops, "of one GPU, for the MFU");
    app.add_option("--memory-gib", settings.budget_gib, "device memory that the printed plan may use");
    app.add_flag(
        "--plan", settings.plan_only,
        "print the memory plan alone; a GPU has to be there all the same (its sort is asked for its workspace)");
    app.add_option("--json", settings.json,
                   "file that each figure, of forward, backward and the optimiser's step, is appended to");
    app.add_flag("--fp32", settings.fp32, "fp32 operands");
    CLI11_PARSE(app, argc, argv);

    if (launched_under_mpi()) {
        const MpiEnvironment environment;
        MpiCommunicator world;
        const cuda::DeviceReport report = cuda::probe_devices(false);
        const int device = world.local_rank();
        if (device >= static_cast<int>(report.devices.size())) {
            fmt::print("skipped: no GPU for rank {}\n", world.rank());
            return 77;
        }
        FENWICK_CUDA_CHECK(cudaSetDevice(device));
        const MpiMonitor monitor(world, std::chrono::seconds(120));
        const testing::TemporaryModels models;
        try {
            bench_world(settings, folder_of(settings, models), world);
        } catch (const std::exception& error) {
            world.abort(error.what(), ExitCode::kInternal);
        }
        return 0;
    }
    const testing::TemporaryModels models;
    SelfCommunicator self;
    if (settings.plan_only) {
        print_plans(settings, folder_of(settings, models), 1);
        return 0;
    }
    const cuda::DeviceReport report = cuda::probe_devices(false);
    const cuda::DeviceInfo* device = report.first_usable();
    if (device == nullptr) {
        fmt::print("skipped: {}\n", report.problem.empty() ? "no usable GPU" : report.problem);
        return 77;
    }
    fmt::print("on {}\n", device->name);
    bench_world(settings, folder_of(settings, models), self);
    return 0;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    try {
        return fenwick::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_train: {}\n", error.what());
        return 70;
    }
}
