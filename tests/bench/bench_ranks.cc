// One GPU against several, in one run. Started by mpirun with a rank for each GPU (ops/gpu-ranks-check).
//
//   bench_ranks exchange [--runs N]                               swaps, and one layer's exchange
//   bench_ranks mixers [--tokens T] [--runs N] [--only NAME-PART] the mixers of the comparison
//   bench_ranks model --model DIR [--tokens T] [--runs N]         a whole model's prefill, scoring included
//
// mixers and model: --json FILE appends each figure, with the times of all runs, as a line of JSON.
#include "tests/bench/bench_ranks.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>

#include "core/cuda/check.h"
#include "core/cuda/device_info.h"
#include "parallel/collectives.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_monitor.h"
#include "tests/bench/bench_ranks_model.h"

namespace fenwick::bench {

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double largest(Communicator& world, double own) {
    std::vector<double> all(static_cast<std::size_t>(world.size()), own);
    const std::vector<std::int64_t> sizes(all.size(), sizeof(own));
    const std::span<double> at_root(all.data(), world.rank() == 0 ? all.size() : 0);
    gather_to_root(world, std::as_bytes(std::span(&own, 1)), sizes, std::as_writable_bytes(at_root));
    double most = *std::max_element(all.begin(), all.end());
    broadcast(world, std::as_writable_bytes(std::span(&most, 1)));
    return most;
}

namespace {

struct Options {
    std::int64_t tokens = 1048576;
    int runs = 7;
    std::string only;
    std::filesystem::path model;
    std::filesystem::path json;
};

int run(int argc, char** argv) {
    Options options;
    CLI::App app("One GPU against several, in one run; start it with mpirun, one rank for each GPU");
    app.require_subcommand(1);
    CLI::App* exchange = app.add_subcommand("exchange", "swaps, and one layer's exchange");
    CLI::App* mixers = app.add_subcommand("mixers", "the mixers of the comparison");
    CLI::App* model = app.add_subcommand("model", "a whole model's prefill");
    for (CLI::App* each : {exchange, mixers, model}) each->add_option("--runs", options.runs, "runs of each");
    for (CLI::App* each : {mixers, model}) {
        each->add_option("--tokens", options.tokens, "tokens of the document");
        each->add_option("--json", options.json, "file that each figure is appended to");
    }
    mixers->add_option("--only", options.only, "part of a mixer's name");
    model->add_option("--model", options.model, "folder of the model")->required();
    CLI11_PARSE(app, argc, argv);
    if (!launched_under_mpi()) throw UsageError("start me with mpirun, one rank for each GPU");
    const MpiEnvironment environment;
    MpiCommunicator world;
    const int device = world.local_rank();
    const cuda::DeviceReport report = cuda::probe_devices(false);
    if (device >= static_cast<int>(report.devices.size())) {
        fmt::print("skipped: no GPU for rank {}\n", world.rank());
        return 77;
    }
    FENWICK_CUDA_CHECK(cudaSetDevice(device));
    fmt::print("rank {}: {}, PCI {}\n", world.rank(), report.devices[static_cast<std::size_t>(device)].name,
               report.devices[static_cast<std::size_t>(device)].pci_id);
    std::fflush(stdout);
    barrier(world);
    const MpiMonitor monitor(world, std::chrono::seconds(60));
    bool same = true;
    try {
        if (*exchange) bench_exchange(world, options.runs);
        if (*mixers) same = bench_mixers(world, options.tokens, options.runs, options.only, options.json);
        if (*model) same = bench_model(world, options.model, options.tokens, options.runs, options.json);
    } catch (const std::exception& error) {
        world.abort(error.what(), ExitCode::kInternal);
    }
    return same ? 0 : 1;
}

}  // namespace
}  // namespace fenwick::bench

int main(int argc, char** argv) {
    try {
        return fenwick::bench::run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_ranks: {}\n", error.what());
        return 70;
    }
}
