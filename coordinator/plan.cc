#include "coordinator/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "coordinator/score_options.h"
#include "core/fenwick.h"
#include "parallel/exchange_schedule.h"
#include "parallel/shard_plan.h"
#include "worker/shard_cost.h"

namespace fenwick {
namespace {

/// Schedules are O(P log P) each: of a long document's passes over many ranks an even sample is looked at.
constexpr std::int64_t kScheduledRanks = 1 << 18;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

/// Useful operations of `tokens` tokens from block `first` on.
double flops_of_run(std::int64_t first, std::int64_t tokens, const std::vector<LayerCost>& costs, double head) {
    const auto t = static_cast<double>(tokens);
    const std::int64_t states = entering_states(first + ceil_div(tokens, kBlockTokens)) - entering_states(first);
    double flops = t * head;
    for (const LayerCost& cost : costs) {
        flops += t * cost.flops_per_token + static_cast<double>(states * kBlockTokens) * cost.flops_per_token_and_level;
    }
    return flops;
}

/// Each kind of summary, and how many layers have it.
std::map<std::int64_t, std::int64_t> layers_by_summary(const std::vector<LayerCost>& costs) {
    std::map<std::int64_t, std::int64_t> layers;
    for (const LayerCost& cost : costs) ++layers[cost.summary_bytes];
    return layers;
}

/// Sums over the passes that were looked at.
struct PassTotals {
    double work = 0;                               ///< operations of all ranks
    double busiest = 0;                            ///< of the busiest rank of each pass
    double exchange = 0;                           ///< seconds
    std::map<std::int64_t, ExchangeCost> slowest;  ///< by summary bytes
};

void add_pass(PassTotals& totals, const ShardPlan& shards, const ExchangeSchedule& schedule, const Link& link,
              const std::vector<LayerCost>& costs, double head) {
    double busiest = 0;
    for (const Shard& shard : shards.shards) {
        const double flops = flops_of_run(shard.first_block, shard.tokens, costs, head);
        totals.work += flops;
        busiest = std::max(busiest, flops);
    }
    totals.busiest += busiest;
    for (const auto& [bytes, layers] : layers_by_summary(costs)) {
        const ExchangeCost cost = tree_cost(schedule, bytes, link);
        totals.exchange += static_cast<double>(layers) * cost.seconds;
        ExchangeCost& slowest = totals.slowest[bytes];
        if (cost.seconds >= slowest.seconds) slowest = cost;
    }
}

/// `work`: operations of the whole document. The passes that were looked at stand for all.
void predict(Plan& plan, const PassTotals& totals, double work, double rank_flops) {
    if (rank_flops <= 0 || totals.work <= 0) return;
    const double all = work / totals.work;
    Prediction& p = plan.prediction;
    p.compute_seconds = all * totals.busiest / rank_flops;
    p.exchange_seconds = all * totals.exchange;
    const double ideal = work / rank_flops / plan.ranks;
    p.efficiency_hidden = ideal / p.compute_seconds;
    p.efficiency_exposed = ideal / (p.compute_seconds + p.exchange_seconds);
}

/// Adds shards and exchange of the longest document, and its largest messages.
PassTotals plan_exchange(Plan& plan, const std::vector<LayerCost>& costs, double head, double level_cost) {
    PassTotals totals;
    const std::int64_t passes =
        std::max<std::int64_t>(1, ceil_div(plan.longest, std::max<std::int64_t>(plan.pass_tokens, 1)));
    const std::int64_t sample = std::clamp<std::int64_t>(kScheduledRanks / plan.ranks, 1, passes);
    for (std::int64_t i = 0; i < sample; ++i) {
        const std::int64_t first = i * passes / sample * plan.pass_tokens;
        const ShardPlan shards =
            make_shard_plan(first, std::min(plan.pass_tokens, plan.longest - first), plan.ranks, level_cost);
        if (i == 0) {
            for (const Shard& shard : shards.shards) plan.shard_tokens.push_back(shard.tokens);
        }
        const ExchangeSchedule schedule = make_exchange_schedule(shards.complete_block_boundaries());
        plan.rounds = schedule.round_count();
        add_pass(totals, shards, schedule, plan.link, costs, head);
        for (int rank = 0; rank < plan.ranks; ++rank) {
            plan.messages_per_rank = std::max(plan.messages_per_rank, schedule.messages_sent(rank));
            plan.summaries_per_rank = std::max(plan.summaries_per_rank, schedule.summaries_sent(rank));
        }
    }
    return totals;
}

void plan_layers(Plan& plan, const std::vector<LayerCost>& costs, const PassTotals& totals) {
    const std::int64_t shard =
        plan.shard_tokens.empty() ? 0 : *std::max_element(plan.shard_tokens.begin(), plan.shard_tokens.end());
    const auto list_nodes =
        static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(plan.longest / kBlockTokens)));
    std::int64_t largest_layer = 0;
    for (const LayerCost& cost : costs) {
        const bool halo_travels = plan.ranks > 1;
        const std::int64_t sent = plan.summaries_per_rank * cost.summary_bytes + (halo_travels ? cost.halo_bytes : 0);
        plan.exchange_bytes_per_rank += sent;
        plan.state_bytes_per_rank += list_nodes * cost.summary_bytes + cost.halo_bytes;
        // The blocks' summaries, and as many nodes above them.
        largest_layer = std::max(largest_layer, 2 * ceil_div(shard, kBlockTokens) * cost.summary_bytes);
        plan.activation_bytes_per_rank =
            std::max(plan.activation_bytes_per_rank, shard * cost.activation_bytes_per_token);
        const auto same = std::find_if(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& kind) {
            return kind.mixer == cost.mixer && kind.summary_bytes == cost.summary_bytes &&
                   kind.halo_bytes == cost.halo_bytes;
        });
        if (same != plan.layers.end()) {
            ++same->layers;
        } else {
            const LayerExchange exchange{totals.slowest.at(cost.summary_bytes),
                                         all_gather_cost(plan.ranks, cost.summary_bytes, plan.link),
                                         ring_cost(plan.ranks, cost.summary_bytes, plan.link)};
            plan.layers.push_back({cost.mixer, 1, cost.summary_bytes, cost.halo_bytes, sent, exchange});
        }
    }
    plan.state_bytes_per_rank += largest_layer;
}

double flops_of(std::int64_t tokens, const std::vector<LayerCost>& costs, double head) {
    const auto t = static_cast<double>(tokens);
    const double states = static_cast<double>(entering_states(ceil_div(tokens, kBlockTokens))) * kBlockTokens;
    double flops = t * head;
    for (const LayerCost& cost : costs) flops += t * cost.flops_per_token + states * cost.flops_per_token_and_level;
    return flops;
}

}  // namespace

Plan make_plan(const Model& model, const PlanRequest& request) {
    Plan plan;
    const std::vector<LayerCost> costs = model.layer_costs();
    plan.ranks = request.ranks;
    for (const std::int64_t tokens : request.documents) {
        ++plan.documents;
        plan.tokens += tokens;
        plan.longest = std::max(plan.longest, tokens);
        plan.passes +=
            request.pass_tokens == kUnlimitedPass ? (tokens > 0 ? 1 : 0) : ceil_div(tokens, request.pass_tokens);
        plan.flops += flops_of(tokens, costs, model.head_flops_per_token());
        plan.result_bytes += 128 + 4 * std::max<std::int64_t>(tokens - 1, 0);
    }
    plan.pass_tokens =
        request.pass_tokens == kUnlimitedPass ? plan.longest : std::min(request.pass_tokens, plan.longest);
    plan.weight_bytes = model.parameter_count() * static_cast<std::int64_t>(sizeof(float));
    plan.link = request.link;
    const double head = model.head_flops_per_token();
    const PassTotals totals = plan_exchange(plan, costs, head, level_cost(model));
    plan_layers(plan, costs, totals);
    predict(plan, totals, flops_of_run(0, plan.longest, costs, head), request.rank_flops);
    return plan;
}

namespace {

nlohmann::ordered_json cost_json(const ExchangeCost& cost) {
    return {{"rounds", cost.rounds}, {"bytes_sent_by_a_rank", cost.bytes_sent}, {"seconds", cost.seconds}};
}

std::string microseconds_text(double seconds) {
    return seconds < 1e-2 ? fmt::format("{:.0f} us", 1e6 * seconds) : fmt::format("{:.1f} ms", 1e3 * seconds);
}

std::string cost_text(const ExchangeCost& cost) {
    return fmt::format("{} rounds, {}, {}", cost.rounds, bytes_text(cost.bytes_sent), microseconds_text(cost.seconds));
}

}  // namespace

nlohmann::ordered_json to_json(const Plan& plan) {
    nlohmann::ordered_json json;
    json["documents"] = plan.documents;
    json["tokens"] = plan.tokens;
    json["longest_document"] = plan.longest;
    json["ranks"] = plan.ranks;
    json["pass_tokens"] = plan.pass_tokens;
    json["passes"] = plan.passes;
    json["shard_tokens"] = plan.shard_tokens;
    json["exchange"] = {{"rounds", plan.rounds},
                        {"messages_per_rank_and_layer", plan.messages_per_rank},
                        {"summaries_per_rank_and_layer", plan.summaries_per_rank},
                        {"bytes_per_rank_and_pass", plan.exchange_bytes_per_rank}};
    json["layers"] = nlohmann::ordered_json::array();
    for (const LayerPlan& layer : plan.layers) {
        json["layers"].push_back({{"mixer", layer.mixer},
                                  {"layers", layer.layers},
                                  {"summary_bytes", layer.summary_bytes},
                                  {"halo_bytes", layer.halo_bytes},
                                  {"bytes_per_rank_and_pass", layer.bytes_sent_per_rank_and_pass},
                                  {"tree_exchange", cost_json(layer.exchange.tree)},
                                  {"all_gather", cost_json(layer.exchange.all_gather)},
                                  {"ring", cost_json(layer.exchange.ring)}});
    }
    json["memory"] = {{"weight_bytes_per_process", plan.weight_bytes},
                      {"state_bytes_per_rank", plan.state_bytes_per_rank},
                      {"activation_bytes_per_rank", plan.activation_bytes_per_rank},
                      {"result_bytes", plan.result_bytes}};
    json["flops"] = plan.flops;
    json["link"] = {
        {"name", plan.link.name}, {"latency_seconds", plan.link.latency}, {"bytes_per_second", plan.link.bandwidth}};
    if (plan.prediction.compute_seconds > 0) {
        json["prediction"] = {{"compute_seconds", plan.prediction.compute_seconds},
                              {"exchange_seconds", plan.prediction.exchange_seconds},
                              {"efficiency_exchange_exposed", plan.prediction.efficiency_exposed},
                              {"efficiency_exchange_hidden", plan.prediction.efficiency_hidden}};
    }
    return json;
}

std::string bytes_text(std::int64_t bytes) {
    constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) return fmt::format("{} B", bytes);
    auto value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string to_text(const Plan& plan) {
    std::string text;
    const auto line = [&](const char* name, const std::string& value) {
        text += fmt::format("{:<12} {}\n", name, value);
    };
    line("documents", fmt::format("{} of {} tokens in all, the longest {}", plan.documents, plan.tokens, plan.longest));
    line("passes", fmt::format("{} in all, {} tokens at most", plan.passes, plan.pass_tokens));
    const auto [least, most] = std::minmax_element(plan.shard_tokens.begin(), plan.shard_tokens.end());
    const auto idle = std::count(plan.shard_tokens.begin(), plan.shard_tokens.end(), 0);
    line("shards", fmt::format("{} ranks, {} to {} tokens each in a pass{}", plan.ranks, *least, *most,
                               idle > 0 ? fmt::format(" ({} ranks without a block)", idle) : ""));
    line("exchange", fmt::format("{} rounds for each layer and pass; a rank sends at most {} messages, {} summaries",
                                 plan.rounds, plan.messages_per_rank, plan.summaries_per_rank));
    for (const LayerPlan& layer : plan.layers) {
        line("layers", fmt::format("{} x {}: summary {}, halo {}, sent by a rank {} a pass", layer.layers, layer.mixer,
                                   bytes_text(layer.summary_bytes), bytes_text(layer.halo_bytes),
                                   bytes_text(layer.bytes_sent_per_rank_and_pass)));
        if (plan.ranks == 1) continue;
        line("", fmt::format("exchange of a layer and pass: tree {}; all-gather {}; ring {}",
                             cost_text(layer.exchange.tree), cost_text(layer.exchange.all_gather),
                             cost_text(layer.exchange.ring)));
    }
    if (plan.ranks > 1) {
        line("link", fmt::format("{}: {:.0f} us a group of messages, {:.1f} GB/s each way: a model, see --help",
                                 plan.link.name, 1e6 * plan.link.latency, plan.link.bandwidth / 1e9));
    }
    if (plan.prediction.compute_seconds > 0 && plan.ranks > 1) {
        const Prediction& p = plan.prediction;
        line("scaling",
             fmt::format("{:.4g} s of work on the busiest rank, {:.4g} s of exchanges: {:.1f} % of {} ranks with "
                         "every exchange exposed, {:.1f} % with all hidden (unequal shards alone)",
                         p.compute_seconds, p.exchange_seconds, 100 * p.efficiency_exposed, plan.ranks,
                         100 * p.efficiency_hidden));
    }
    line("traffic", fmt::format("{} sent by a rank in a pass, all layers", bytes_text(plan.exchange_bytes_per_rank)));
    line("memory", fmt::format("weights {} a process; a rank: states {}, activations {}", bytes_text(plan.weight_bytes),
                               bytes_text(plan.state_bytes_per_rank), bytes_text(plan.activation_bytes_per_rank)));
    line("results", fmt::format("{} on disk", bytes_text(plan.result_bytes)));
    line("work", fmt::format("{:.3g} TFLOP", plan.flops / 1e12));
    return text;
}

}  // namespace fenwick
