// The configuration file of `fenwick train`: what it may say, and what is said of mistakes.
#include "coordinator/train_config.h"

#include <catch2/catch.hpp>
#include <string>

#include "core/errors.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using fenwick::testing::TemporaryFolder;
using fenwick::testing::write_file;

namespace {

constexpr const char* kLeast = R"(
[model]
folder = "/models/small"
[data]
files = ["train.tokens", "/data/more.tokens"]
[optimizer]
lr = 1e-3
[schedule]
steps = 100
[checkpoint]
folder = "checkpoints"
[log]
folder = "/log"
)";

TrainConfig read(const std::string& text) {
    const TemporaryFolder folder;
    write_file(folder / "train.toml", text);
    return read_train_config(folder / "train.toml");
}

/// kLeast with `line` after the head of `table`, which is added where kLeast has none.
std::string with(const std::string& table, const std::string& line) {
    std::string text = kLeast;
    const std::size_t head = text.find("[" + table + "]\n");
    if (head == std::string::npos) return text + "[" + table + "]\n" + line + "\n";
    return text.insert(head + table.size() + 3, line + "\n");
}

void refuses(const std::string& text, const std::string& says) {
    INFO(text);
    CHECK_THROWS_AS(read(text), ConfigError);
    CHECK_THROWS_WITH(read(text), Catch::Contains("train.toml") && Catch::Contains(says));
}

std::string without(const std::string& line) {
    std::string text = kLeast;
    return text.erase(text.find(line), line.size());
}

}  // namespace

TEST_CASE("train.toml: the least that it must say, and its defaults") {
    const TrainConfig config = read(kLeast);
    CHECK(config.model == "/models/small");
    REQUIRE(config.training.data.files.size() == 2);
    CHECK(config.training.data.files[0].is_absolute());
    CHECK(config.training.data.files[0].filename() == "train.tokens");
    CHECK(config.training.data.files[1] == "/data/more.tokens");
    CHECK(config.training.data.batch_tokens == config.training.data.sequence_tokens);
    CHECK(config.training.data.micro_batches == 1);
    CHECK(config.training.schedule.kind == ScheduleKind::kCosine);
    CHECK(config.training.schedule.peak == 1e-3);
    CHECK(config.training.schedule.least == 0.0);
    CHECK(config.training.schedule.steps == 100);
    CHECK(config.training.sequence_ranks == 1);
    CHECK(config.training.validation.files.empty());
    CHECK(config.checkpoints.is_absolute());
    CHECK(config.log == "/log");
}

TEST_CASE("train.toml: every key") {
    const TrainConfig config = read(R"(
[model]
folder = "m"
device = "cpu"
dtype = "fp32"
recompute = false
[data]
files = ["a"]
sequence_tokens = 8192
batch_tokens = 65536
micro_batches = 4
seed = 9
[objective]
z_loss = 1e-4
[optimizer]
lr = 2
betas = [0.8, 0]
eps = 1e-6
weight_decay = 0
clip_norm = 0.5
[schedule]
kind = "wsd"
steps = 200
warmup_steps = 20
decay_fraction = 0.25
min_lr = 0.125
[parallel]
sequence = 4
[checkpoint]
folder = "c"
every_steps = 50
keep = 2
[log]
folder = "l"
every_steps = 5
[validation]
files = ["v"]
every_steps = 25
sequence_tokens = 16384
batches = 3
by_position = true
)");
    const TrainSettings& training = config.training;
    CHECK_FALSE(training.recompute);
    CHECK(training.data.sequence_tokens == 8192);
    CHECK(training.data.batch_tokens == 65536);
    CHECK(training.data.micro_batches == 4);
    CHECK(training.data.seed == 9);
    CHECK(training.z_loss == 1e-4);
    CHECK(training.schedule.peak == 2.0);
    CHECK(training.optimizer.beta1 == 0.8);
    CHECK(training.optimizer.beta2 == 0.0);
    CHECK(training.optimizer.eps == 1e-6);
    CHECK(training.optimizer.weight_decay == 0.0);
    CHECK(training.optimizer.clip_norm == 0.5);
    CHECK(training.schedule.kind == ScheduleKind::kWsd);
    CHECK(training.schedule.warmup_steps == 20);
    CHECK(training.schedule.decay_steps == 50);
    CHECK(training.schedule.least == 0.125);
    CHECK(training.sequence_ranks == 4);
    CHECK(config.checkpoint_steps == 50);
    CHECK(config.keep == 2);
    CHECK(config.log_steps == 5);
    CHECK(training.validation.files.size() == 1);
    CHECK(training.validation.every_steps == 25);
    CHECK(training.validation.sequence_tokens == 16384);
    CHECK(training.validation.batches == 3);
    CHECK(training.validation.by_position);
}

TEST_CASE("train.toml: mistakes by name") {
    refuses("[model", "line 1");
    refuses(without("folder = \"/models/small\""), "model.folder: expected the folder of a model to start from");
    refuses(without("files = [\"train.tokens\", \"/data/more.tokens\"]"), "data.files: expected token files");
    refuses(without("lr = 1e-3"), "optimizer.lr: expected a number from 0 to 1000, found nothing");
    refuses(without("steps = 100"), "schedule.steps: expected a whole number from 1 to");
    refuses(without("folder = \"checkpoints\""), "checkpoint.folder: expected a folder for checkpoints");
    refuses(without("folder = \"/log\""), "log.folder: expected a folder");
    refuses(with("data", "sequence_token = 5"), "line 5: data.sequence_token: no such key; known here: batch_tokens");
    refuses(with("modle", ""), "modle: no such key");
    refuses(with("model", "device = \"gpu\""), "model.device: expected \"cpu\" or \"cuda\"");
    refuses(with("model", "dtype = \"bf16\""), "model.dtype: expected \"fp32\": the CPU trains in fp32");
    refuses(with("model", "device = \"cuda\"\ndtype = \"fp16\""), "model.dtype: expected \"bf16\" or \"fp32\"");
    refuses(with("model", "device = \"cuda\"\nrecompute = false"), "model.recompute: expected true");
    refuses(with("data", "sequence_tokens = 0"), "data.sequence_tokens: expected a whole number from 1");
    refuses(with("data", "sequence_tokens = 0.5"), "data.sequence_tokens: expected a whole number");
    refuses(with("data", "sequence_tokens = 100\nbatch_tokens = 99"), "data.batch_tokens: expected at least");
    refuses(with("data", "micro_batches = -1"), "data.micro_batches");
    refuses(with("data", "seed = -1"), "data.seed");
    refuses(with("optimizer", "betas = [0.9]"), "optimizer.betas: expected two numbers from 0 to below 1");
    refuses(with("optimizer", "betas = [0.9, 1.0]"), "optimizer.betas");
    refuses(with("optimizer", "betas = [0.9, \"a\"]"), "optimizer.betas: expected a list of numbers");
    refuses(with("optimizer", "eps = 0"), "optimizer.eps");
    refuses(with("optimizer", "clip_norm = -1"), "optimizer.clip_norm");
    refuses(with("optimizer", "clip_norm = nan"), "optimizer.clip_norm");
    refuses(with("schedule", "kind = \"linear\""), "schedule.kind: expected \"cosine\", \"wsd\" or \"constant\"");
    refuses(with("schedule", "warmup_steps = 101"), "schedule.warmup_steps: expected a whole number from 0 to 100");
    refuses(with("schedule", "min_lr = 1e-2"), "schedule.min_lr: expected a number from 0 to 0.001");
    refuses(with("schedule", "kind = \"constant\"\nmin_lr = 1e-4"), "schedule.min_lr: no such key");
    refuses(with("schedule", "decay_fraction = 0.1"), "schedule.decay_fraction: no such key");
    refuses(with("schedule", "kind = \"wsd\"\nwarmup_steps = 60\ndecay_fraction = 0.5"), "schedule.decay_fraction");
    refuses(with("parallel", "sequence = 0"), "parallel.sequence");
    refuses(with("checkpoint", "every_steps = 0"), "checkpoint.every_steps");
    refuses(with("checkpoint", "keep = 0"), "checkpoint.keep");
    refuses(with("log", "every_steps = true"), "log.every_steps");
    refuses(with("objective", "z_loss = 2"), "objective.z_loss");
    refuses(with("validation", "every_steps = 5"), "validation.files");
    refuses(with("validation", "files = [\"v\"]"), "validation.every_steps");
    refuses(with("validation", "files = [\"v\"]\nevery_steps = 1\nbatch = 1"), "validation.batch: no such key");
}
