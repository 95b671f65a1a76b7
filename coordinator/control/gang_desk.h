// Who is there, and who works on what: the gangs with their ranks, and their leases. It watches over the ranks: one
// that dies or stalls is named in the log of the job that its gang worked on, and the document goes to others.
// Thread-safe; knows no sockets (RankLink).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/control/rank_link.h"
#include "coordinator/service/leased_document.h"
#include "coordinator/service/service.h"

namespace fenwick {

class GangDesk {
public:
    using Clock = std::chrono::steady_clock;

    explicit GangDesk(Service& service);

    // ---- what ranks say
    /// A rank's first words. Throws ServiceFault when it cannot take part: VERSION_MISMATCH, UNAUTHENTICATED,
    /// INVALID_ARGUMENT, CONFLICT (it disagrees with the ranks of its gang that are there).
    [[nodiscard]] idl::Welcome join(const idl::Hello& hello, const std::shared_ptr<RankLink>& link);
    /// Something came from it.
    void heard(const std::string& gang_id, std::int32_t rank, const RankLink* link);
    void at_step(const std::string& gang_id, std::int32_t rank, const idl::Heartbeat& heartbeat);
    /// It ends in order.
    void said_bye(const std::string& gang_id, std::int32_t rank, const std::string& reason);
    /// Its connection is gone.
    void left(const std::string& gang_id, std::int32_t rank, const RankLink* link, const std::string& reason);
    /// Everything else that rank 0 says; on its link's `work`.
    void handle(const std::string& gang_id, const idl::ControlMessage& message);

    // ---- what the service wants
    /// There may be documents for gangs that wait.
    void wake();
    void revoke(const std::vector<LeaseKey>& keys, const std::string& reason);
    /// False: no such gang is connected.
    bool drain(const std::string& gang_id);
    /// Every lease is to be saved and returned, and none is given any more.
    void recall_all(const std::string& reason);
    [[nodiscard]] std::int64_t leases() const;

    /// To be called a few times a second: finds the silent, tells the store how things stand.
    void tick();

private:
    /// A disk that was full gets time before it is tried again.
    static constexpr std::chrono::seconds kDiskPause{2};

    struct Rank {
        idl::RankInfo info;
        std::shared_ptr<RankLink> link;  ///< null: not connected
        Clock::time_point heard;         ///< while connected; else since when it is not
        Clock::time_point step_since;
    };
    struct Gang {
        idl::GangInfo info;
        std::vector<Rank> ranks;  ///< [world size]
        LeaseRequest request;
        std::shared_ptr<LeasedDocument> lease;
        bool waits = false;  ///< rank 0 said Ready, and has no answer yet
        bool draining = false;
        bool changed = true;
        Clock::time_point not_before;  ///< after a disk was full: no lease until then
        Clock::time_point formed_since;
    };
    /// Things to do once the lock is free: the desk never calls out while it holds it.
    struct Errands {
        std::vector<std::function<void()>> list;
        void add(std::function<void()> errand) { list.push_back(std::move(errand)); }
        void run() {
            for (const auto& errand : list) errand();
            list.clear();
        }
    };

    void try_grant(const std::string& gang_id);
    [[nodiscard]] std::shared_ptr<LeasedDocument> open_lease(const Lease& lease, const GangFacts& facts,
                                                             bool& disk_trouble);
    void carry_out(const std::string& gang_id, LeasedDocument& lease, RankLink& link,
                   const idl::ControlMessage& message);
    void take_back(const std::string& gang_id, LeasedDocument& lease, RankLink& link, const idl::GiveBack& back);
    /// The gang has no lease any more; `lease` is the one that it is believed to have.
    void clear_lease(const std::string& gang_id, const LeasedDocument* lease, bool pause);
    void give_up(const std::shared_ptr<LeasedDocument>& lease, const std::string& reason, bool counts);
    void push_releases();

    // Under the lock.
    static void forget_lease(Gang& gang);
    Gang* find(const std::string& gang_id);
    void lose_gang(Gang& gang, const std::string& reason, Errands& errands);
    void end_lease(Gang& gang, const std::string& reason, bool counts, Errands& errands);
    void note(const Gang& gang, std::optional<std::int32_t> rank, idl::LogLevel::type level, const std::string& text,
              Errands& errands) const;
    void watch_rank(Gang& gang, Rank& rank, Clock::time_point now, Errands& errands);
    [[nodiscard]] bool is_whole(const Gang& gang) const;
    [[nodiscard]] static std::string name_of_rank(const Gang& gang, const Rank& rank);

    Service& service_;
    const std::chrono::milliseconds lost_after_;
    mutable std::mutex mutex_;
    std::map<std::string, Gang> gangs_;
    bool recalled_ = false;
    Clock::time_point last_tick_ = Clock::now();
    Clock::time_point last_flush_ = Clock::now();

    std::mutex releases_mutex_;
    std::vector<LeasedDocument::Release> releases_;  ///< that the store has yet to be told
};

}  // namespace fenwick
