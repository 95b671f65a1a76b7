#include "coordinator/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "coordinator/score_options.h"
#include "core/fenwick.h"
#include "parallel/exchange_schedule.h"
#include "parallel/shard_plan.h"

namespace fenwick {
namespace {

/// Schedules are O(P log P) each: of a long document's passes over many ranks an even sample is looked at.
constexpr std::int64_t kScheduledRanks = 1 << 18;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

/// Adds shards and exchange of the longest document, and its largest messages.
void plan_exchange(Plan& plan) {
    const std::int64_t passes =
        std::max<std::int64_t>(1, ceil_div(plan.longest, std::max<std::int64_t>(plan.pass_tokens, 1)));
    const std::int64_t sample = std::clamp<std::int64_t>(kScheduledRanks / plan.ranks, 1, passes);
    for (std::int64_t i = 0; i < sample; ++i) {
        const std::int64_t first = i * passes / sample * plan.pass_tokens;
        const ShardPlan shards = make_shard_plan(first, std::min(plan.pass_tokens, plan.longest - first), plan.ranks);
        if (i == 0) {
            for (const Shard& shard : shards.shards) plan.shard_tokens.push_back(shard.tokens);
        }
        const ExchangeSchedule schedule = make_exchange_schedule(shards.complete_block_boundaries());
        plan.rounds = schedule.round_count();
        for (int rank = 0; rank < plan.ranks; ++rank) {
            plan.messages_per_rank = std::max(plan.messages_per_rank, schedule.messages_sent(rank));
            plan.summaries_per_rank = std::max(plan.summaries_per_rank, schedule.summaries_sent(rank));
        }
    }
}

void plan_layers(Plan& plan, const std::vector<LayerCost>& costs) {
    const std::int64_t shard = plan.shard_tokens.empty() ? 0 : plan.shard_tokens.front();
    const auto list_nodes =
        static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(plan.longest / kBlockTokens)));
    std::int64_t largest_layer = 0;
    for (const LayerCost& cost : costs) {
        const bool halo_travels = plan.ranks > 1;
        const std::int64_t sent = plan.summaries_per_rank * cost.summary_bytes + (halo_travels ? cost.halo_bytes : 0);
        plan.exchange_bytes_per_rank += sent;
        plan.state_bytes_per_rank += list_nodes * cost.summary_bytes + cost.halo_bytes;
        largest_layer = std::max(largest_layer, ceil_div(shard, kBlockTokens) * cost.summary_bytes);
        plan.activation_bytes_per_rank =
            std::max(plan.activation_bytes_per_rank, shard * cost.activation_bytes_per_token);
        const auto same = std::find_if(plan.layers.begin(), plan.layers.end(), [&](const LayerPlan& kind) {
            return kind.mixer == cost.mixer && kind.summary_bytes == cost.summary_bytes &&
                   kind.halo_bytes == cost.halo_bytes;
        });
        if (same != plan.layers.end()) {
            ++same->layers;
        } else {
            plan.layers.push_back({cost.mixer, 1, cost.summary_bytes, cost.halo_bytes, sent});
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

std::int64_t entering_states(std::int64_t blocks) {
    std::int64_t sum = 0;
    for (int bit = 0; (std::int64_t{1} << bit) < blocks; ++bit) {
        // Of every 2^(bit + 1) numbers in a row, the upper half has the bit.
        const std::int64_t period = std::int64_t{2} << bit;
        sum += blocks / period * (period / 2) + std::max<std::int64_t>(0, blocks % period - period / 2);
    }
    return sum;
}

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
    plan.weight_bytes = model.parameters() * static_cast<std::int64_t>(sizeof(float));
    plan_exchange(plan);
    plan_layers(plan, costs);
    return plan;
}

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
                                  {"bytes_per_rank_and_pass", layer.bytes_sent_per_rank_and_pass}});
    }
    json["memory"] = {{"weight_bytes_per_process", plan.weight_bytes},
                      {"state_bytes_per_rank", plan.state_bytes_per_rank},
                      {"activation_bytes_per_rank", plan.activation_bytes_per_rank},
                      {"result_bytes", plan.result_bytes}};
    json["flops"] = plan.flops;
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
    }
    line("traffic", fmt::format("{} sent by a rank in a pass, all layers", bytes_text(plan.exchange_bytes_per_rank)));
    line("memory", fmt::format("weights {} a process; a rank: states {}, activations {}", bytes_text(plan.weight_bytes),
                               bytes_text(plan.state_bytes_per_rank), bytes_text(plan.activation_bytes_per_rank)));
    line("results", fmt::format("{} on disk", bytes_text(plan.result_bytes)));
    line("work", fmt::format("{:.3g} TFLOP", plan.flops / 1e12));
    return text;
}

}  // namespace fenwick
