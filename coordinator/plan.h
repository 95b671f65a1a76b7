// What a run will do and cost, from pure functions of lengths, ranks and the model's layers. Nothing is computed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/exchange_cost.h"
#include "parallel/shard_plan.h"
#include "worker/model.h"

namespace fenwick {

struct PlanRequest {
    std::vector<std::int64_t> documents;  ///< tokens of each
    int ranks = 1;
    std::int64_t pass_tokens = 0;  ///< kUnlimitedPass, or a multiple of kBlockTokens
    Link link = parse_link("ib");  ///< between ranks
    double rank_flops = 0;         ///< useful operations a second of one rank; 0: no prediction of time
};

/// The exchange of one layer, in the pass of those looked at in which it takes longest.
struct LayerExchange {
    ExchangeCost tree;
    ExchangeCost all_gather;
    ExchangeCost ring;
};

/// One kind of layer (layers of equal cost): figures for one of them.
struct LayerPlan {
    std::string mixer;
    std::int64_t layers = 0;
    std::int64_t summary_bytes = 0;
    std::int64_t halo_bytes = 0;
    std::int64_t bytes_sent_per_rank_and_pass = 0;  ///< of the rank and pass that send most
    LayerExchange exchange;
};

/// What the longest document's passes come to by the link's model and the ranks' rate. Exposed: nothing of an exchange
/// is hidden behind work, the worst case; hidden: all of it is, and unequal shards alone cost.
struct Prediction {
    double compute_seconds = 0;     ///< of the busiest rank, over all passes
    double exchange_seconds = 0;    ///< all layers and passes
    double efficiency_exposed = 1;  ///< work / (ranks * time)
    double efficiency_hidden = 1;
};

/// Figures of shards and exchange are those of the longest document, whole passes; costs are sums over all documents.
struct Plan {
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    std::int64_t longest = 0;
    int ranks = 1;
    std::int64_t pass_tokens = 0;            ///< of the longest document's longest pass
    std::int64_t passes = 0;                 ///< of all documents
    std::vector<std::int64_t> shard_tokens;  ///< [ranks], first pass of the longest document
    int rounds = 0;                          ///< of the exchange, for each layer and pass
    std::int64_t messages_per_rank = 0;      ///< most that a rank sends for one layer and pass
    std::int64_t summaries_per_rank = 0;     ///< likewise
    std::vector<LayerPlan> layers;
    std::int64_t exchange_bytes_per_rank = 0;    ///< all layers, one pass
    std::int64_t weight_bytes = 0;               ///< for each process
    std::int64_t state_bytes_per_rank = 0;       ///< carried lists of all layers and one layer's summaries
    std::int64_t activation_bytes_per_rank = 0;  ///< one layer at work
    std::int64_t result_bytes = 0;               ///< NLL files
    double flops = 0;
    Link link;
    Prediction prediction;
};

[[nodiscard]] Plan make_plan(const Model& model, const PlanRequest& request);

[[nodiscard]] nlohmann::ordered_json to_json(const Plan& plan);
/// The table that people read, several lines.
[[nodiscard]] std::string to_text(const Plan& plan);

/// "512 B", "1.5 MiB", ...
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

}  // namespace fenwick
