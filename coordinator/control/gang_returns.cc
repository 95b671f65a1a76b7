// GangDesk ends leases: each goes back to the store, whatever became of its gang.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/control/gang_desk.h"
#include "coordinator/control/lease_messages.h"
#include "core/errors.h"

namespace fenwick {

void GangDesk::forget_lease(Gang& gang) {
    gang.lease = nullptr;
    gang.info.__isset.jobId = false;
    gang.info.__isset.customId = false;
    gang.info.position = 0;
    gang.info.tokensPerSecond = 0;
    if (gang.info.state == idl::GangState::BUSY) gang.info.state = idl::GangState::IDLE;
    gang.changed = true;
}

void GangDesk::clear_lease(const std::string& gang_id, const LeasedDocument* lease, bool pause) {
    const std::lock_guard lock(mutex_);
    Gang* gang = find(gang_id);
    if (gang == nullptr || gang->lease.get() != lease) return;
    forget_lease(*gang);
    if (pause) gang->not_before = Clock::now() + kDiskPause;
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
                errands.add([link = gang.ranks.front().link, message = revoked_message(key_of(key), reason)] {
                    link->send(message);
                });
            }
            forget_lease(gang);
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
