#include "coordinator/service/leased_document.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "coordinator/document_run.h"
#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "ids and losses travel as they are in memory");

std::string hash_file(const fs::path& path) {
    const MappedFile file = MappedFile::open(path);
    Hasher hasher;
    hasher.update(file.bytes());
    return hasher.hex();
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

LeasedDocument::LeasedDocument(Store& store, JobFolders& folders, ModelCatalog& models, const Lease& lease,
                               const GangFacts& gang)
    : store_(store),
      folders_(folders),
      lease_(lease),
      gang_(gang),
      name_(file_name_for_id(lease.document.ref.custom_id)),
      position_(lease.first),
      saved_seconds_(lease.document.seconds) {
    const StoredDocument& document = lease_.document;
    const StoredJob job = store_.stored_job(document.job_id);
    folder_ = folders_.output(document.job_id);
    try {
        const ModelFacts model = models.known(lease_.model_path, lease_.model_hash);
        trained_tokens_ = model.trained_tokens;
        const std::string choice = job.spec.__isset.tokenizer ? job.spec.tokenizer : "auto";
        tokenizer_ = models.tokenizer(choice, model);
        reader_ = folders_.open(job, document.ref, model, *tokenizer_);
        // From the start everything is read anyway; later a cheaper look has to do.
        const bool same = reader_->size() == document.tokens &&
                          (document.save.position > 0 || document_hash(*reader_) == document.input_hash);
        if (!same) {
            throw DataError(fmt::format("{}: the input changed after the job was submitted; submit it again",
                                        document.ref.custom_id));
        }
    } catch (const Error& error) {
        if (error.code() == ExitCode::kUnavailable) throw;
        throw DocumentFailure("CORRUPT_DATA", folders_.for_client(document.job_id, error.what()));
    }
    open_losses();
}

LeasedDocument::~LeasedDocument() = default;

void LeasedDocument::open_losses() {
    const DocumentSave& save = lease_.document.save;
    const fs::path part = folder_->nll_part(name_);
    if (save.position > 0) {
        file_.emplace(NpyStream::reopen(part, save.position));
        nll_ = NllSum(save.position, save.nll_total);
    } else {
        discard_progress(*folder_, name_, false);
        remove_file(folder_->nll(name_));  // of an earlier try of the whole job
        file_.emplace(NpyStream::create(part));
    }
}

void LeasedDocument::require(bool condition, const std::string& what) const {
    if (condition) return;
    throw ProtocolFault(fmt::format("{}: {}", lease_.document.ref.custom_id, what));
}

std::string LeasedDocument::read_tokens(std::int64_t first, std::int64_t count) {
    const std::lock_guard lock(mutex_);
    if (closed_) return {};
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    const std::int64_t tokens = reader_->size();
    require(first >= 0 && count >= 1 && count <= kMost && first <= tokens - count,
            fmt::format("{} tokens from {} were asked for, of {}", count, first, tokens));
    std::string bytes(static_cast<std::size_t>(count) * sizeof(std::int32_t), '\0');
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    try {
        reader_->read(first, ids);
    } catch (const DataError& error) {
        throw DocumentFailure("CORRUPT_DATA", folders_.for_client(lease_.document.job_id, error.what()));
    }
    std::memcpy(bytes.data(), ids.data(), bytes.size());
    return bytes;
}

std::string LeasedDocument::read_state(std::int64_t offset, std::int64_t most) {
    const std::lock_guard lock(mutex_);
    if (closed_) return {};
    const DocumentSave& save = lease_.document.save;
    require(save.position > 0 && save.state_file.empty() && offset >= 0 && offset < save.state_bytes && most > 0,
            fmt::format("state from byte {} was asked for, of {}", offset, save.state_bytes));
    const AppendFile file = AppendFile::open(folder_->saved_state(name_, save.position));
    constexpr std::int64_t kMost = std::int64_t{4} << 20;
    std::string bytes(static_cast<std::size_t>(std::min({most, kMost, save.state_bytes - offset})), '\0');
    file.read(offset, std::as_writable_bytes(std::span<char>(bytes)));
    return bytes;
}

void LeasedDocument::take_losses(std::int64_t first, const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    require(!bytes.empty() && bytes.size() % sizeof(float) == 0 && first == nll_.count() &&
                static_cast<std::int64_t>(bytes.size() / sizeof(float)) <=
                    std::min(lease_.limit, lease_.document.tokens - 1) - first,
            fmt::format("{} bytes of losses came for token {}; {} were there of a stretch that ends at {}",
                        bytes.size(), first, nll_.count(), lease_.limit));
    std::vector<float> losses(bytes.size() / sizeof(float));
    std::memcpy(losses.data(), bytes.data(), bytes.size());
    check_finite(lease_.document.ref.custom_id, first, losses);
    file_->append(losses);
    nll_.add(losses);
    computed_ += std::ssize(losses);
    position_.store(nll_.count());
    // As of the last losses: between two passes the rate does not sink.
    const double seconds = seconds_between(start_, Clock::now());
    if (seconds > 0) rate_.store(static_cast<double>(nll_.count() - lease_.first) / seconds);
}

void LeasedDocument::take_state(std::int64_t position, std::int64_t offset, const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (offset == 0) {
        incoming_.emplace(AppendFile::create(folder_->saved_state(name_, position)));
        incoming_position_ = position;
    }
    require(incoming_ && position == incoming_position_ && offset == incoming_->size(),
            fmt::format("a piece of the state at {} came for byte {}", position, offset));
    incoming_->append(std::as_bytes(std::span<const char>(bytes)));
}

bool LeasedDocument::save(const idl::SavePoint& point) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    require(point.position > lease_.document.save.position && point.position % kBlockTokens == 0 &&
                point.position == nll_.count() && point.position < lease_.document.tokens,
            fmt::format("a save point at token {}, with {} losses there", point.position, nll_.count()));
    DocumentSave save{point.position, nll_.total(), point.stateBytes, point.stateHash, point.stateFile};
    if (save.state_file.empty()) {
        require(incoming_ && incoming_position_ == point.position && incoming_->size() == point.stateBytes,
                fmt::format("the state at {} is not there whole", point.position));
        incoming_->sync();
        incoming_.reset();
        const fs::path file = folder_->saved_state(name_, point.position);
        require(hash_file(file) == point.stateHash,
                fmt::format("the state at {} was damaged on its way", point.position));
        sync_folder(file.parent_path());
    }
    file_->sync();
    const double seconds = seconds_since_save();
    const std::int64_t old = lease_.document.save.position;
    if (!store_.record_save(lease_.key, save, seconds, work_done())) {
        close_files();
        return false;
    }
    saved_seconds_ += seconds;
    last_save_ = Clock::now();
    lease_.document.save = save;
    if (old > 0) remove_file(folder_->saved_state(name_, old));
    return true;
}

bool LeasedDocument::complete() {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    const StoredDocument& document = lease_.document;
    require(nll_.count() == std::max<std::int64_t>(document.tokens - 1, 0),
            fmt::format("done, with {} losses of {} tokens", nll_.count(), document.tokens));
    file_->finish();
    ScoredDocument scored;
    scored.custom_id = document.ref.custom_id;
    scored.tokens = document.tokens;
    scored.scored_tokens = nll_.count();
    scored.nll_sum = nll_.total();
    scored.scored_bytes = scored_bytes(*reader_, tokenizer_->kind(), lease_.bos);
    scored.levels_extended = trained_tokens_ > 0 && document.tokens > trained_tokens_;
    scored.nll_file = OutputFolder::nll_name(name_);
    scored.seconds = saved_seconds_ + seconds_since_save();
    scored.ranks = gang_.ranks;
    scored.device = gang_.device;
    scored.dtype = gang_.dtype;
    scored.model_hash = lease_.model_hash;
    scored.input_hash = document.input_hash;
    // The row first: once it is in the store, the losses are whole and durable, and get their name from whoever comes.
    const bool current = store_.complete(lease_.key, to_line(completed_row(scored)), nll_.count(), work_done());
    close_files();
    if (!current) return false;
    fs::rename(folder_->nll_part(name_), folder_->nll(name_));
    sync_folder(folder_->path() / "nll");
    discard_progress(*folder_, name_, true);
    return true;
}

bool LeasedDocument::fail(const DocumentFailure& failure) {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    const Row row = failed_row(shown(), failure, lease_.document.input_hash);
    close_files();
    if (!store_.fail(lease_.key, service_code_of(failure.code_name()), failure.what(), to_line(row), work_done())) {
        return false;
    }
    discard_progress(*folder_, name_, false);
    return true;
}

std::optional<LeasedDocument::Release> LeasedDocument::give_up(const std::string& reason, bool counts) {
    const std::lock_guard lock(mutex_);
    if (closed_) return std::nullopt;
    close_files();
    const DocumentFailure failure("WORKER_LOST", fmt::format("{}: given up after the last of its attempts: {}",
                                                             lease_.document.ref.custom_id, reason));
    return Release{lease_.key, reason, counts, to_line(failed_row(shown(), failure, lease_.document.input_hash)),
                   work_done()};
}

void LeasedDocument::forget_save() {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    store_.forget_save(lease_.document.id);
    lease_.document.save = {};
}

void LeasedDocument::close() {
    const std::lock_guard lock(mutex_);
    close_files();
}

void LeasedDocument::close_files() {
    closed_ = true;
    file_.reset();
    incoming_.reset();
    reader_.reset();
}

WorkDone LeasedDocument::work_done() {
    WorkDone work;
    work.computed_tokens = std::exchange(computed_, 0);
    work.rank_seconds = seconds_since_save() * gang_.ranks;
    work.gpu_seconds = gang_.device == "cuda" ? work.rank_seconds : 0;
    return work;
}

double LeasedDocument::seconds_since_save() const {
    return seconds_between(last_save_, Clock::now());
}

}  // namespace fenwick
