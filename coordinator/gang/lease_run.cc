#include "coordinator/gang/lease_run.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "coordinator/control/control_limits.h"
#include "coordinator/control/rank_link.h"
#include "coordinator/output_folder.h"
#include "coordinator/save_point.h"
#include "coordinator/score_options.h"
#include "coordinator/stop_signal.h"
#include "core/documents.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "core/files.h"
#include "core/hash.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::milliseconds kLook{200};

}  // namespace

LeaseRun::LeaseRun(LedGang& gang, ControlClient& client, std::uint64_t session, const idl::Grant& grant,
                   const LeaseSettings& settings)
    : gang_(gang),
      client_(client),
      session_(session),
      grant_(grant),
      settings_(settings),
      save_seconds_(client.welcome().saveSeconds),
      position_(grant.first),
      saved_position_(grant.first),
      state_file_(grant.stateFile) {}

std::int64_t LeaseRun::pass_count() const {
    const std::int64_t left = grant_.limit - position_;
    return settings_.pass_tokens == kUnlimitedPass ? left : std::min(settings_.pass_tokens, left);
}

bool LeaseRun::at_end() const {
    // A document's last token is a target only: when it alone is left, nothing is.
    return position_ >= grant_.limit || grant_.tokens - position_ <= 1;
}

void LeaseRun::say_step(const std::string& step) {
    client_.set_step(fmt::format("{} of {}", step, grant_.customId));
}

Resident LeaseRun::run(const Resident& before) {
    if (!restore(before)) return {};
    if (!at_end()) ask_for_tokens();
    while (!at_end()) {
        if (!receive_tokens()) return {};
        run_pass();
        if (client_.is_revoked(grant_.lease)) return {};
        if (at_end()) break;
        if (const std::string reason = reason_to_stop(); !reason.empty()) {
            save();
            give_back(idl::ReturnReason::DRAINED, reason);
            return {};
        }
        const std::int64_t next = position_ + pass_count();
        const double elapsed = std::chrono::duration<double>(Clock::now() - last_save_).count();
        if (save_is_due(position_, next, elapsed, save_seconds_)) save();
    }
    const bool over = grant_.limit == grant_.tokens;
    if (!over) save();
    give_back(idl::ReturnReason::DONE, "");
    if (over && !state_file_.empty()) remove_file(state_file_);
    return over ? Resident{} : Resident{grant_.lease.document, position_};
}

bool LeaseRun::restore(const Resident& before) {
    if (before.document == grant_.lease.document && before.position == grant_.first && grant_.first > 0) return true;
    if (grant_.first == 0) {
        if (!at_end()) gang_.begin_document();
        return true;
    }
    say_step(fmt::format("restoring token {}", grant_.first));
    const fs::path file = grant_.stateFile.empty() ? fetch_state() : fs::path(grant_.stateFile);
    if (file.empty()) return false;  // revoked meanwhile
    try {
        // The gang throws nothing that leaves it whole: what it could object to is found before.
        if (const std::string hash = hash_of(MappedFile::open(file)); hash != grant_.stateHash) {
            throw DataError(fmt::format("{}: expected hash {}, found {}", file.string(), grant_.stateHash, hash));
        }
    } catch (const Error& error) {
        spdlog::error("{}: its saved state cannot be used: {}", grant_.customId, error.what());
        give_back(idl::ReturnReason::STATE_MISSING, error.what());
        return false;
    }
    gang_.restore_state(file);
    if (grant_.stateFile.empty()) remove_file(file);
    return true;
}

fs::path LeaseRun::fetch_state() {
    const fs::path path = settings_.work_folder / "fetched.safetensors";
    AppendFile file = AppendFile::create(path);
    while (file.size() < grant_.stateBytes) {
        idl::StateRequest request;
        request.lease = grant_.lease;
        request.offset = file.size();
        request.maxBytes = kStatePieceBytes;
        client_.send(session_, as_message(request));
        idl::ControlMessage message;
        do {
            if (!receive(message)) return {};
        } while (!message.__isset.stateChunk || message.stateChunk.lease != grant_.lease);
        if (message.stateChunk.offset != file.size() || message.stateChunk.data.empty()) {
            throw InternalError(fmt::format("a piece of the state came for byte {}, expected {}",
                                            message.stateChunk.offset, file.size()));
        }
        file.append(std::as_bytes(std::span<const char>(message.stateChunk.data)));
    }
    return path;
}

void LeaseRun::ask_for_tokens() {
    const std::int64_t wanted = std::min(pass_count() + 1, grant_.tokens - position_);
    asked_ = wanted;
    for (std::int64_t done = 0; done < wanted; done += kTokensPiece) {
        idl::TokensRequest request;
        request.lease = grant_.lease;
        request.first = position_ + done;
        request.count = std::min(kTokensPiece, wanted - done);
        client_.send(session_, as_message(request));
    }
}

bool LeaseRun::receive_tokens() {
    say_step(fmt::format("waiting for tokens from {}", position_));
    ids_.resize(static_cast<std::size_t>(asked_));
    for (std::int64_t done = 0; done < asked_;) {
        idl::ControlMessage message;
        if (!receive(message)) return false;
        if (!message.__isset.tokens || message.tokens.lease != grant_.lease) continue;
        const std::string& bytes = message.tokens.ids;
        const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(std::int32_t));
        if (message.tokens.first != position_ + done || count < 1 || count > asked_ - done) {
            throw InternalError(fmt::format("{} tokens came from {}, expected {} from {}", count, message.tokens.first,
                                            asked_ - done, position_ + done));
        }
        std::memcpy(ids_.data() + done, bytes.data(), bytes.size());
        done += count;
    }
    return true;
}

void LeaseRun::run_pass() {
    const std::int64_t first = position_;
    const std::int64_t count = pass_count();
    losses_.resize(ids_.size() - 1);
    say_step(fmt::format("pass at token {} of {}", first, grant_.tokens));
    std::vector<std::int32_t> ids = std::move(ids_);
    // The next pass's tokens travel while this one is computed.
    position_ += count;
    if (!at_end()) ask_for_tokens();
    gang_.score_pass(ids, count, losses_);
    for (std::int64_t done = 0; done < std::ssize(losses_); done += kBlockTokens) {
        const auto some = std::min<std::int64_t>(kBlockTokens, std::ssize(losses_) - done);
        idl::Losses losses;
        losses.lease = grant_.lease;
        losses.first = first + done;
        losses.nll.assign(reinterpret_cast<const char*>(losses_.data() + done),
                          static_cast<std::size_t>(some) * sizeof(float));
        client_.send(session_, as_message(losses));
    }
}

void LeaseRun::save() {
    if (position_ == saved_position_ || position_ >= grant_.tokens) return;
    say_step(fmt::format("saving at token {}", position_));
    idl::SavePoint point;
    point.lease = grant_.lease;
    point.position = position_;
    const bool travels = settings_.state_folder.empty();
    const fs::path path =
        travels ? settings_.work_folder / "saved.safetensors"
                : settings_.state_folder / fmt::format("{}-{}-{}-{}.safetensors", grant_.jobId, grant_.lease.document,
                                                       grant_.lease.epoch, position_);
    gang_.save_state(path);
    {
        const MappedFile file = MappedFile::open(path);
        point.stateBytes = file.size();
        point.stateHash = hash_of(file);
        for (std::int64_t offset = 0; travels && offset < file.size(); offset += kStatePieceBytes) {
            idl::StateChunk chunk;
            chunk.lease = grant_.lease;
            chunk.position = position_;
            chunk.offset = offset;
            const auto bytes = static_cast<std::size_t>(std::min(kStatePieceBytes, file.size() - offset));
            chunk.data.assign(reinterpret_cast<const char*>(file.bytes().data()) + offset, bytes);
            client_.send(session_, as_message(chunk));
        }
    }
    if (travels) {
        remove_file(path);
    } else {
        point.stateFile = path.string();
    }
    client_.send(session_, as_message(point));
    if (!travels) {
        // The last one may go when this one is known.
        std::deque<idl::ControlMessage> others;
        idl::ControlMessage message;
        while (receive(message) && !message.__isset.saved) others.push_back(std::move(message));
        if (!message.__isset.saved) return;  // revoked
        early_ = std::move(others);
        if (!state_file_.empty()) remove_file(state_file_);
        state_file_ = point.stateFile;
    }
    saved_position_ = position_;
    last_save_ = Clock::now();
}

void LeaseRun::give_back(idl::ReturnReason::type reason, const std::string& message) {
    idl::GiveBack back;
    back.lease = grant_.lease;
    back.reason = reason;
    back.position = position_;
    back.message = message;
    client_.send(session_, as_message(back));
    idl::ControlMessage answer;
    while (receive(answer)) {
        if (answer.__isset.closed && answer.closed.lease == grant_.lease) return;
    }
}

bool LeaseRun::receive(idl::ControlMessage& message) {
    for (;;) {
        if (client_.is_revoked(grant_.lease)) return false;
        if (!early_.empty()) {
            message = std::move(early_.front());
            early_.pop_front();
            return true;
        }
        if (auto next = client_.receive(session_, kLook)) {
            message = std::move(*next);
            return true;
        }
    }
}

std::string LeaseRun::reason_to_stop() const {
    client_.check_stop();
    if (const char* signal = stop_requested(); signal != nullptr) return fmt::format("the gang got {}", signal);
    if (client_.drain_requested()) return "the gang is drained";
    if (client_.is_recalled(grant_.lease)) return "the coordinator called it back";
    return {};
}

}  // namespace fenwick
