#include "coordinator/train_log.h"

#include <fmt/format.h>

#include <cstdio>
#include <system_error>
#include <vector>

#include "core/errors.h"

namespace fenwick {
namespace {

nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const ValidationResult& validation) {
    nlohmann::ordered_json json;
    json["loss"] = number_or_null(validation.all.loss);
    json["accuracy"] = number_or_null(validation.all.accuracy);
    json["labels"] = validation.all.labels;
    return json;
}

/// Rows {"first", "labels", "loss"}: positions from `first` on, up to the next row's.
nlohmann::ordered_json positions_to_json(const ValidationResult& validation) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::size_t b = 0; b < validation.by_position.size(); ++b) {
        const MeanLoss& mean = validation.by_position[b];
        rows.push_back({{"first", b == 0 ? 0 : std::int64_t{1} << (b - 1)},
                        {"labels", mean.labels},
                        {"loss", number_or_null(mean.loss)},
                        {"accuracy", number_or_null(mean.accuracy)}});
    }
    return rows;
}

const std::filesystem::path& made(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw UnavailableError(fmt::format("log.folder {}: cannot create: {}", folder.string(), error.message()));
    }
    return folder;
}

}  // namespace

TrainLog::TrainLog(const TrainLogOptions& options)
    : options_(options),
      metrics_(made(options.folder) / "metrics.jsonl", options.resumed),
      events_(options.folder, options.resumed ? std::optional(*options.resumed + 1) : std::nullopt),
      progress_(Progress::choose(options.json)) {
    progress_.begin_work("training", options.steps, "steps", options.resumed.value_or(0));
}

void TrainLog::step(const StepResult& result, double seconds, const std::optional<ValidationResult>& validation) {
    const TrainerState& state = result.state;
    seconds_ += seconds;
    flops_ += result.flops;
    tokens_ += result.tokens;
    all_seconds_ += seconds;
    all_tokens_ += result.tokens;
    progress_.advance(state.step);
    if (state.step % options_.every_steps != 0 && !validation && state.step != options_.steps) return;

    const double rate = static_cast<double>(tokens_) / seconds_;
    const double mfu = flops_ / (seconds_ * options_.peak_flops);
    nlohmann::ordered_json row;
    row["step"] = state.step;
    row["loss"] = number_or_null(result.loss);
    row["learning_rate"] = result.learning_rate;
    row["gradient_norm"] = result.gradient_norm;
    row["tokens"] = result.tokens;
    row["labels"] = result.labels;
    row["total_tokens"] = state.tokens;
    row["epoch"] = state.position.epoch;
    row["item"] = state.position.item;
    std::vector<Scalar> scalars;
    if (result.loss) scalars.push_back({"train/loss", *result.loss});
    scalars.push_back({"train/learning_rate", result.learning_rate});
    scalars.push_back({"train/gradient_norm", result.gradient_norm});
    scalars.push_back({"speed/tokens_per_second", rate});
    scalars.push_back({"speed/mfu", mfu});
    if (validation) {
        row["validation"] = to_json(*validation);
        if (!validation->by_position.empty()) row["validation"]["by_position"] = positions_to_json(*validation);
        if (validation->all.loss) scalars.push_back({"validation/loss", *validation->all.loss});
        if (validation->all.accuracy) scalars.push_back({"validation/accuracy", *validation->all.accuracy});
    }
    row["seconds"] = seconds_;
    row["tokens_per_second"] = rate;
    row["mfu"] = mfu;
    metrics_.append(row);
    events_.append(state.step, scalars);
    seconds_ = 0.0;
    flops_ = 0.0;
    tokens_ = 0;
    if (options_.json) return;

    std::string line = fmt::format("step {} of {}: ", state.step, options_.steps);
    line += result.loss ? fmt::format("loss {:.4f}", *result.loss) : "no scored token";
    line += fmt::format(", lr {:.3e}, gradient norm {:.4g}, {:.0f} tokens/s, MFU {:.1f} %", result.learning_rate,
                        result.gradient_norm, rate, 100 * mfu);
    if (validation && validation->all.loss) line += fmt::format(", validation loss {:.4f}", *validation->all.loss);
    progress_.end();
    fmt::print("{}\n", line);
    std::fflush(stdout);
}

void TrainLog::sync() {
    metrics_.sync();
    events_.sync();
}

void TrainLog::report(const TrainerState& state, const std::filesystem::path& checkpoint) {
    progress_.end();
    const double rate = all_seconds_ > 0 ? static_cast<double>(all_tokens_) / all_seconds_ : 0.0;
    if (options_.json) {
        nlohmann::ordered_json json;
        json["status"] = "completed";
        json["exit_code"] = 0;
        json["step"] = state.step;
        json["total_tokens"] = state.tokens;
        json["loss"] = number_or_null(state.loss);
        json["checkpoint"] = checkpoint.string();
        json["seconds"] = all_seconds_;
        json["tokens_per_second"] = rate > 0 ? nlohmann::ordered_json(rate) : nlohmann::ordered_json();
        fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
        return;
    }
    fmt::print("{} steps done, {} tokens in all", state.step, state.tokens);
    if (rate > 0) fmt::print("; here {} of computing, {:.0f} tokens/s", duration_text(all_seconds_), rate);
    fmt::print("\n{}\n", checkpoint.string());
}

}  // namespace fenwick
