#include "coordinator/document_run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "coordinator/rows.h"
#include "coordinator/save_point.h"
#include "coordinator/score_options.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "core/npy.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Removes the document's saved states but the one at `kept_position` (-1: all).
void remove_states(const OutputFolder& folder, const std::string& name, std::int64_t kept_position) {
    const std::string prefix = name + ".";
    const fs::path kept = folder.saved_state(name, kept_position);
    std::vector<fs::path> old;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder.work())) {
        const std::string file = entry.path().filename().string();
        if (entry.path().extension() != ".safetensors" || !file.starts_with(prefix) || entry.path() == kept) continue;
        // Between the name and the ending there are digits only; else it belongs to a document of a longer name.
        const std::string middle = entry.path().stem().string().substr(prefix.size());
        if (middle.find_first_not_of("0123456789") == std::string::npos) old.push_back(entry.path());
    }
    for (const fs::path& file : old) remove_file(file);
}

class DocumentRun {
public:
    DocumentRun(LedGang& gang, const OutputFolder& folder, const DocumentTask& task, const TokenReader& reader,
                const PassSettings& settings)
        : gang_(gang), folder_(folder), task_(task), reader_(reader), settings_(settings), tokens_(reader.size()) {
        restore();
    }

    [[nodiscard]] std::int64_t position() const { return position_; }

    /// The last token is a target only: when it alone is left, nothing is.
    [[nodiscard]] bool at_end() const { return tokens_ - position_ <= 1; }

    void run_pass() {
        const std::int64_t count = pass_count(position_);
        const std::int64_t read = std::min(count + 1, tokens_ - position_);
        ids_.resize(static_cast<std::size_t>(read));
        losses_.resize(static_cast<std::size_t>(read - 1));
        try {
            reader_.read(position_, ids_);
        } catch (const DataError& error) {
            throw DocumentFailure("CORRUPT_DATA", error.what());
        }
        gang_.score_pass(ids_, count, losses_);
        check_finite(task_.custom_id, position_, losses_);
        file_->append(losses_);
        totals_.nll.add(losses_);
        position_ += count;
    }

    void save_if_due() {
        const std::int64_t next = position_ + pass_count(position_);
        if (save_is_due(position_, next, seconds_since(last_save_), settings_.save_seconds)) save();
    }

    void save() {
        if (position_ == 0) return;
        file_->sync();
        gang_.save_state(folder_.saved_state(task_.name, position_));
        write_save_point(folder_.save_point(task_.name), {.input_hash = task_.input_hash,
                                                          .tokens = tokens_,
                                                          .position = position_,
                                                          .nll_total = totals_.nll.total(),
                                                          .seconds = elapsed()});
        gang_.set_resumable(true);
        remove_states(folder_, task_.name, position_);
        last_save_ = Clock::now();
    }

    DocumentTotals finish() {
        file_->finish();
        totals_.seconds = elapsed();
        return totals_;
    }

private:
    [[nodiscard]] std::int64_t pass_count(std::int64_t position) const {
        const std::int64_t left = tokens_ - position;
        return settings_.pass_tokens == kUnlimitedPass ? left : std::min(settings_.pass_tokens, left);
    }

    [[nodiscard]] double elapsed() const { return earlier_seconds_ + seconds_since(start_); }

    void restore() {
        const fs::path part = folder_.nll_part(task_.name);
        if (const std::optional<SavePoint> point = read_save_point(folder_.save_point(task_.name))) {
            const fs::path state = folder_.saved_state(task_.name, point->position);
            if (point->input_hash != task_.input_hash || point->tokens != tokens_) {
                spdlog::warn("{}: the input changed since it was saved at token {}; it starts anew", task_.custom_id,
                             point->position);
            } else if (!fs::exists(state) || !reopen(part, point->position)) {
                spdlog::warn("{}: the files of its save point are not all there; it starts anew", task_.custom_id);
            } else {
                gang_.restore_state(state);
                totals_.nll = NllSum(point->position, point->nll_total);
                position_ = point->position;
                earlier_seconds_ = point->seconds;
                spdlog::info("{}: continues at token {} of {}", task_.custom_id, position_, tokens_);
                return;
            }
        }
        discard_progress(folder_, task_.name, false);
        file_.emplace(NpyStream::create(part));
        if (!at_end()) gang_.begin_document();
    }

    bool reopen(const fs::path& part, std::int64_t values) {
        try {
            file_.emplace(NpyStream::reopen(part, values));
            return true;
        } catch (const DataError&) {
            return false;
        }
    }

    LedGang& gang_;
    const OutputFolder& folder_;
    const DocumentTask& task_;
    const TokenReader& reader_;
    const PassSettings& settings_;
    const std::int64_t tokens_;
    const Clock::time_point start_ = Clock::now();
    Clock::time_point last_save_ = Clock::now();
    double earlier_seconds_ = 0;
    std::int64_t position_ = 0;
    DocumentTotals totals_;
    std::optional<NpyStream> file_;
    std::vector<std::int32_t> ids_;
    std::vector<float> losses_;
};

}  // namespace

void check_finite(const std::string& custom_id, std::int64_t position, std::span<const float> losses) {
    const std::int64_t bad = first_non_finite(losses);
    if (bad < 0) return;
    // In its chunk a number that is not finite also reaches earlier rows, as 0 * inf under the causal mask.
    throw DocumentFailure(
        "NUMERIC_ERROR",
        fmt::format("{}: the loss of token {} is {}, the first that is not finite; the model's numbers left the range "
                    "of its arithmetic there or in the {} tokens after it",
                    custom_id, position + bad + 1, losses[static_cast<std::size_t>(bad)], kChunkTokens));
}

DocumentTotals score_document(LedGang& gang, const OutputFolder& folder, const DocumentTask& task,
                              const TokenReader& reader, const PassSettings& settings, Progress& progress) {
    DocumentRun run(gang, folder, task, reader, settings);
    progress.begin(task.index, task.custom_id, reader.size(), run.position());
    while (!run.at_end()) {
        run.run_pass();
        progress.advance(run.position());
        if (run.at_end()) break;
        if (const char* signal = stop_requested(); signal != nullptr) {
            run.save();
            progress.end();
            throw InterruptedError(
                fmt::format("{}: stopped at token {} of {} of {}, saved; run again with --resume to "
                            "continue there",
                            signal, run.position(), reader.size(), task.custom_id));
        }
        run.save_if_due();
    }
    return run.finish();
}

void discard_progress(const OutputFolder& folder, const std::string& name, bool keep_losses) {
    remove_file(folder.save_point(name));
    remove_states(folder, name, -1);
    if (!keep_losses) remove_file(folder.nll_part(name));
}

}  // namespace fenwick
