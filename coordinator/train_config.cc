#include "coordinator/train_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "coordinator/toml_table.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr double kMostNumber = std::numeric_limits<double>::max();

void read_model(TomlTable table, TrainConfig& config) {
    table.read("folder", config.model);
    if (config.model.empty()) table.fail("folder", "the folder of a model to start from ('fenwick init' makes one)");
    table.read("device", config.device);
    const bool gpu = config.device == "cuda";
    if (!gpu && config.device != "cpu") table.fail("device", "\"cpu\" or \"cuda\"");
    if (gpu) config.dtype = "bf16";
    table.read("dtype", config.dtype);
    if (config.dtype != "fp32" && !gpu) table.fail("dtype", "\"fp32\": the CPU trains in fp32");
    if (config.dtype != "fp32" && config.dtype != "bf16") table.fail("dtype", "\"bf16\" or \"fp32\"");
    table.read("recompute", config.training.recompute);
    if (gpu && !config.training.recompute) {
        table.fail("recompute", "true: on the GPU a layer's inside is always formed again");
    }
    table.refuse_others();
}

void read_data(TomlTable table, DataSettings& data) {
    table.read_files("files", data.files);
    if (data.files.empty()) table.fail("files", "token files ('fenwick tokenize' makes them)");
    table.read("sequence_tokens", data.sequence_tokens, 1, kMostTokens);
    data.batch_tokens = data.sequence_tokens;
    table.read("batch_tokens", data.batch_tokens, 1, kMostTokens);
    if (data.batch_tokens < data.sequence_tokens) {
        table.fail("batch_tokens", fmt::format("at least sequence_tokens ({})", data.sequence_tokens));
    }
    table.read("micro_batches", data.micro_batches, 1, 1 << 20);
    auto seed = static_cast<std::int64_t>(data.seed);
    table.read("seed", seed, 0, kMost);
    data.seed = static_cast<std::uint64_t>(seed);
    table.refuse_others();
}

void read_optimizer(TomlTable table, OptimizerSettings& optimizer, Schedule& schedule) {
    constexpr double kLargestRate = 1e3;
    table.read("lr", schedule.peak, 0.0, kLargestRate);
    if (!table.has("lr")) table.fail("lr", fmt::format("a number from 0 to {}", kLargestRate));
    std::vector<double> betas = {optimizer.beta1, optimizer.beta2};
    table.read_numbers("betas", betas);
    const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
    if (betas.size() != 2 || !is_beta(betas[0]) || !is_beta(betas[1])) {
        table.fail("betas", "two numbers from 0 to below 1");
    }
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
    // Below the smallest normal fp32 number it would vanish there, and 0 / 0 remain.
    table.read("eps", optimizer.eps, 1e-37, 1.0);
    table.read("weight_decay", optimizer.weight_decay, 0.0, kLargestRate);
    table.read("clip_norm", optimizer.clip_norm, 0.0, kMostNumber);
    table.refuse_others();
}

void read_schedule(TomlTable table, Schedule& schedule) {
    std::string kind = "cosine";
    table.read("kind", kind);
    if (kind == "cosine") {
        schedule.kind = ScheduleKind::kCosine;
    } else if (kind == "wsd") {
        schedule.kind = ScheduleKind::kWsd;
    } else if (kind == "constant") {
        schedule.kind = ScheduleKind::kConstant;
    } else {
        table.fail("kind", "\"cosine\", \"wsd\" or \"constant\"");
    }
    table.read("steps", schedule.steps, 1, kMost);
    table.read("warmup_steps", schedule.warmup_steps, 0, schedule.steps);
    if (schedule.kind != ScheduleKind::kConstant) table.read("min_lr", schedule.least, 0.0, schedule.peak);
    if (schedule.kind == ScheduleKind::kWsd) {
        double fraction = 0.1;
        table.read("decay_fraction", fraction, 0.0, 1.0);
        schedule.decay_steps = std::llround(fraction * static_cast<double>(schedule.steps));
        if (schedule.decay_steps > schedule.steps - schedule.warmup_steps) {
            table.fail("decay_fraction", fmt::format("a share of steps that begins after warmup_steps ({} of {})",
                                                     schedule.warmup_steps, schedule.steps));
        }
    }
    table.refuse_others();
}

void read_validation(TomlTable table, const DataSettings& data, ValidationSettings& validation) {
    if (table.raw() == nullptr) return;
    table.read_files("files", validation.files);
    if (validation.files.empty()) table.fail("files", "token files ('fenwick tokenize' makes them)");
    table.read("every_steps", validation.every_steps, 1, kMost);
    validation.sequence_tokens = data.sequence_tokens;
    table.read("sequence_tokens", validation.sequence_tokens, 1, kMostTokens);
    table.read("batches", validation.batches, 1, kMost);
    table.read("by_position", validation.by_position);
    table.refuse_others();
}

}  // namespace

TrainConfig read_train_config(const fs::path& file) {
    const toml::table root = parse_toml_file(file);
    TrainConfig config;
    TomlTable top(&root, "", file);
    read_model(top.under("model"), config);
    read_data(top.under("data"), config.training.data);
    read_optimizer(top.under("optimizer"), config.training.optimizer, config.training.schedule);
    read_schedule(top.under("schedule"), config.training.schedule);
    read_validation(top.under("validation"), config.training.data, config.training.validation);
    TomlTable objective = top.under("objective");
    objective.read("z_loss", config.training.z_loss, 0.0, 1.0);
    objective.refuse_others();
    TomlTable parallel = top.under("parallel");
    std::int64_t sequence = config.training.sequence_ranks;
    parallel.read("sequence", sequence, 1, 1 << 20);
    config.training.sequence_ranks = static_cast<int>(sequence);
    parallel.refuse_others();
    TomlTable checkpoint = top.under("checkpoint");
    checkpoint.read("folder", config.checkpoints);
    if (config.checkpoints.empty()) checkpoint.fail("folder", "a folder for checkpoints");
    checkpoint.read("every_steps", config.checkpoint_steps, 1, kMost);
    checkpoint.read("keep", config.keep, 1, kMost);
    checkpoint.refuse_others();
    TomlTable log = top.under("log");
    log.read("folder", config.log);
    if (config.log.empty()) log.fail("folder", "a folder for metrics.jsonl and TensorBoard's files");
    log.read("every_steps", config.log_steps, 1, kMost);
    log.refuse_others();
    top.refuse_others();
    return config;
}

}  // namespace fenwick
