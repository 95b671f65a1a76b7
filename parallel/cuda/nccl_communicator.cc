#include "parallel/cuda/nccl_communicator.h"

#include <fmt/format.h>
#include <nccl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "parallel/end_guard.h"
#include "parallel/watchdog.h"

namespace fenwick::cuda {
namespace {

std::string describe(ncclResult_t result, ncclComm_t comm) {
    const char* more = ncclGetLastError(comm);
    std::string text = ncclGetErrorString(result);
    if (more != nullptr && *more != '\0') text += fmt::format(" ({})", more);
    return text;
}

/// Events around one group on the stream. Kept and used again: making one costs more than recording it.
struct Marks {
    Event begun;
    Event ended;
    /// 0: the host is still inside NCCL's calls; 1: all is given to the stream.
    std::atomic<bool> given{false};
};

}  // namespace

std::string nccl_version() {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess) return "of unknown version";
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

class NcclCommunicator::World {
public:
    World(Communicator& bootstrap, NcclOptions options, cudaStream_t stream)
        : bootstrap_(bootstrap), options_(options), stream_(stream) {
        FENWICK_CUDA_CHECK(cudaGetDevice(&device_));
        barrier(bootstrap_);  // who is missing is named here, by the world that started us
        ncclUniqueId id{};
        if (bootstrap_.rank() == 0) check_call(ncclGetUniqueId(&id), "ncclGetUniqueId");
        broadcast(bootstrap_, std::as_writable_bytes(std::span(&id, 1)));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        const EndGuard guard(options_.timeout, [this] {
            end_process(fmt::format("rank {} of {}: the ranks did not all come to NCCL's start within {:.1f} s",
                                    bootstrap_.rank(), bootstrap_.size(), seconds()),
                        end_code());
        });
        check_call(ncclCommInitRankConfig(&comm_, bootstrap_.size(), id, bootstrap_.rank(), &config),
                   "ncclCommInitRankConfig");
        watchdog_.emplace(Watchdog::Times{options_.timeout, std::chrono::milliseconds(20), kGrace}, hooks());
    }

    ~World() {
        const bool broken = watchdog_ && watchdog_->failure().has_value();
        watchdog_.reset();
        if (comm_ == nullptr || aborted_) return;
        if (broken || std::uncaught_exceptions() > exceptions_) {  // the peers may be anywhere
            log_unless_ok(ncclCommAbort(comm_), "ncclCommAbort");
            return;
        }
        const EndGuard guard(options_.timeout, [this] {
            end_process(fmt::format("rank {} of {}: NCCL did not end within {:.1f} s", bootstrap_.rank(),
                                    bootstrap_.size(), seconds()),
                        end_code());
        });
        (void)cudaStreamSynchronize(stream_);  // NCCL ends only what is not at work
        log_unless_ok(ncclCommDestroy(comm_), "ncclCommDestroy");
    }

    World(const World&) = delete;
    World& operator=(const World&) = delete;

    void exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
        if (sends.empty() && recvs.empty()) return;
        std::set<int> peers;
        for (const SendOp& send : sends) peers.insert(send.to);
        for (const RecvOp& recv : recvs) peers.insert(recv.from);
        for (const int peer : peers) {
            if (peer < 0 || peer >= bootstrap_.size()) throw InternalError(fmt::format("nccl: no rank {}", peer));
        }
        Step step = bootstrap_.status().step();
        step.layer = place.layer;
        step.set_part(place.part);
        const std::lock_guard<std::timed_mutex> lock(calls_);
        check();
        const std::shared_ptr<Marks> marks = take_marks();
        marks->begun.record(stream_);
        // Watched before it is given: the first messages between two ranks make NCCL wait for the peer on the host.
        watchdog_->watch(step, {peers.begin(), peers.end()}, [marks] {
            if (!marks->given) return OperationStage::kRunning;
            if (marks->ended.done()) return OperationStage::kDone;
            return marks->begun.done() ? OperationStage::kRunning : OperationStage::kQueued;
        });
        check_call(ncclGroupStart(), "ncclGroupStart");
        for (const RecvOp& recv : recvs) {
            check_call(ncclRecv(recv.bytes.data(), recv.bytes.size(), ncclInt8, recv.from, comm_, stream_), "ncclRecv");
        }
        for (const SendOp& send : sends) {
            check_call(ncclSend(send.bytes.data(), send.bytes.size(), ncclInt8, send.to, comm_, stream_), "ncclSend");
        }
        check_call(ncclGroupEnd(), "ncclGroupEnd");
        marks->ended.record(stream_);
        marks->given = true;
    }

    void check() {
        if (const std::optional<std::string> failure = watchdog_->failure()) throw PeerLostError("NCCL: " + *failure);
    }

    [[nodiscard]] const Communicator& bootstrap() const { return bootstrap_; }

private:
    static constexpr std::chrono::milliseconds kGrace{5000};

    Watchdog::Hooks hooks() {
        Watchdog::Hooks hooks;
        hooks.on_start = [this] { FENWICK_CUDA_CHECK(cudaSetDevice(device_)); };
        hooks.fault = [this]() -> std::optional<std::string> {
            ncclResult_t state = ncclSuccess;
            const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
            if (asked != ncclSuccess) state = asked;
            if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
            return describe(state, comm_);
        };
        hooks.abort = [this] {
            // A rank that is inside a call cannot be waited for: the abort is what lets it out.
            const std::unique_lock<std::timed_mutex> lock(calls_, std::chrono::milliseconds(100));
            aborted_ = true;
            log_unless_ok(ncclCommAbort(comm_), "ncclCommAbort");
        };
        hooks.last_resort = [this](const std::string& reason) {
            end_process(fmt::format("rank {} of {}: NCCL: {}; ending the process", bootstrap_.rank(), bootstrap_.size(),
                                    reason),
                        end_code());
        };
        hooks.on_running = [this](const Step& step) { bootstrap_.status().set_step(step); };
        return hooks;
    }

    void check_call(ncclResult_t result, const char* call) {
        if (result == ncclSuccess) return;
        if (watchdog_) check();  // a call that the watchdog's abort let out
        throw UnavailableError(fmt::format("{}: {}", call, describe(result, comm_)));
    }

    static void log_unless_ok(ncclResult_t result, const char* call) noexcept {
        if (result == ncclSuccess) return;
        try {
            spdlog::error("{}: {}", call, ncclGetErrorString(result));
        } catch (...) {  // NOLINT(bugprone-empty-catch): nothing is left to report with
        }
    }

    /// Marks that nobody looks at any more, or new ones.
    std::shared_ptr<Marks> take_marks() {
        for (std::shared_ptr<Marks>& marks : marks_) {
            if (marks.use_count() > 1) continue;
            marks->given = false;
            return marks;
        }
        return marks_.emplace_back(std::make_shared<Marks>());
    }

    [[nodiscard]] double seconds() const { return std::chrono::duration<double>(options_.timeout).count(); }
    [[nodiscard]] ExitCode end_code() const {
        return bootstrap_.status().resumable() ? ExitCode::kInterrupted : ExitCode::kUnavailable;
    }

    Communicator& bootstrap_;
    NcclOptions options_;
    cudaStream_t stream_;
    int device_ = 0;
    const int exceptions_ = std::uncaught_exceptions();
    ncclComm_t comm_ = nullptr;
    std::timed_mutex calls_;  ///< held while this rank's thread is inside NCCL
    std::atomic<bool> aborted_{false};
    std::vector<std::shared_ptr<Marks>> marks_;
    std::optional<Watchdog> watchdog_;
};

NcclCommunicator::NcclCommunicator(Communicator& bootstrap, NcclOptions options)
    : world_(std::make_unique<World>(bootstrap, options, stream_.get())) {}

NcclCommunicator::~NcclCommunicator() = default;

int NcclCommunicator::rank() const {
    return world_->bootstrap().rank();
}

int NcclCommunicator::size() const {
    return world_->bootstrap().size();
}

void NcclCommunicator::exchange(const Place& place, std::span<const SendOp> sends, std::span<const RecvOp> recvs) {
    world_->exchange(place, sends, recvs);
}

void NcclCommunicator::check() {
    world_->check();
}

}  // namespace fenwick::cuda
