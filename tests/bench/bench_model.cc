// The mixers and a whole model on the CPU, beside OpenBLAS's own sgemm in the same run.
//
//   bench_model [OPTION...] [TOKENS...]      (--help lists them)
//
// GFLOP/s count useful operations (DESIGN section 8: causal halves, one product for each state read), not padding nor
// what is computed twice. Prints a table on stdout.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/fenwick.h"
#include "kernels/gemm.h"
#include "kernels/threads.h"
#include "parallel/self_communicator.h"
#include "tests/bench/bench_options.h"
#include "tests/kernels/mixer_inputs.h"
#include "worker/training/backprop.h"

namespace fenwick {
namespace {

double median_seconds(int runs, const std::function<void()>& work) {
    std::vector<double> times;
    times.reserve(static_cast<std::size_t>(runs));
    for (int i = 0; i < runs; ++i) times.push_back(testing::seconds_of(work));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Independent single-threaded 1,024^3 products, one a thread: the way in which the kernels use OpenBLAS.
double sgemm_rate(int threads) {
    constexpr std::int64_t kN = 1024;
    std::vector<Buffer<float>> operands;
    for (int i = 0; i < 3 * threads; ++i) {
        Buffer<float>& x = operands.emplace_back(kN * kN);
        for (std::int64_t j = 0; j < x.size(); ++j)
            x[j] = static_cast<float>((j * 2654435761U) % 1000) / 1000.0F - 0.5F;
    }
    const auto run = [&] {
        parallel_tasks(threads, threads, [&](std::int64_t i, int) {
            const auto at = static_cast<std::size_t>(3 * i);
            gemm_nn(kN, kN, kN, 1.0F, operands[at].data(), kN, operands[at + 1].data(), kN, 0.0F,
                    operands[at + 2].data(), kN);
        });
    };
    run();
    return 2.0 * std::pow(static_cast<double>(kN), 3) * threads / median_seconds(15, run);
}

// Mean number of set bits of the block numbers that `tokens` have: entering states of a log-linear model.
double mean_entering(std::int64_t tokens) {
    const std::int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    double bits = 0;
    for (std::int64_t z = 0; z < blocks; ++z) bits += std::popcount(static_cast<std::uint64_t>(z));
    return bits / static_cast<double>(blocks);
}

void bench_mixers(int threads, double sgemm) {
    fmt::print("\n{:<44} {:>10} {:>10} {:>9} {:>9}\n", "mixer, 12 heads, d_k 128, d_v 64", "tokens", "seconds",
               "GFLOP/s", "of sgemm");
    const char* names[] = {"scalar", "diagonal", "matrix"};
    for (int algebra = 0; algebra < 3; ++algebra) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerShape shape{static_cast<TransitionAlgebra>(algebra), 12, algebra == 0 ? 1 : 12, 128, 64, levels};
            constexpr std::int64_t kTokens = 16384;
            const testing::MixerCase c = testing::random_case(shape, kTokens, 1);
            const double seconds = median_seconds(3, [&] { (void)testing::run_mixer(c, threads); });
            const double state = 2.0 * 128 * 64 * (algebra == 2 ? 3 : 1);
            double flops = kChunkTokens * 192.0 + 2.0 * 128 * 64;
            flops += state * (levels > 0 ? 3 + mean_entering(kTokens) : 1);
            if (algebra == 2) flops += kChunkTokens * (3.0 * 128 + 64 + kChunkTokens / 3.0);
            const double rate = flops * 12 * kTokens / seconds;
            fmt::print("{:<44} {:>10} {:>10.3f} {:>9.1f} {:>8.0f}%\n",
                       std::string(levels > 0 ? "log-linear " : "linear ") + names[algebra], kTokens, seconds,
                       rate / 1e9, 100 * rate / sgemm);
        }
    }
}

// One document's loss and gradients, with every layer formed again: four times the forward's operations.
void bench_training(const std::shared_ptr<Model>& model, std::int64_t tokens, int threads, double sgemm) {
    fmt::print("\n{:<44} {:>10} {:>10} {:>9} {:>9} {:>12}\n", "the same, training (GFLOP/s: 3 forwards)", "tokens",
               "seconds", "GFLOP/s", "of sgemm", "us a token");
    TrainingDocument document;
    document.plan = make_shard_plan(0, tokens, 1);
    document.tokens = testing::random_ids(tokens, 256, 1);
    document.targets = testing::random_ids(tokens, 256, 2);
    SelfCommunicator self;
    Gradients gradients(model->parameters());
    for (const bool recompute : {true, false}) {
        Backprop backprop(model, self, threads, {.recompute = recompute});
        const double seconds = median_seconds(3, [&] {
            (void)backprop.run({&document, 1}, 1.0F / static_cast<float>(tokens), gradients);
        });
        double flops = model->head_flops_per_token();
        for (const LayerCost& layer : model->layer_costs()) {
            flops += layer.flops_per_token + layer.flops_per_token_and_level * mean_entering(tokens);
        }
        const double rate = 3.0 * flops * static_cast<double>(tokens) / seconds;
        fmt::print("{:<44} {:>10} {:>10.2f} {:>9.1f} {:>8.0f}% {:>12.2f}\n",
                   recompute ? "layers formed again" : "projected rows kept", tokens, seconds, rate / 1e9,
                   100 * rate / sgemm, 1e6 * seconds / static_cast<double>(tokens));
    }
}

void bench_model(const std::shared_ptr<const Model>& model, const std::vector<std::int64_t>& lengths, int threads,
                 double sgemm) {
    fmt::print("\n{:<44} {:>10} {:>10} {:>9} {:>9} {:>12}\n",
               fmt::format("whole model, {} M parameters, scoring", model->parameter_count() / 1000000), "tokens",
               "seconds", "GFLOP/s", "of sgemm", "us a token");
    for (const std::int64_t tokens : lengths) {
        const std::vector<std::int32_t> ids = testing::random_ids(tokens, 256, 1);
        SelfCommunicator self;
        Gang gang(model, self, threads);
        const double seconds = testing::seconds_of([&] {
            gang.begin_document();
            (void)testing::score(gang, ids, 4 * kBlockTokens);
        });
        double flops = model->head_flops_per_token();
        for (const LayerCost& layer : model->layer_costs()) {
            flops += layer.flops_per_token + layer.flops_per_token_and_level * mean_entering(tokens);
        }
        const double rate = flops * static_cast<double>(tokens) / seconds;
        fmt::print("{:<44} {:>10} {:>10.2f} {:>9.1f} {:>8.0f}% {:>12.2f}\n", model->family(), tokens, seconds,
                   rate / 1e9, 100 * rate / sgemm, 1e6 * seconds / static_cast<double>(tokens));
    }
}

int run(int argc, char** argv) {
    RandomModelOptions options;
    options.hidden_size = 512;
    options.heads = 16;
    options.head_dim = 64;
    options.state_size = 128;
    int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    std::vector<std::int64_t> lengths{65536};
    CLI::App app("Benchmarks of the mixers and of a whole model on the CPU, beside sgemm in the same run");
    testing::add_model_options(app, options, lengths);
    app.add_option("--threads", threads, "threads");
    bool mixers = true;
    app.add_flag("--mixers,!--no-mixers", mixers, "the mixers alone, too");
    CLI11_PARSE(app, argc, argv);

    initialise_blas();
    const testing::TemporaryModels models;
    options.output = models.root() / "bench";
    write_random_model(options);
    const double sgemm = sgemm_rate(threads);
    fmt::print("{} threads; sgemm 1,024^3, one product a thread: {:.1f} GFLOP/s\n", threads, sgemm / 1e9);
    if (mixers) bench_mixers(threads, sgemm);
    bench_model(Model::load(options.output), lengths, threads, sgemm);
    bench_training(Model::load_for_training(options.output), std::min<std::int64_t>(lengths.front(), 16384), threads,
                   sgemm);
    fmt::print("\nsgemm once more: {:.1f} GFLOP/s\n", sgemm_rate(threads) / 1e9);
    return 0;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    try {
        return fenwick::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_model: {}\n", error.what());
        return 70;
    }
}
