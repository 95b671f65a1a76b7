// GangDesk's leases: what rank 0 asks for and brings, and how a lease ends.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/control/gang_desk.h"
#include "core/errors.h"

namespace fenwick {
namespace {

/// A disk that was full gets time before it is tried again.
constexpr std::chrono::seconds kPause{2};

LeaseKey key_of(const idl::LeaseKey& key) {
    return {key.document, key.epoch};
}

idl::LeaseKey key_of(const LeaseKey& key) {
    idl::LeaseKey idl_key;
    idl_key.document = key.document;
    idl_key.epoch = key.epoch;
    return idl_key;
}

/// The lease that a message of rank 0 is about.
const idl::LeaseKey* find_key(const idl::ControlMessage& message) {
    if (message.__isset.stateRequest) return &message.stateRequest.lease;
    if (message.__isset.stateChunk) return &message.stateChunk.lease;
    if (message.__isset.tokensRequest) return &message.tokensRequest.lease;
    if (message.__isset.losses) return &message.losses.lease;
    if (message.__isset.savePoint) return &message.savePoint.lease;
    if (message.__isset.giveBack) return &message.giveBack.lease;
    return nullptr;
}

idl::ControlMessage revoked(const idl::LeaseKey& key, const std::string& reason) {
    idl::Revoked revoked;
    revoked.lease = key;
    revoked.reason = reason;
    return as_message(revoked);
}

idl::Grant grant_of(const Lease& lease) {
    idl::Grant grant;
    grant.lease = key_of(lease.key);
    grant.jobId = lease.document.job_id;
    grant.customId = lease.document.ref.custom_id;
    grant.tokens = lease.document.tokens;
    grant.first = lease.first;
    grant.limit = lease.limit;
    grant.modelPath = lease.model_path;
    grant.modelHash = lease.model_hash;
    grant.stateBytes = lease.document.save.state_bytes;
    grant.stateHash = lease.document.save.state_hash;
    grant.stateFile = lease.document.save.state_file;
    return grant;
}

bool is_disk_trouble(const Error& error) {
    const auto* fault = dynamic_cast<const ServiceFault*>(&error);
    return fault != nullptr ? fault->service_code() == ServiceCode::STORAGE_FULL
                            : error.code() == ExitCode::kUnavailable;
}

}  // namespace

void GangDesk::wake() {
    std::vector<std::pair<std::string, std::shared_ptr<RankLink>>> waiting;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, gang] : gangs_) {
            if (gang.waits && gang.ranks.front().link != nullptr) waiting.emplace_back(id, gang.ranks.front().link);
        }
    }
    for (const auto& [id, leader] : waiting) leader->work([this, id = id] { try_grant(id); });
}

void GangDesk::try_grant(const std::string& gang_id) {
    for (;;) {
        LeaseRequest request;
        GangFacts facts;
        {
            const std::lock_guard lock(mutex_);
            const Gang* gang = find(gang_id);
            if (gang == nullptr || !gang->waits || gang->draining || recalled_ || gang->lease != nullptr ||
                !is_whole(*gang) || gang->not_before > Clock::now()) {
                return;
            }
            request = gang->request;
            facts = {gang->info.id, gang->info.name, gang->info.worldSize, gang->info.device, gang->info.dtype};
        }
        std::optional<Lease> lease;
        try {
            lease = service_.store().lease_next(request);
        } catch (const Error& error) {
            spdlog::error("no lease for gang {}: {}", facts.name, error.what());
        }
        if (!lease) return;
        bool disk_trouble = false;
        std::shared_ptr<LeasedDocument> document = open_lease(*lease, facts, disk_trouble);
        std::shared_ptr<RankLink> leader;
        {
            const std::lock_guard lock(mutex_);
            Gang* gang = find(gang_id);
            if (gang != nullptr && disk_trouble) gang->not_before = Clock::now() + kPause;
            if (document != nullptr && gang != nullptr && gang->waits && gang->ranks.front().link != nullptr) {
                gang->lease = document;
                gang->waits = false;
                gang->info.state = idl::GangState::BUSY;
                gang->info.__set_jobId(lease->document.job_id);
                gang->info.__set_customId(lease->document.ref.custom_id);
                gang->info.position = lease->first;
                gang->info.reason.clear();
                gang->changed = true;
                leader = gang->ranks.front().link;
            }
        }
        if (leader == nullptr) {
            if (document != nullptr) give_up(document, fmt::format("gang {} went away", facts.name), false);
            if (disk_trouble || document != nullptr) return;
            continue;  // that document was bad: the next one
        }
        // It may have been cancelled between the two looks: then nobody told this gang.
        if (!service_.store().is_current(lease->key)) {
            revoke({lease->key}, "the job was cancelled");
            return;
        }
        service_.store().log({.level = idl::LogLevel::INFO,
                              .text = fmt::format("gang {} ({} ranks) works on tokens {} to {} of {}", facts.name,
                                                  facts.ranks, lease->first, lease->limit, lease->document.tokens),
                              .job_id = lease->document.job_id,
                              .custom_id = lease->document.ref.custom_id,
                              .gang = facts.name});
        leader->send(as_message(grant_of(*lease)));
        return;
    }
}

std::shared_ptr<LeasedDocument> GangDesk::open_lease(const Lease& lease, const GangFacts& facts, bool& disk_trouble) {
    const StoredDocument& document = lease.document;
    try {
        return std::make_shared<LeasedDocument>(service_.store(), service_.folders(), service_.models(), lease, facts);
    } catch (const DocumentFailure& failure) {
        const Row row = failed_row(service_.folders().for_client(document.job_id, document.ref), failure, "");
        (void)service_.store().fail(lease.key, service_code_of(failure.code_name()), failure.what(), to_line(row), {});
        service_.job_moved();
    } catch (const Error& error) {
        // The disk, or a save point that it has lost: not the document's fault, nor the gang's.
        spdlog::error("{} of job {} cannot be opened: {}", document.ref.custom_id, document.job_id, error.what());
        disk_trouble = error.code() == ExitCode::kUnavailable;
        if (!disk_trouble && document.save.position > 0) service_.store().forget_save(document.id);
        const std::lock_guard lock(releases_mutex_);
        const DocumentFailure failure("INTERNAL", error.what());
        releases_.push_back(
            {lease.key,
             error.what(),
             !disk_trouble,
             to_line(failed_row(service_.folders().for_client(document.job_id, document.ref), failure, "")),
             {}});
    }
    push_releases();
    return nullptr;
}

void GangDesk::handle(const std::string& gang_id, const idl::ControlMessage& message) {
    std::shared_ptr<LeasedDocument> lease;
    std::shared_ptr<RankLink> leader;
    {
        const std::lock_guard lock(mutex_);
        Gang* gang = find(gang_id);
        if (gang == nullptr || gang->ranks.front().link == nullptr) return;
        leader = gang->ranks.front().link;
        lease = gang->lease;
        if (message.__isset.ready) {
            gang->waits = true;
            gang->changed = true;
        }
    }
    if (message.__isset.ready) {
        // A gang that asks for the next one has forgotten the last one.
        if (lease != nullptr) {
            give_up(lease, "its gang let it go", true);
            clear_lease(gang_id, lease.get(), false);
        }
        try_grant(gang_id);
        return;
    }
    const idl::LeaseKey* key = find_key(message);
    if (key == nullptr) {
        spdlog::warn("gang {}: a message that a coordinator does not take", gang_id);
        return;
    }
    if (lease == nullptr || key_of(*key) != lease->lease().key) {
        // Late words under an old epoch are dropped; who waits for an answer is told that none will come.
        leader->send(revoked(*key, "this lease is over"));
        return;
    }
    try {
        carry_out(gang_id, *lease, *leader, message);
    } catch (const DocumentFailure& failure) {
        (void)lease->fail(failure);
        clear_lease(gang_id, lease.get(), false);
        leader->send(revoked(*key, failure.what()));
        service_.job_moved();
    } catch (const ProtocolFault& fault) {
        Errands errands;
        {
            const std::lock_guard lock(mutex_);
            if (Gang* gang = find(gang_id))
                lose_gang(*gang, std::string("it broke the protocol: ") + fault.what(), errands);
        }
        errands.run();
    } catch (const Error& error) {
        const bool disk = is_disk_trouble(error);
        // Its save point is gone or damaged: without it there is at least the beginning.
        if (!disk && message.__isset.stateRequest) lease->forget_save();
        spdlog::error("document {} of job {}: {}", lease->lease().document.ref.custom_id,
                      lease->lease().document.job_id, error.what());
        give_up(lease, error.what(), !disk);
        clear_lease(gang_id, lease.get(), true);
        leader->send(revoked(*key, error.what()));
    }
}

void GangDesk::carry_out(const std::string& gang_id, LeasedDocument& lease, RankLink& link,
                         const idl::ControlMessage& message) {
    if (message.__isset.tokensRequest) {
        idl::Tokens tokens;
        tokens.lease = message.tokensRequest.lease;
        tokens.first = message.tokensRequest.first;
        tokens.ids = lease.read_tokens(message.tokensRequest.first, message.tokensRequest.count);
        link.send(as_message(tokens));
    } else if (message.__isset.losses) {
        lease.take_losses(message.losses.first, message.losses.nll);
    } else if (message.__isset.stateRequest) {
        idl::StateChunk chunk;
        chunk.lease = message.stateRequest.lease;
        chunk.position = lease.lease().first;
        chunk.offset = message.stateRequest.offset;
        chunk.data = lease.read_state(message.stateRequest.offset, message.stateRequest.maxBytes);
        link.send(as_message(chunk));
    } else if (message.__isset.stateChunk) {
        lease.take_state(message.stateChunk.position, message.stateChunk.offset, message.stateChunk.data);
    } else if (message.__isset.savePoint) {
        if (lease.save(message.savePoint)) {
            idl::Saved saved;
            saved.lease = message.savePoint.lease;
            saved.position = message.savePoint.position;
            link.send(as_message(saved));
        } else {
            clear_lease(gang_id, &lease, false);
            link.send(revoked(message.savePoint.lease, "this lease is over"));
        }
    } else if (message.__isset.giveBack) {
        take_back(gang_id, lease, link, message.giveBack);
    }
}

void GangDesk::take_back(const std::string& gang_id, LeasedDocument& lease, RankLink& link, const idl::GiveBack& back) {
    const Lease& terms = lease.lease();
    std::shared_ptr<LeasedDocument> same;
    {
        const std::lock_guard lock(mutex_);
        Gang* gang = find(gang_id);
        if (gang == nullptr || gang->lease.get() != &lease) return;
        same = gang->lease;
        if (back.reason == idl::ReturnReason::REFUSED) gang->request.excluded_models.push_back(terms.model_hash);
    }
    switch (back.reason) {
        case idl::ReturnReason::DONE:
            if (terms.limit == terms.document.tokens) {
                (void)lease.complete();
            } else if (terms.document.save.position != terms.limit) {
                throw ProtocolFault(fmt::format("{}: the stretch that ends at {} is done, but saved at {}",
                                                terms.document.ref.custom_id, terms.limit,
                                                terms.document.save.position));
            } else {
                give_up(same, "", false);
            }
            break;
        case idl::ReturnReason::DRAINED:
        case idl::ReturnReason::REFUSED:
            give_up(same, back.message, false);
            break;
        case idl::ReturnReason::STATE_MISSING:
            lease.forget_save();
            give_up(same, back.message, true);
            break;
        default:
            give_up(same, back.message, true);
            break;
    }
    clear_lease(gang_id, &lease, false);
    idl::Closed closed;
    closed.lease = back.lease;
    link.send(as_message(closed));
    service_.job_moved();
}

void GangDesk::clear_lease(const std::string& gang_id, const LeasedDocument* lease, bool pause) {
    const std::lock_guard lock(mutex_);
    Gang* gang = find(gang_id);
    if (gang == nullptr || gang->lease.get() != lease) return;
    gang->lease = nullptr;
    gang->info.__isset.jobId = false;
    gang->info.__isset.customId = false;
    gang->info.position = 0;
    gang->info.tokensPerSecond = 0;
    if (gang->info.state == idl::GangState::BUSY) gang->info.state = idl::GangState::IDLE;
    if (pause) gang->not_before = Clock::now() + kPause;
    gang->changed = true;
}

void GangDesk::give_up(const std::shared_ptr<LeasedDocument>& lease, const std::string& reason, bool counts) {
    if (auto release = lease->give_up(reason, counts)) {
        const std::lock_guard lock(releases_mutex_);
        releases_.push_back(std::move(*release));
    }
    push_releases();
}

void GangDesk::push_releases() {
    bool moved = false;
    {
        const std::lock_guard lock(releases_mutex_);
        while (!releases_.empty()) {
            const LeasedDocument::Release& next = releases_.back();
            try {
                (void)service_.store().release(next.key, next.reason, next.counts, next.row_if_failed, next.work);
            } catch (const Error& error) {
                spdlog::error("a lease cannot be returned to the store yet: {}", error.what());
                break;  // the next tick tries again
            }
            releases_.pop_back();
            moved = true;
        }
    }
    if (moved) service_.job_moved();
}

void GangDesk::revoke(const std::vector<LeaseKey>& keys, const std::string& reason) {
    Errands errands;
    {
        const std::lock_guard lock(mutex_);
        for (auto& [id, gang] : gangs_) {
            if (gang.lease == nullptr) continue;
            const LeaseKey key = gang.lease->lease().key;
            if (std::find(keys.begin(), keys.end(), key) == keys.end()) continue;
            errands.add([lease = gang.lease] { lease->close(); });
            if (gang.ranks.front().link != nullptr) {
                errands.add(
                    [link = gang.ranks.front().link, message = revoked(key_of(key), reason)] { link->send(message); });
            }
            gang.lease = nullptr;
            gang.info.__isset.jobId = false;
            gang.info.__isset.customId = false;
            if (gang.info.state == idl::GangState::BUSY) gang.info.state = idl::GangState::IDLE;
            gang.changed = true;
        }
    }
    errands.run();
}

bool GangDesk::drain(const std::string& gang_id) {
    std::shared_ptr<RankLink> leader;
    {
        const std::lock_guard lock(mutex_);
        Gang* gang = find(gang_id);
        if (gang == nullptr || gang->ranks.front().link == nullptr) return false;
        gang->draining = true;
        gang->info.state = idl::GangState::DRAINING;
        gang->changed = true;
        leader = gang->ranks.front().link;
    }
    idl::Drain drain;
    drain.reason = "drained on request";
    leader->send(as_message(drain));
    return true;
}

void GangDesk::recall_all(const std::string& reason) {
    std::vector<std::pair<std::shared_ptr<RankLink>, idl::ControlMessage>> letters;
    {
        const std::lock_guard lock(mutex_);
        recalled_ = true;
        for (const auto& [id, gang] : gangs_) {
            if (gang.lease == nullptr || gang.ranks.front().link == nullptr) continue;
            idl::Recall recall;
            recall.lease = key_of(gang.lease->lease().key);
            recall.reason = reason;
            letters.emplace_back(gang.ranks.front().link, as_message(recall));
        }
    }
    for (const auto& [link, message] : letters) link->send(message);
}

std::int64_t GangDesk::leases() const {
    const std::lock_guard lock(mutex_);
    return std::count_if(gangs_.begin(), gangs_.end(), [](const auto& entry) { return entry.second.lease != nullptr; });
}

}  // namespace fenwick
