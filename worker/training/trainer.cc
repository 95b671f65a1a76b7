#include "worker/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "core/errors.h"
#include "core/fenwick.h"
#include "core/json.h"
#include "kernels/backward/cross_entropy.h"
#include "parallel/collectives.h"
#include "worker/shard_cost.h"
#include "worker/training/sharded_optimizer.h"
#include "worker/training/training_data.h"

namespace fenwick {
namespace {

DatasetOptions options_of(const DataSettings& data) {
    return {data.sequence_tokens, data.batch_tokens, data.seed, true};
}

nlohmann::json to_json(const TrainerState& state, const DataSettings& data, const Dataset& dataset) {
    nlohmann::json json;
    json["updates"] = state.updates;
    json["tokens"] = state.tokens;
    json["labels"] = state.labels;
    json["epoch"] = state.position.epoch;
    json["item"] = state.position.item;
    json["loss"] = state.loss ? nlohmann::json(*state.loss) : nlohmann::json();
    json["data"] = {{"identity", dataset.identity()}, {"micro_batches", data.micro_batches}};
    return json;
}

/// Places for why_not_finite, in the order of computation: 0 the embeddings, i + 1 layer i, then these.
constexpr std::int64_t kHeadAlone = std::int64_t{1} << 40;
constexpr std::int64_t kAllFinite = kHeadAlone + 1;

std::int64_t bad_place(std::int64_t first_not_finite) {
    return first_not_finite < 0 ? kHeadAlone : first_not_finite;
}

/// One number of each rank, as seen by all: value r is rank r's.
std::vector<double> from_all_ranks(Communicator& world, double own) {
    std::vector<double> all(static_cast<std::size_t>(world.size()), 0.0);
    all[static_cast<std::size_t>(world.rank())] = own;
    all_sum(world, all);
    return all;
}

}  // namespace

Trainer::Trainer(std::shared_ptr<Model> model, Communicator& world, const TrainSettings& settings, int threads,
                 const Compute& compute)
    : model_(std::move(model)),
      world_(world),
      settings_(settings),
      ranks_(world, settings.sequence_ranks),
      data_(settings.data.files, options_of(settings.data)),
      engine_(make_training_engine(model_, world, ranks_, {settings.recompute, static_cast<float>(settings.z_loss)},
                                   threads, compute)) {
    check_vocabulary(data_, *model_, "data.files");
}

std::vector<Trainer::Batch> Trainer::next_batches(DataPosition& position) const {
    std::vector<Batch> batches;
    const double cost = level_cost(*model_);
    for (const std::vector<Sequence>& sequences :
         take_micro_batches(data_, position, settings_.data.micro_batches, ranks_)) {
        Batch batch;
        for (const Sequence& sequence : sequences) {
            batch.documents.push_back(own_part(sequence, cost, ranks_.group()));
            const auto tokens = static_cast<std::int64_t>(sequence.tokens.size());
            batch.tokens += tokens;
            batch.flops += 3.0 * forward_flops(*model_, tokens);
        }
        batches.push_back(std::move(batch));
    }
    return batches;
}

StepResult Trainer::step() {
    StepResult result;
    result.state = state_;
    TrainerState& next = result.state;
    ++next.step;
    const std::vector<Batch> batches = next_batches(next.position);

    enum : std::size_t { kLabels, kTokens, kFlops, kCounts };
    std::array<double, kCounts> counts = {};
    for (const Batch& batch : batches) {
        for (const TrainingDocument& document : batch.documents) {
            counts[kLabels] +=
                static_cast<double>(document.targets.size()) -
                static_cast<double>(std::count(document.targets.begin(), document.targets.end(), kNoTarget));
        }
        if (ranks_.group().rank() != 0) continue;  // whole documents count once a group
        counts[kTokens] += static_cast<double>(batch.tokens);
        counts[kFlops] += batch.flops;
    }
    all_sum(world_, counts);
    result.tokens = static_cast<std::int64_t>(counts[kTokens]);
    result.labels = static_cast<std::int64_t>(counts[kLabels]);
    result.flops = counts[kFlops];
    next.tokens += result.tokens;
    next.labels += result.labels;
    result.learning_rate = learning_rate(settings_.schedule, next.step);
    if (result.labels == 0) {
        state_ = next;
        return result;
    }

    engine_->zero_gradients();
    double own_nll = 0.0;
    const auto scale = static_cast<float>(1.0 / counts[kLabels]);
    std::int64_t bad_layer = kAllFinite;
    for (const Batch& batch : batches) {
        const double part = engine_->run(batch.documents, scale).nll_sum;
        if (!std::isfinite(part) && bad_layer == kAllFinite) bad_layer = bad_place(engine_->first_not_finite_rows());
        own_nll += part;
    }
    double nll = own_nll;
    all_sum(world_, std::span(&nll, 1));
    result.loss = nll / counts[kLabels];
    result.gradient_norm = engine_->reduce();
    if (!std::isfinite(nll) || !std::isfinite(result.gradient_norm)) {
        result.failure = why_not_finite(bad_layer, next.step);
        result.state = state_;
        return result;
    }
    const OptimizerSettings& settings = settings_.optimizer;
    const bool clipped = settings.clip_norm > 0.0 && result.gradient_norm > settings.clip_norm;
    const AdamW hyper{result.learning_rate, settings.beta1, settings.beta2, settings.eps, settings.weight_decay};
    ++next.updates;
    next.loss = result.loss;
    engine_->step(hyper, next.updates, clipped ? static_cast<float>(settings.clip_norm / result.gradient_norm) : 1.0F);
    state_ = next;
    return result;
}

std::string Trainer::why_not_finite(std::int64_t bad_layer, std::int64_t step) {
    const std::vector<double> layers = from_all_ranks(world_, static_cast<double>(bad_layer));
    // Where it began: a bad row of one rank reaches the others of its group in the same layer or a later one.
    const auto first = std::min_element(layers.begin(), layers.end());
    if (*first < static_cast<double>(kAllFinite)) {
        const auto place = static_cast<std::int64_t>(*first);
        const std::string where = place == 0            ? "the embedded tokens are not finite"
                                  : place == kHeadAlone ? "the rows of all layers are finite, the logits are not"
                                                        : fmt::format(
                                                              "layer {} is the first with rows that are not "
                                                              "finite",
                                                              place - 1);
        return fmt::format("step {}: rank {}: the loss is not finite: {}", step, first - layers.begin(), where);
    }
    // Flat position + 1 of this rank's first bad gradient, before it was summed over ranks; 0: none.
    const std::optional<std::int64_t> bad = engine_->first_not_finite_gradient();
    const std::vector<double> places = from_all_ranks(world_, bad ? static_cast<double>(*bad) + 1.0 : 0.0);
    const auto bad_gradient = std::find_if(places.begin(), places.end(), [](double place) { return place > 0.0; });
    if (bad_gradient == places.end()) {
        return fmt::format("step {}: the gradients of all ranks together are beyond the range of fp32", step);
    }
    auto place = static_cast<std::int64_t>(*bad_gradient) - 1;
    auto parameter = engine_->parameters().begin();
    for (; place >= parameter->size; ++parameter) place -= parameter->size;
    return fmt::format("step {}: rank {}: the gradient of {} is not finite", step, bad_gradient - places.begin(),
                       parameter->name);
}

std::filesystem::path Trainer::save(const std::filesystem::path& folder, const std::string& model_config, int keep) {
    const CheckpointHead head{state_.step, parameter_table(engine_->parameters()), model_config,
                              to_json(state_, settings_.data, data_)};
    return write_training_checkpoint(world_, folder, head, engine_->slice(), keep);
}

void Trainer::restore(const TrainingCheckpoint& checkpoint, const std::string& model_config) {
    checkpoint.check_model(model_config, parameter_table(engine_->parameters()));
    const std::string source = (checkpoint.folder() / "manifest.json").string();
    const ConfigReader state(checkpoint.head().state, source);
    const auto data = state.get_object("data");
    if (!data) state.fail("data", "an object");
    if (data->require_string("identity") != data_.identity()) {
        throw UsageError(fmt::format(
            "{}: it was made with other data.files, or another data.sequence_tokens, batch_tokens or seed: its "
            "position in the data means nothing here. Give the same, or start anew in another checkpoint.folder",
            source));
    }
    if (data->require_int("micro_batches") != settings_.data.micro_batches) {
        throw UsageError(fmt::format("{}: it was made with data.micro_batches = {}, this run has {}", source,
                                     data->require_int("micro_batches"), settings_.data.micro_batches));
    }
    TrainerState next;
    next.step = checkpoint.head().step;
    next.updates = state.require_int("updates");
    next.tokens = state.require_int("tokens");
    next.labels = state.require_int("labels");
    next.position = {state.require_int("epoch"), state.require_int("item")};
    if (!state.is_null("loss")) next.loss = state.require_double("loss");
    engine_->restore(checkpoint);
    state_ = next;
}

}  // namespace fenwick
