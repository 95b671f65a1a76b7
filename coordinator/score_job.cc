#include "coordinator/score_job.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <numbers>
#include <system_error>
#include <utility>

#include "coordinator/manifest.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"
#include "core/npy.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

OpenMode open_mode(const ScoreOptions& options) {
    if (options.overwrite) return OpenMode::kOverwrite;
    return options.resume ? OpenMode::kResume : OpenMode::kFresh;
}

/// The size of a finished NLL file; -1: there is no such file.
std::int64_t size_on_disk(const fs::path& file) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file, error);
    return error ? -1 : static_cast<std::int64_t>(size);
}

void rename_durably(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::rename(from, to, error);
    if (error)
        throw UnavailableError(fmt::format("{}: cannot rename to {}: {}", from.string(), to.string(), error.message()));
    sync_folder(to.parent_path());
}

}  // namespace

ScoreJob::ScoreJob(const ScoreOptions& options, const Execution& execution, int ranks,
                   std::shared_ptr<const Model> model)
    : options_(options), execution_(execution), ranks_(ranks), model_(std::move(model)) {
    passes_ = {resolve_pass_tokens(options.pass_tokens, execution, ranks, *model_), options.save_seconds};
    tokenizer_ = resolve_tokenizer(options.tokenizer, options.model, model_->vocab_size());
    if (options.bos && (model_->bos_id() < 0 || model_->bos_id() >= model_->vocab_size())) {
        throw UsageError(fmt::format("--bos: {} names no bos_token_id within the vocabulary; leave --bos out",
                                     (options.model / "config.json").string()));
    }
    documents_ = list_documents(options.inputs);
    identity_ = {.model_hash = model_->hash(),
                 .tokenizer = tokenizer_->identity(),
                 .bos = options.bos,
                 .device = execution.device,
                 .dtype = execution.dtype,
                 .levels = options.levels};

    folder_ = std::make_unique<OutputFolder>(options.output, open_mode(options));
    was_complete_ = fs::exists(folder_->manifest());
    if (fs::exists(folder_->job())) {
        check_job(folder_->job(), identity_);
    } else {
        write_job(folder_->job(), identity_);
    }
    read_earlier_rows();
    if (was_complete_) {
        // From here on the folder is not complete until the manifest is written again.
        remove_file(folder_->manifest());
        sync_folder(folder_->path());
    }
    journal_ = std::make_unique<RowJournal>(folder_->journal());
    progress_ = std::make_unique<Progress>(Progress::choose(options.json), std::ssize(documents_));
    report_.documents = std::ssize(documents_);
}

void ScoreJob::read_earlier_rows() {
    const auto keep = [&](const Row& row) {
        if (!is_usable(row)) return;
        // A later row replaces an earlier one.
        earlier_[row.at("custom_id").get<std::string>()] = {row.at("input_hash").get<std::string>(), to_line(row)};
    };
    read_rows(folder_->results(), keep);
    read_rows(folder_->errors(), keep);
    read_rows(folder_->journal(), keep);
}

bool ScoreJob::is_usable(const Row& row) const {
    if (is_completed_row(row)) {
        // Rows may outlive their job.json: they are checked by themselves.
        return row.at("model_hash") == identity_.model_hash && row.at("dtype") == identity_.dtype &&
               row.value("device", "") == identity_.device &&
               !(options_.levels == "strict" && row.at("levels_extended").get<bool>());
    }
    // Other failures are found again quickly; this one took computing.
    const auto is_text = [&](const char* field) { return row.contains(field) && row.at(field).is_string(); };
    return is_text("custom_id") && is_text("input_hash") && is_text("code") && is_text("message") &&
           row.at("code") == "NUMERIC_ERROR";
}

std::unique_ptr<TokenReader> ScoreJob::open(const DocumentRef& document) const {
    std::error_code error;
    fs::create_directories(folder_->token_folder(), error);
    if (error)
        throw UnavailableError(fmt::format("{}: cannot create: {}", folder_->token_folder().string(), error.message()));
    return open_document(document, {.tokenizer = tokenizer_.get(),
                                    .vocab_size = model_->vocab_size(),
                                    .prepend_bos = options_.bos,
                                    .bos_id = model_->bos_id(),
                                    .work_folder = folder_->token_folder()});
}

void ScoreJob::remove_losses(const DocumentRef& document) const {
    remove_file(folder_->nll(file_name_for_id(document.custom_id)));
}

bool ScoreJob::claim_losses(const DocumentRef& document, std::int64_t scored_tokens) const {
    const std::string name = file_name_for_id(document.custom_id);
    const std::int64_t expected = NpyStream::kHeaderBytes + scored_tokens * static_cast<std::int64_t>(sizeof(float));
    if (size_on_disk(folder_->nll(name)) == expected) return true;
    // The row is written when its losses are whole and durable; the process ended before they got their name.
    if (size_on_disk(folder_->nll_part(name)) != expected) return false;
    rename_durably(folder_->nll_part(name), folder_->nll(name));
    return true;
}

std::optional<Row> ScoreJob::earlier_row(const DocumentRef& document, const std::string& input_hash) {
    const auto found = earlier_.find(document.custom_id);
    if (found == earlier_.end()) return std::nullopt;
    const EarlierRow earlier = std::move(found->second);
    earlier_.erase(found);
    if (earlier.input_hash != input_hash) {
        spdlog::warn("{}: the input changed since it was scored; it is computed again", document.custom_id);
        return std::nullopt;
    }
    Row row = Row::parse(earlier.line);
    if (!is_completed_row(row)) {
        return failed_row(document, DocumentFailure("NUMERIC_ERROR", row.at("message").get<std::string>()), input_hash);
    }
    const std::string name = file_name_for_id(document.custom_id);
    if (row.at("nll_file") != OutputFolder::nll_name(name) ||
        !claim_losses(document, row.at("scored_tokens").get<std::int64_t>())) {
        spdlog::warn("{}: its losses are not there whole; it is computed again", document.custom_id);
        return std::nullopt;
    }
    discard_progress(*folder_, name, true);
    return row;
}

void ScoreJob::run(LedGang& gang) {
    gang.set_resumable(has_progress(folder_->path()));
    for (std::int64_t i = 0; i < std::ssize(documents_); ++i) {
        if (const char* signal = stop_requested(); signal != nullptr) {
            progress_->end();
            throw InterruptedError(fmt::format("{}: stopped before document {} of {}, saved; run again with --resume",
                                               signal, i + 1, documents_.size()));
        }
        account(row_of(i, gang));
    }
    progress_->end();
}

Row ScoreJob::row_of(std::int64_t index, LedGang& gang) {
    const DocumentRef& document = documents_[static_cast<std::size_t>(index)];
    std::string hash;
    try {
        if (!document.error.empty()) throw DocumentFailure("INVALID_ARGUMENT", document.error);
        std::unique_ptr<TokenReader> reader;
        try {
            reader = open(document);
            hash = document_hash(*reader);  // of the tokens: another tokenizer, or BOS, makes another input
        } catch (const DataError& error) {
            throw DocumentFailure("CORRUPT_DATA", error.what());
        }
        if (std::optional<Row> earlier = earlier_row(document, hash)) {
            ++report_.reused;
            return std::move(*earlier);
        }
        return score(index, *reader, hash, gang);
    } catch (const DocumentFailure& failure) {
        progress_->end();
        spdlog::warn("{}: {}", document.custom_id, failure.what());
        Row row = failed_row(document, failure, hash);
        journal_->append(row);
        gang.set_resumable(true);
        if (document.error.empty()) {
            remove_losses(document);
            discard_progress(*folder_, file_name_for_id(document.custom_id), false);
        }
        return row;
    }
}

Row ScoreJob::score(std::int64_t index, const TokenReader& reader, const std::string& input_hash, LedGang& gang) {
    const DocumentRef& document = documents_[static_cast<std::size_t>(index)];
    const std::string name = file_name_for_id(document.custom_id);
    remove_losses(document);  // of an input that has changed since
    const std::int64_t trained = model_->trained_tokens();
    const bool extended = trained > 0 && reader.size() > trained;
    if (extended && options_.levels == "strict") {
        throw DocumentFailure(
            "DOCUMENT_TOO_LONG",
            fmt::format("{}: {} tokens, but the model's levels were trained for {}; --levels extend uses "
                        "the last level beyond",
                        document.custom_id, reader.size(), trained));
    }
    if (extended && !said_extended_) {
        said_extended_ = true;
        progress_->end();
        spdlog::warn("{}: {} tokens, the model's levels were trained for {}: beyond, the last level's weight is used",
                     document.custom_id, reader.size(), trained);
    }
    const DocumentTask task{index, document.custom_id, name, input_hash};
    const DocumentTotals totals = score_document(gang, *folder_, task, reader, passes_, *progress_);
    ScoredDocument scored;
    scored.custom_id = document.custom_id;
    scored.tokens = reader.size();
    scored.scored_tokens = totals.nll.count();
    scored.nll_sum = totals.nll.total();
    scored.scored_bytes = scored_bytes(reader, tokenizer_->kind(), options_.bos);
    scored.levels_extended = extended;
    scored.nll_file = OutputFolder::nll_name(name);
    scored.seconds = totals.seconds;
    scored.ranks = ranks_;
    scored.device = execution_.device;
    scored.dtype = execution_.dtype;
    scored.model_hash = identity_.model_hash;
    scored.input_hash = input_hash;
    Row row = completed_row(scored);
    journal_->append(row);
    gang.set_resumable(true);
    rename_durably(folder_->nll_part(name), folder_->nll(name));
    discard_progress(*folder_, name, true);
    return row;
}

void ScoreJob::account(const Row& row) {
    if (row.at("status") != "completed") {
        ++report_.failed;
        error_lines_.push_back(to_line(row));
        return;
    }
    ++report_.completed;
    const auto nll = row.at("nll_sum").get<double>();
    report_.tokens += row.at("tokens").get<std::int64_t>();
    report_.scored_tokens += row.at("scored_tokens").get<std::int64_t>();
    report_.nll_sum += nll;
    report_.seconds += row.value("seconds", 0.0);
    report_.levels_extended = report_.levels_extended || row.at("levels_extended").get<bool>();
    if (const Row bits = row.value("bits_per_byte", Row()); bits.is_number() && bits.get<double>() > 0) {
        known_bytes_ += std::llround(nll / std::numbers::ln2 / bits.get<double>());
        known_bytes_nll_ += nll;
    }
    result_lines_.push_back(to_line(row));
    nll_files_.push_back(row.at("nll_file").get<std::string>());
}

ScoreReport ScoreJob::finish() {
    for (const auto& [id, earlier] : earlier_) {
        spdlog::warn("{}: scored by an earlier run, but not among this run's inputs; its row is dropped", id);
    }
    write_lines(folder_->results(), result_lines_);
    write_lines(folder_->errors(), error_lines_);
    Manifest manifest;
    manifest.identity = identity_;
    manifest.family = model_->family();
    manifest.parameters = model_->parameter_count();
    manifest.ranks = ranks_;
    manifest.pass_tokens = passes_.pass_tokens;
    manifest.documents = report_.documents;
    manifest.completed = report_.completed;
    manifest.failed = report_.failed;
    manifest.files = {"results.jsonl", "errors.jsonl"};
    manifest.files.insert(manifest.files.end(), nll_files_.begin(), nll_files_.end());
    write_manifest(folder_->path(), folder_->manifest(), manifest);
    folder_->remove_work();
    if (known_bytes_ > 0) {
        report_.bits_per_byte = known_bytes_nll_ / std::numbers::ln2 / static_cast<double>(known_bytes_);
    }
    report_.already_complete = was_complete_ && report_.reused == report_.completed;
    return report_;
}

}  // namespace fenwick
