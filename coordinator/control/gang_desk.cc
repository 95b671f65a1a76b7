// Gangs come, are watched, and go.
#include "coordinator/control/gang_desk.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "coordinator/build_info.h"
#include "coordinator/control/control_limits.h"
#include "coordinator/idl/fenwick_constants.h"
#include "core/errors.h"

namespace fenwick {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::milliseconds;

constexpr std::int32_t kMostRanks = 65'536;
/// A gang whose ranks do not all come is given up.
constexpr std::chrono::seconds kFormWithin{120};
constexpr std::chrono::milliseconds kFlushEvery{1000};
/// A tick that comes later than this was held up, and with it the frames that would have been heard.
constexpr std::chrono::milliseconds kLateTick{1000};

milliseconds to_ms(double seconds) {
    return duration_cast<milliseconds>(duration<double>(seconds));
}

/// Same time for every wrong token of that length.
bool same_secret(const std::string& a, const std::string& b) {
    return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void check_hello(const idl::Hello& hello, const std::string& token) {
    if (hello.controlVersion != idl::g_fenwick_constants.CONTROL_VERSION) {
        throw ServiceFault(
            ServiceCode::VERSION_MISMATCH,
            fmt::format("the coordinator ({}) speaks version {} of the control plane, this worker ({}) {}; "
                        "use one build for both",
                        build_info::kVersion, idl::g_fenwick_constants.CONTROL_VERSION, hello.build,
                        hello.controlVersion));
    }
    if (!same_secret(hello.token, token)) {
        throw ServiceFault(ServiceCode::UNAUTHENTICATED, "the worker's token is not the coordinator's control.token");
    }
    const bool sound = !hello.gangId.empty() && hello.gangId.size() <= 100 && hello.worldSize >= 1 &&
                       hello.worldSize <= kMostRanks && hello.rank >= 0 && hello.rank < hello.worldSize &&
                       (hello.device == "cpu" || hello.device == "cuda") &&
                       (hello.dtype == "fp32" || hello.dtype == "bf16");
    if (!sound) {
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                           fmt::format("rank {} of {}, {}, {}: no rank of a gang looks like that", hello.rank,
                                       hello.worldSize, hello.device, hello.dtype));
    }
}

}  // namespace

GangDesk::GangDesk(Service& service) : service_(service), lost_after_(to_ms(service.config().lost_seconds)) {}

GangDesk::Gang* GangDesk::find(const std::string& gang_id) {
    const auto found = gangs_.find(gang_id);
    return found == gangs_.end() ? nullptr : &found->second;
}

std::string GangDesk::name_of_rank(const Gang& gang, const Rank& rank) {
    return fmt::format("rank {} of gang {} (process {} on {})", rank.info.rank, gang.info.name, rank.info.pid,
                       rank.info.host);
}

bool GangDesk::is_whole(const Gang& gang) const {
    return std::all_of(gang.ranks.begin(), gang.ranks.end(), [](const Rank& rank) { return rank.link != nullptr; });
}

void GangDesk::note(const Gang& gang, std::optional<std::int32_t> rank, idl::LogLevel::type level,
                    const std::string& text, Errands& errands) const {
    LogLine line{.level = level, .text = text, .gang = gang.info.name, .rank = rank};
    if (gang.lease != nullptr) {
        line.job_id = gang.lease->lease().document.job_id;
        line.custom_id = gang.lease->lease().document.ref.custom_id;
    }
    errands.add([this, line] {
        spdlog::log(line.level == idl::LogLevel::INFO ? spdlog::level::info : spdlog::level::warn, "{}{}", line.text,
                    line.job_id.empty() ? "" : fmt::format(" [job {}, document {}]", line.job_id, line.custom_id));
        try {
            service_.store().log(line);
        } catch (const Error& error) {
            spdlog::error("the store cannot take a log line: {}", error.what());
        }
    });
}

idl::Welcome GangDesk::join(const idl::Hello& hello, const std::shared_ptr<RankLink>& link) {
    check_hello(hello, service_.config().worker_token);
    Errands errands;
    {
        const std::lock_guard lock(mutex_);
        const bool is_new = gangs_.find(hello.gangId) == gangs_.end();
        Gang& gang = gangs_[hello.gangId];
        if (is_new) {
            gang.info.id = hello.gangId;
            gang.info.name = hello.gangName.empty() ? hello.gangId : hello.gangName;
            gang.info.worldSize = hello.worldSize;
            gang.info.device = hello.device;
            gang.info.dtype = hello.dtype;
            gang.info.modelHashes = hello.modelHashes;
            gang.info.connectedAt = now_ms();
            gang.ranks.resize(static_cast<std::size_t>(hello.worldSize));
            for (std::size_t i = 0; i < gang.ranks.size(); ++i) {
                gang.ranks[i].info.rank = static_cast<std::int32_t>(i);
                gang.ranks[i].info.state = idl::RankState::DISCONNECTED;
                gang.ranks[i].heard = Clock::now();
            }
            gang.request.gang_id = hello.gangId;
            gang.request.device = hello.device;
            gang.request.dtype = hello.dtype;
            gang.request.model_hashes = hello.modelHashes;
            gang.request.stretch_tokens = service_.config().stretch_tokens;
        } else if (gang.info.worldSize != hello.worldSize || gang.info.device != hello.device ||
                   gang.info.dtype != hello.dtype) {
            throw ServiceFault(ServiceCode::CONFLICT,
                               fmt::format("gang {} has {} ranks on {} ({}); this rank says {} on {} ({})",
                                           gang.info.name, gang.info.worldSize, gang.info.device, gang.info.dtype,
                                           hello.worldSize, hello.device, hello.dtype));
        }
        const bool was_over = gang.info.state == idl::GangState::LOST || gang.info.state == idl::GangState::ENDED;
        if (is_new || was_over) {
            gang.info.state = idl::GangState::FORMING;
            gang.info.reason.clear();
            gang.formed_since = Clock::now();
            gang.draining = false;
        }
        Rank& rank = gang.ranks[static_cast<std::size_t>(hello.rank)];
        if (rank.link != nullptr) errands.add([old = rank.link] { old->close(); });
        if (rank.link != nullptr && hello.rank == 0) end_lease(gang, "rank 0 connected anew", false, errands);
        rank.link = link;
        rank.heard = Clock::now();
        rank.step_since = rank.heard;
        rank.info.state = idl::RankState::CONNECTED;
        rank.info.host = hello.host;
        rank.info.pid = hello.pid;
        rank.info.device = hello.deviceId;
        rank.info.lastSeenAt = now_ms();
        rank.info.reason.clear();
        if (hello.rank == 0) gang.waits = false;
        gang.changed = true;
        if (is_whole(gang)) {
            if (gang.info.state == idl::GangState::FORMING) gang.info.state = idl::GangState::IDLE;
            note(gang, std::nullopt, idl::LogLevel::INFO,
                 fmt::format("gang {}: all {} ranks are there, {} ({})", gang.info.name, gang.info.worldSize,
                             gang.info.device, gang.info.dtype),
                 errands);
            errands.add([leader = gang.ranks.front().link, this, id = hello.gangId] {
                leader->work([this, id] { try_grant(id); });
            });
        }
    }
    errands.run();
    idl::Welcome welcome;
    welcome.controlVersion = idl::g_fenwick_constants.CONTROL_VERSION;
    welcome.build = build_info::kVersion;
    welcome.heartbeatMs = to_ms(service_.config().heartbeat_seconds).count();
    welcome.timeoutMs = lost_after_.count();
    welcome.maxFrameBytes = kControlFrameBytes;
    welcome.saveSeconds = service_.config().save_seconds;
    return welcome;
}

void GangDesk::heard(const std::string& gang_id, std::int32_t rank_number, const RankLink* link) {
    const std::lock_guard lock(mutex_);
    Gang* gang = find(gang_id);
    if (gang == nullptr) return;
    Rank& rank = gang->ranks[static_cast<std::size_t>(rank_number)];
    if (rank.link.get() != link) return;
    rank.heard = Clock::now();
    rank.info.lastSeenAt = now_ms();
    if (rank.info.state == idl::RankState::STALLED) {
        rank.info.state = idl::RankState::CONNECTED;
        rank.info.reason.clear();
        gang->changed = true;
    }
}

void GangDesk::at_step(const std::string& gang_id, std::int32_t rank_number, const idl::Heartbeat& heartbeat) {
    const std::lock_guard lock(mutex_);
    Gang* gang = find(gang_id);
    if (gang == nullptr) return;
    Rank& rank = gang->ranks[static_cast<std::size_t>(rank_number)];
    rank.info.step = heartbeat.step;
    rank.step_since = Clock::now() - milliseconds(heartbeat.stepMs);
}

void GangDesk::said_bye(const std::string& gang_id, std::int32_t rank_number, const std::string& reason) {
    Errands errands;
    {
        const std::lock_guard lock(mutex_);
        Gang* gang = find(gang_id);
        if (gang == nullptr) return;
        Rank& rank = gang->ranks[static_cast<std::size_t>(rank_number)];
        rank.info.state = idl::RankState::ENDED;
        rank.info.reason = reason;
        if (rank_number == 0) {
            const std::string text = fmt::format("gang {} ends: {}", gang->info.name, reason);
            note(*gang, std::nullopt, idl::LogLevel::INFO, text, errands);
            end_lease(*gang, text, false, errands);
            gang->waits = false;
            gang->info.state = idl::GangState::ENDED;
            gang->info.reason = reason;
        }
        gang->changed = true;
    }
    errands.run();
}

void GangDesk::left(const std::string& gang_id, std::int32_t rank_number, const RankLink* link,
                    const std::string& reason) {
    Errands errands;
    {
        const std::lock_guard lock(mutex_);
        Gang* gang = find(gang_id);
        if (gang == nullptr) return;
        Rank& rank = gang->ranks[static_cast<std::size_t>(rank_number)];
        if (rank.link.get() != link) return;  // it has come back meanwhile
        rank.link = nullptr;
        rank.heard = Clock::now();
        gang->changed = true;
        const bool over = gang->info.state == idl::GangState::LOST || gang->info.state == idl::GangState::ENDED;
        if (rank.info.state != idl::RankState::ENDED && rank.info.state != idl::RankState::LOST) {
            rank.info.state = idl::RankState::DISCONNECTED;
            rank.info.reason = reason;
            if (!over) {
                const std::string text = fmt::format("{}: {}; it was at: {}", name_of_rank(*gang, rank), reason,
                                                     rank.info.step.empty() ? "start" : rank.info.step);
                if (gang->info.reason.empty()) gang->info.reason = text;
                note(*gang, rank_number, idl::LogLevel::WARNING, text, errands);
                if (rank_number == 0) end_lease(*gang, text, true, errands);
            }
        }
        if (rank_number == 0) gang->waits = false;
    }
    errands.run();
}

void GangDesk::end_lease(Gang& gang, const std::string& reason, bool counts, Errands& errands) {
    if (gang.lease == nullptr) return;
    errands.add([this, lease = gang.lease, reason, counts] { give_up(lease, reason, counts); });
    forget_lease(gang);
}

void GangDesk::lose_gang(Gang& gang, const std::string& reason, Errands& errands) {
    note(gang, std::nullopt, idl::LogLevel::ERROR, fmt::format("gang {} is lost: {}", gang.info.name, reason), errands);
    end_lease(gang, reason, true, errands);
    gang.info.state = idl::GangState::LOST;
    gang.info.reason = reason;
    gang.waits = false;
    gang.changed = true;
    idl::Stop stop;
    stop.reason = reason;
    for (Rank& rank : gang.ranks) {
        if (rank.link == nullptr) continue;
        errands.add([link = rank.link, message = as_message(stop)] {
            link->send(message);
            link->close();
        });
    }
}

void GangDesk::watch_rank(Gang& gang, Rank& rank, Clock::time_point now, Errands& errands) {
    if (rank.info.state == idl::RankState::ENDED || rank.info.state == idl::RankState::LOST) return;
    if (rank.link != nullptr && rank.link->held_back()) {
        rank.heard = now;
        return;
    }
    const auto silent = duration_cast<milliseconds>(now - rank.heard);
    const double seconds = duration<double>(silent).count();
    const std::string step = rank.info.step.empty() ? "start" : rank.info.step;
    if (silent >= lost_after_) {
        const bool connected = rank.link != nullptr;
        const std::string text = fmt::format("{} is lost: {} {:.1f} s{}; it was at: {}", name_of_rank(gang, rank),
                                             connected ? "connected, but silent for" : "not connected for", seconds,
                                             connected ? " (stopped, stalled, or cut off)" : "", step);
        rank.info.state = idl::RankState::LOST;
        rank.info.reason = text;
        note(gang, rank.info.rank, idl::LogLevel::ERROR, text, errands);
        lose_gang(gang, text, errands);
    } else if (2 * silent >= lost_after_ && rank.link != nullptr && rank.info.state == idl::RankState::CONNECTED) {
        rank.info.state = idl::RankState::STALLED;
        rank.info.reason = fmt::format("silent for {:.1f} s", seconds);
        gang.changed = true;
        note(gang, rank.info.rank, idl::LogLevel::WARNING,
             fmt::format("{} is silent for {:.1f} s; it was at: {}", name_of_rank(gang, rank), seconds, step), errands);
    }
}

void GangDesk::tick() {
    Errands errands;
    std::vector<idl::GangInfo> changed;
    std::vector<RunningProgress> running;
    {
        const std::lock_guard lock(mutex_);
        const Clock::time_point now = Clock::now();
        const auto late = now - last_tick_;
        last_tick_ = now;
        // Gangs that are over and have no connection left are the store's alone.
        std::erase_if(gangs_, [](const auto& entry) {
            const Gang& gang = entry.second;
            const bool over = gang.info.state == idl::GangState::LOST || gang.info.state == idl::GangState::ENDED;
            return over && !gang.changed && std::all_of(gang.ranks.begin(), gang.ranks.end(), [](const Rank& rank) {
                       return rank.link == nullptr;
                   });
        });
        const bool flush = now - last_flush_ >= kFlushEvery;
        if (flush) last_flush_ = now;
        for (auto& [id, gang] : gangs_) {
            if (late > kLateTick) {
                for (Rank& rank : gang.ranks) rank.heard += duration_cast<Clock::duration>(late);
            }
            const bool over = gang.info.state == idl::GangState::LOST || gang.info.state == idl::GangState::ENDED;
            if (!over && gang.info.state == idl::GangState::FORMING) {
                if (now - gang.formed_since > kFormWithin) {
                    std::string missing;
                    for (const Rank& rank : gang.ranks) {
                        if (rank.link == nullptr) missing += fmt::format(" {}", rank.info.rank);
                    }
                    lose_gang(gang, "these ranks never came:" + missing, errands);
                }
            } else if (!over) {
                for (Rank& rank : gang.ranks) {
                    watch_rank(gang, rank, now, errands);
                    if (gang.info.state == idl::GangState::LOST) break;
                }
            }
            if (gang.waits && gang.ranks.front().link != nullptr && gang.not_before > Clock::time_point() &&
                now >= gang.not_before) {
                gang.not_before = {};
                errands.add([this, leader = gang.ranks.front().link, id = gang.info.id] {
                    leader->work([this, id] { try_grant(id); });
                });
            }
            if (gang.lease != nullptr) {
                gang.info.position = gang.lease->position();
                gang.info.tokensPerSecond = gang.lease->tokens_per_second();
                if (flush) running.push_back({gang.lease->lease().key, gang.info.position, gang.info.tokensPerSecond});
            }
            if (!gang.changed && !(flush && !over)) continue;
            gang.changed = false;
            gang.info.lastSeenAt = 0;
            gang.info.ranks.clear();
            for (const Rank& rank : gang.ranks) {
                gang.info.ranks.push_back(rank.info);
                gang.info.lastSeenAt = std::max(gang.info.lastSeenAt, rank.info.lastSeenAt);
            }
            changed.push_back(gang.info);
        }
    }
    errands.run();
    push_releases();
    try {
        service_.store().record_gangs(changed);
        service_.store().record_progress(running);
    } catch (...) {
        const std::lock_guard lock(mutex_);
        for (const idl::GangInfo& info : changed) {
            if (Gang* gang = find(info.id)) gang->changed = true;  // told again by the next tick
        }
        throw;
    }
}

}  // namespace fenwick
