// GangDesk gives leases to gangs that wait.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "coordinator/control/gang_desk.h"
#include "coordinator/control/lease_messages.h"
#include "core/errors.h"

namespace fenwick {

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
            if (gang != nullptr && disk_trouble) gang->not_before = Clock::now() + kDiskPause;
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
        leader->send(grant_message(*lease));
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

}  // namespace fenwick
