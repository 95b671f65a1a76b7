#include "tests/bench/bench_ranks_model.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "core/hash.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/self_communicator.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/bench_ranks.h"
#include "tests/worker/small_models.h"
#include "worker/cuda/gpu_prefill.h"
#include "worker/gang.h"
#include "worker/gpu.h"

namespace fenwick::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Scored {
    std::vector<double> seconds;  ///< of each run
    std::vector<float> nll;
};

/// Rank 0's end of a gang: `runs` scorings of the whole document, after one that warms up.
Scored score_runs(Gang& gang, const std::vector<std::int32_t>& ids, std::int64_t pass_tokens, int runs) {
    Scored scored;
    for (int i = -1; i < runs; ++i) {
        gang.begin_document();
        const auto start = std::chrono::steady_clock::now();
        scored.nll = testing::score(gang, ids, pass_tokens);
        if (i >= 0) scored.seconds.push_back(seconds_since(start));
    }
    return scored;
}

/// What a pass waits for, all layers, ms: of the rank that waits longest.
struct Waits {
    double exchange = 0;
    double halo = 0;
};

/// Collective. One pass in the middle of the document, with the times of every layer's exchange.
Waits print_timeline(Communicator& world, const std::shared_ptr<const Model>& model, std::int64_t pass_tokens) {
    cuda::GpuPrefill prefill(model, cuda::Operand::kBf16,
                             std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{}), world.status());
    for (int i = 0; i < 3; ++i) {
        if (i == 2) prefill.exchange().measure(true);
        const ShardPlan plan = make_shard_plan(i * pass_tokens, pass_tokens, world.size());
        const auto rows = plan.shard(world.rank()).tokens;
        const std::vector<std::int32_t> ids = testing::random_ids(
            rows + 1, static_cast<std::int32_t>(model->vocab_size()), static_cast<std::uint64_t>(i));
        std::vector<float> nll(static_cast<std::size_t>(rows));
        const std::span<const std::int32_t> all(ids);
        prefill.run_pass(plan, all.first(nll.size()), all.subspan(1), nll);
    }
    const std::vector<cuda::ExchangeTimes> times = prefill.exchange().take_times();
    Waits own;
    for (const cuda::ExchangeTimes& each : times) {
        own.exchange += each.exposed;
        own.halo += each.halo_exposed;
    }
    for (int rank = 0; rank < world.size(); ++rank) {
        barrier(world);
        if (rank != world.rank()) continue;
        double exchange = 0;
        for (std::size_t layer = 0; layer < times.size(); ++layer) {
            exchange += times[layer].exchange;
            if (layer < 3 || layer + 1 == times.size()) {
                fmt::print(
                    "    rank {}, layer {:>2}: exchange {:.1f} us, of it exposed {:.1f} us; halo exposed {:.1f} us\n",
                    rank, layer, 1000 * times[layer].exchange, 1000 * times[layer].exposed,
                    1000 * times[layer].halo_exposed);
            }
        }
        fmt::print("    rank {}, all {} layers: exchanges {:.3f} ms, exposed {:.3f} ms, halos exposed {:.3f} ms\n",
                   rank, times.size(), exchange, own.exchange, own.halo);
        std::fflush(stdout);
    }
    barrier(world);
    return {largest(world, own.exchange), largest(world, own.halo)};
}

nlohmann::ordered_json figure(const Model& model, std::int64_t tokens, std::int64_t share, int ranks,
                              const Scored& scored) {
    std::vector<double> ms;
    for (const double seconds : scored.seconds) ms.push_back(1e3 * seconds);
    Hasher losses;
    losses.update(std::as_bytes(std::span(scored.nll)));
    return {{"what", fmt::format("{}, {:.0f} M parameters", model.family(),
                                 static_cast<double>(model.parameter_count()) / 1e6)},
            {"part", "prefill"},
            {"tokens", tokens},
            {"ranks", ranks},
            {"ms", ms},
            {"pass_tokens_per_rank", share},
            {"checksum", losses.hex()}};
}

}  // namespace

bool bench_model(Communicator& world, const std::filesystem::path& folder, std::int64_t tokens, int runs,
                 const std::filesystem::path& json) {
    const bool first = world.rank() == 0;
    const std::shared_ptr<const Model> model = Model::load(folder);
    int device = 0;
    FENWICK_CUDA_CHECK(cudaGetDevice(&device));
    const Compute compute{true, true, device, std::chrono::milliseconds(60000)};
    const std::int64_t share = std::min(gpu_pass_tokens(*model, true, compute.device), tokens);
    const std::vector<std::int32_t> ids =
        testing::random_ids(first ? tokens : 1, static_cast<std::int32_t>(model->vocab_size()), 1);
    Scored alone;
    if (first) {
        fmt::print("{}, {:.0f} M parameters, T {}, passes of {} tokens a rank; medians of {}\n", model->family(),
                   static_cast<double>(model->parameter_count()) / 1e6, tokens, share, runs);
        SelfCommunicator self;
        Gang gang(model, self, 1, compute);
        alone = score_runs(gang, ids, share, runs);
        const double seconds = median(alone.seconds);
        fmt::print("    {:>2} GPU  {:>9.4f} s {:>12.0f} tokens/s\n", 1, seconds, static_cast<double>(tokens) / seconds);
        append_figure(json, figure(*model, tokens, share, 1, alone));
        std::fflush(stdout);
    }
    barrier(world);
    bool same = true;
    Scored together;
    if (first) {
        Gang gang(model, world, 1, compute);
        together = score_runs(gang, ids, share * world.size(), runs);
        gang.finish();
        same = together.nll.size() == alone.nll.size() &&
               std::memcmp(together.nll.data(), alone.nll.data(), alone.nll.size() * sizeof(float)) == 0;
        const double seconds = median(together.seconds);
        fmt::print("    {:>2} GPUs {:>9.4f} s {:>12.0f} tokens/s, {:.3f}x; losses {}\n", world.size(), seconds,
                   static_cast<double>(tokens) / seconds, median(alone.seconds) / seconds,
                   same ? "the same bytes" : "DIFFER");
        std::fflush(stdout);
    } else {
        serve_gang(model, world, 1, compute);
    }
    const Waits waits = print_timeline(world, model, share * world.size());
    if (first) {
        nlohmann::ordered_json many = figure(*model, tokens, share, world.size(), together);
        many["pass_exposed_ms"] = waits.exchange;
        many["pass_halo_exposed_ms"] = waits.halo;
        append_figure(json, many);
    }
    return same;
}

}  // namespace fenwick::bench
