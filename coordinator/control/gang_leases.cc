// GangDesk carries out what rank 0 says about its lease.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "coordinator/control/gang_desk.h"
#include "coordinator/control/lease_messages.h"
#include "core/errors.h"

namespace fenwick {
namespace {

bool is_disk_trouble(const Error& error) {
    const auto* fault = dynamic_cast<const ServiceFault*>(&error);
    return fault != nullptr ? fault->service_code() == ServiceCode::STORAGE_FULL
                            : error.code() == ExitCode::kUnavailable;
}

}  // namespace

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
        leader->send(revoked_message(*key, "this lease is over"));
        return;
    }
    try {
        carry_out(gang_id, *lease, *leader, message);
    } catch (const DocumentFailure& failure) {
        (void)lease->fail(failure);
        clear_lease(gang_id, lease.get(), false);
        leader->send(revoked_message(*key, failure.what()));
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
        leader->send(revoked_message(*key, error.what()));
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
            link.send(revoked_message(message.savePoint.lease, "this lease is over"));
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

}  // namespace fenwick
