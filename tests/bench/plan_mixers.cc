// What bench_ranks' mixers come to on other numbers of ranks, from the plan of shards and the exchange's schedule
// alone: one JSON object a mixer. `fenwick plan` says the same of a whole model. Nothing is computed, no GPU is needed.
//
//   plan_mixers TOKENS RANKS [LINK]      (LINK as in fenwick plan --link; nvlink by default)
//
//   work            of the whole document, in blocks: sum over its blocks z of 1 + level_cost * popcount(z)
//   efficiency      work / (RANKS * work of the busiest rank): what unequal shards leave, every exchange hidden
//   exchange_ms     of one step by the link's model
//   messages, bytes, rounds    of the rank that sends most, in one step
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/errors.h"
#include "kernels/summary.h"
#include "parallel/exchange_cost.h"
#include "parallel/shard_plan.h"
#include "tests/bench/mixer_works.h"

namespace fenwick::bench {
namespace {

double work_of(std::int64_t first, std::int64_t blocks, double level_cost) {
    return static_cast<double>(blocks) +
           level_cost * static_cast<double>(entering_states(first + blocks) - entering_states(first));
}

nlohmann::ordered_json plan(const MixerWork& mixer, std::int64_t tokens, int ranks, const Link& link) {
    MixerShape shape = mixer.shape;
    if (mixer.log_linear) shape.levels = levels_of(tokens);
    const std::int64_t summary_bytes = summary_floats(shape) * static_cast<std::int64_t>(sizeof(float));
    const ShardPlan shards = make_shard_plan(0, tokens, ranks, mixer.level_cost);
    const ExchangeSchedule schedule = make_exchange_schedule(shards.complete_block_boundaries());
    const ExchangeCost exchange = tree_cost(schedule, summary_bytes, link);
    double work = 0;
    double busiest = 0;
    for (const Shard& shard : shards.shards) {
        const double own = work_of(shard.first_block, shard.blocks, mixer.level_cost);
        work += own;
        busiest = std::max(busiest, own);
    }
    std::int64_t messages = 0;
    for (int rank = 0; rank < ranks; ++rank) messages = std::max(messages, schedule.messages_sent(rank));
    return {{"name", mixer.name},
            {"tokens", tokens},
            {"ranks", ranks},
            {"work", work},
            {"efficiency", work / (ranks * busiest)},
            {"exchange_ms", 1e3 * exchange.seconds},
            {"messages", messages},
            {"bytes", exchange.bytes_sent},
            {"rounds", exchange.rounds}};
}

std::int64_t positive(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) {
        throw UsageError(fmt::format("expected a number of 1 or more, found {}", text));
    }
    return value;
}

int run(int argc, char** argv) {
    if (argc < 3 || argc > 4) throw UsageError("usage: plan_mixers TOKENS RANKS [LINK]");
    const std::int64_t tokens = positive(argv[1]);
    const std::int64_t ranks = positive(argv[2]);
    if (ranks > 65536) throw UsageError("at most 65536 ranks");
    const Link link = parse_link(argc == 4 ? argv[3] : "nvlink");
    for (const MixerWork& mixer : kMixerWorks) {
        fmt::print("{}\n", plan(mixer, tokens, static_cast<int>(ranks), link).dump());
    }
    return 0;
}

}  // namespace
}  // namespace fenwick::bench

int main(int argc, char** argv) {
    try {
        return fenwick::bench::run(argc, argv);
    } catch (const fenwick::Error& error) {
        fmt::print(stderr, "plan_mixers: {}\n", error.what());
        return static_cast<int>(error.code());
    }
}
