#include "coordinator/train_rank.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coordinator/folder_lock.h"
#include "coordinator/gang_host.h"
#include "coordinator/mpi_world.h"
#include "coordinator/stop_signal.h"
#include "coordinator/train_log.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "parallel/collectives.h"
#include "worker/training/trainer.h"
#include "worker/training/training_checkpoint.h"
#include "worker/training/validation.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLargestConfig = std::int64_t{64} << 20;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// An error that every rank has learnt of: the world is whole.
struct KnownToAll {
    std::exception_ptr error;
};

/// Runs something that fails on all ranks or on none (`together`).
void known(const std::function<void()>& step) {
    try {
        step();
    } catch (const PeerLostError&) {
        throw;
    } catch (...) {
        throw KnownToAll{std::current_exception()};
    }
}

class TrainRank {
public:
    TrainRank(const TrainRankOptions& options, Communicator& world)
        : options_(options), config_(options.config), world_(world) {}

    /// Both throw KnownToAll, or what is this rank's error alone.
    void prepare();
    void run();

private:
    [[nodiscard]] bool leads() const { return world_.rank() == 0; }
    void take_folders();
    void warn_of_idle_ranks() const;
    void resume();
    void save();
    [[nodiscard]] bool stop_agreed();
    void agree(const std::function<void()>& step) {
        known([&] { together(world_, step); });
    }
    [[noreturn]] void end_by(const Error& error) const;
    [[noreturn]] void stop();

    const TrainRankOptions& options_;
    const TrainConfig& config_;
    Communicator& world_;
    FileDescriptor lock_;
    std::shared_ptr<Model> model_;
    std::string model_config_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Validation> validation_;
    std::unique_ptr<TrainLog> log_;  // rank 0's
    std::optional<std::int64_t> saved_step_;
    fs::path checkpoint_;
};

void TrainRank::prepare() {
    agree([&] {
        if (leads()) take_folders();
        model_ = Model::load_for_training(config_.model);
        model_config_ = read_text_file(config_.model / "config.json", kLargestConfig);
    });
    known([&] { check_same_model(world_, *model_); });
    agree([&] {
        trainer_ = std::make_unique<Trainer>(model_, world_, config_.training, options_.threads, options_.compute);
        if (!config_.training.validation.files.empty()) {
            validation_ =
                std::make_unique<Validation>(model_, world_, trainer_->ranks(), config_.training, trainer_->engine());
        }
    });
    if (leads()) warn_of_idle_ranks();
    if (options_.resume) resume();
    agree([&] {
        if (!leads()) return;
        log_ =
            std::make_unique<TrainLog>(TrainLogOptions{config_.log, config_.log_steps, config_.training.schedule.steps,
                                                       saved_step_, options_.peak_flops, options_.json});
    });
}

/// Before anything is written: nobody else writes there, and nothing of another run would be lost.
void TrainRank::take_folders() {
    lock_ = lock_file(config_.checkpoints / ".lock",
                      fmt::format("checkpoint.folder {}: another run of fenwick train is writing there; wait for its "
                                  "end or use another folder",
                                  config_.checkpoints.string()));
    const std::int64_t removed = clean_checkpoints(config_.checkpoints);
    if (removed > 0) spdlog::info("{}: {} unfinished save(s) removed", config_.checkpoints.string(), removed);
    if (options_.resume) return;
    const std::vector<fs::path> found = list_checkpoints(config_.checkpoints);
    if (!found.empty()) {
        throw UsageError(
            fmt::format("checkpoint.folder {}: holds {} already; go on from there with --resume, or use "
                        "another folder",
                        config_.checkpoints.string(), found.back().filename().string()));
    }
    std::error_code error;
    if (fs::exists(config_.log / "metrics.jsonl", error)) {
        throw UsageError(
            fmt::format("log.folder {}: holds metrics.jsonl of another run already; go on with --resume, "
                        "or use another folder",
                        config_.log.string()));
    }
}

void TrainRank::warn_of_idle_ranks() const {
    const DataSettings& data = config_.training.data;
    const int groups = trainer_->ranks().groups();
    if (groups > data.micro_batches) {
        spdlog::warn("data.micro_batches is {}, and there are {} groups of ranks: {} of them have nothing to do",
                     data.micro_batches, groups, groups - data.micro_batches);
    }
    const std::int64_t blocks = (data.sequence_tokens + kBlockTokens - 1) / kBlockTokens;
    if (blocks < config_.training.sequence_ranks) {
        spdlog::warn("data.sequence_tokens is {}: {} block(s) of {}, so only {} of the {} ranks of a group have work",
                     data.sequence_tokens, blocks, kBlockTokens, blocks, config_.training.sequence_ranks);
    }
    const std::int64_t levels_reach = model_->trained_tokens();
    if (levels_reach > 0 && data.sequence_tokens > levels_reach) {
        spdlog::warn("data.sequence_tokens is {}: the model has levels for {} tokens, and older ones share the last",
                     data.sequence_tokens, levels_reach);
    }
}

void TrainRank::resume() {
    std::optional<TrainingCheckpoint> checkpoint;
    agree([&] {
        if (!list_checkpoints(config_.checkpoints).empty()) checkpoint = latest_checkpoint(config_.checkpoints);
    });
    // Every rank looks for itself: they must see the same.
    const std::int64_t own = checkpoint ? checkpoint->head().step : -1;
    std::int64_t leaders = own;
    broadcast(world_, std::as_writable_bytes(std::span(&leaders, 1)));
    agree([&] {
        if (own != leaders) {
            throw DataError(
                fmt::format("checkpoint.folder {}: this rank sees step {} there, rank 0 step {} (-1: "
                            "nothing); all ranks need the same file system",
                            config_.checkpoints.string(), own, leaders));
        }
        if (checkpoint) trainer_->restore(*checkpoint, model_config_);
    });
    if (!checkpoint) {
        spdlog::info("{}: no checkpoint yet: starts with step 1", config_.checkpoints.string());
        return;
    }
    trainer_->publish();
    saved_step_ = own;
    checkpoint_ = checkpoint->folder();
    spdlog::info("{}: goes on after step {} of {}", checkpoint_.string(), own, config_.training.schedule.steps);
}

void TrainRank::save() {
    const std::int64_t step = trainer_->state().step;
    world_.status().set_step({Activity::kSaving, -1, step, {}});
    // The rows of these steps first: a checkpoint is never ahead of them.
    agree([&] {
        if (log_ != nullptr) log_->sync();
    });
    agree([&] { checkpoint_ = trainer_->save(config_.checkpoints, model_config_, static_cast<int>(config_.keep)); });
    saved_step_ = step;
}

bool TrainRank::stop_agreed() {
    double wishes = stop_requested() != nullptr ? 1.0 : 0.0;
    all_sum(world_, std::span(&wishes, 1));
    return wishes > 0.0;
}

/// Every rank has found this error; rank 0 tells it.
void TrainRank::end_by(const Error& error) const {
    throw KnownToAll{leads() ? std::make_exception_ptr(error) : std::make_exception_ptr(PeerFailed(error.code(), 0))};
}

void TrainRank::stop() {
    const std::int64_t step = trainer_->state().step;
    if (saved_step_ != step) save();
    const char* signal = stop_requested();
    end_by(InterruptedError(fmt::format(
        "stopped by {} after step {} of {}, saved in {}; the same command with --resume goes on",
        signal != nullptr ? signal : "a signal", step, config_.training.schedule.steps, checkpoint_.string())));
}

void TrainRank::run() {
    const std::int64_t steps = config_.training.schedule.steps;
    while (trainer_->state().step < steps) {
        if (stop_agreed()) stop();
        world_.status().set_step({Activity::kTraining, -1, trainer_->state().step + 1, {}});
        const Clock::time_point start = Clock::now();
        const StepResult result = trainer_->step();
        const double seconds = seconds_since(start);
        if (!result.failure.empty()) {
            end_by(DataError(fmt::format(
                "{}; nothing was updated by this step. {}", result.failure,
                saved_step_ ? "The last good checkpoint is " + checkpoint_.string() : "There is no checkpoint yet")));
        }
        const std::int64_t step = result.state.step;
        std::optional<ValidationResult> validation;
        if (validation_ != nullptr && (step % config_.training.validation.every_steps == 0 || step == steps)) {
            validation = validation_->run();
        }
        agree([&] {
            if (log_ != nullptr) log_->step(result, seconds, validation);
        });
        if (step % config_.checkpoint_steps == 0 || step == steps) save();
    }
    if (log_ != nullptr) log_->report(trainer_->state(), checkpoint_);
}

}  // namespace

std::exception_ptr train_rank(const TrainRankOptions& options, Communicator& world) {
    TrainRank rank(options, world);
    try {
        rank.prepare();
        rank.run();
    } catch (const KnownToAll& known_error) {
        return known_error.error;
    }
    return nullptr;
}

}  // namespace fenwick
