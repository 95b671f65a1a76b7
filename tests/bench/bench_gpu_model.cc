// A whole random model on the GPU: tokens a second of scoring, GPU memory in use, for documents of several lengths.
//
//   bench_gpu_model [OPTION...] [TOKENS...]      (--help lists them)
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/cuda/device_info.h"
#include "tests/bench/bench_options.h"
#include "worker/gpu.h"

namespace fenwick {
namespace {

int run(int argc, char** argv) {
    RandomModelOptions options;
    options.hidden_size = 1536;
    options.layers = 21;
    options.heads = 48;
    options.head_dim = 64;
    options.state_size = 128;
    options.vocab_size = 32000;
    std::int64_t pass_tokens = -1;
    bool fp32 = false;
    std::vector<std::int64_t> lengths{131072};
    CLI::App app("Benchmark of a whole model on the GPU");
    testing::add_model_options(app, options, lengths);
    app.add_option("--pass-tokens", pass_tokens, "tokens of a pass; default: what fits, as fenwick score");
    app.add_flag("--fp32", fp32, "fp32 operands");
    CLI11_PARSE(app, argc, argv);

    const GpuStatus status = gpu_status(false);
    fmt::print("{}\n", status.text);
    if (!status.usable) return 77;
    const testing::TemporaryModels models;
    options.output = models.root() / "bench";
    write_random_model(options);
    const std::shared_ptr<const Model> model = Model::load(options.output);
    if (pass_tokens < 0) pass_tokens = gpu_pass_tokens(*model, !fp32, 0);
    fmt::print("{}, {:.0f} M parameters, {} layers, {}, passes of {} tokens\n", model->family(),
               static_cast<double>(model->parameter_count()) / 1e6, options.layers, fp32 ? "fp32" : "bf16",
               pass_tokens);
    const std::int64_t free_before = cuda::free_device_bytes();
    SelfCommunicator self;
    Gang gang(model, self, 1, {true, !fp32});
    fmt::print("{:>10} {:>10} {:>12} {:>16}\n", "tokens", "seconds", "tokens/s", "GPU memory");
    for (const std::int64_t tokens : lengths) {
        const std::vector<std::int32_t> ids =
            testing::random_ids(tokens, static_cast<std::int32_t>(options.vocab_size), 1);
        const auto score = [&] {
            gang.begin_document();
            (void)testing::score(gang, ids, pass_tokens);
        };
        score();  // plans and warms up
        std::vector<double> seconds(3);
        for (double& each : seconds) each = testing::seconds_of(score);
        std::sort(seconds.begin(), seconds.end());
        const double median = seconds[1];
        fmt::print("{:>10} {:>10.4f} {:>12.0f} {:>11.0f} MiB\n", tokens, median, static_cast<double>(tokens) / median,
                   static_cast<double>(free_before - cuda::free_device_bytes()) / (1 << 20));
    }
    return 0;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    try {
        return fenwick::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_gpu_model: {}\n", error.what());
        return 70;
    }
}
