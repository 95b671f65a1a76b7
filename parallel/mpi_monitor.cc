#include "parallel/mpi_monitor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "core/errors.h"
#include "parallel/end_guard.h"
#include "parallel/mpi_calls.h"

namespace fenwick {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kTag = 2;
constexpr milliseconds kLook{100};  ///< between beats, and between looks at the neighbour

struct Beat {
    Step step;
    std::int64_t pid = 0;
    std::array<char, 64> host{};
    bool farewell = false;  ///< this rank is done and sends no more
};

std::array<char, 64> host_name() {
    std::array<char, 64> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) name.fill('\0');
    return name;
}

}  // namespace

class MpiMonitor::Ring {
public:
    Ring(MpiCommunicator& comm, milliseconds timeout)
        : comm_(comm),
          silence_(time_to_notice(timeout)),
          left_((comm.rank() + comm.size() - 1) % comm.size()),
          right_((comm.rank() + 1) % comm.size()),
          host_(host_name()) {
        mpi::check(MPI_Comm_dup(MPI_COMM_WORLD, &handle_), "MPI_Comm_dup");
        mpi::check(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        thread_ = std::thread([this] { watch(); });
    }

    /// `in_order`: after all work; else an exception passes and the peers may be anywhere.
    void stop(bool in_order) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            (in_order ? leaving_ : abandoned_) = true;
        }
        changed_.notify_all();
        thread_.join();
        if (in_order) mpi::log_unless_ok(MPI_Comm_free(&handle_), "MPI_Comm_free");
    }

private:
    void watch() {
        try {
            last_heard_ = Clock::now();
            Clock::time_point last_look = last_heard_;
            for (;;) {
                const Clock::time_point now = Clock::now();
                // A process that was stopped itself, or starved, has not listened and cannot judge.
                if (now - last_look > 10 * kLook) last_heard_ = now;
                last_look = now;
                std::unique_lock<std::mutex> lock(mutex_);
                if (abandoned_) break;
                const bool leaving = leaving_;
                lock.unlock();
                listen();
                send(leaving);
                if (said_farewell_ && heard_farewell_ && sent()) return;
                judge(now);
                lock.lock();
                changed_.wait_for(lock, leaving ? milliseconds(1) : kLook,
                                  [&] { return abandoned_ || (leaving_ && !leaving); });
            }
            forget();
        } catch (const std::exception& error) {
            lose(fmt::format("rank {} can no longer watch over rank {}: {}", comm_.rank(), left_, error.what()));
        }
    }

    /// Takes in what the left neighbour sent.
    void listen() {
        const std::lock_guard<std::timed_mutex> lock(mpi::call_mutex());
        while (!heard_farewell_) {
            if (receive_ == MPI_REQUEST_NULL) {
                mpi::check(MPI_Irecv(&incoming_, sizeof(Beat), MPI_BYTE, left_, kTag, handle_, &receive_), "MPI_Irecv");
            }
            int done = 0;
            mpi::check(MPI_Test(&receive_, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done == 0) return;
            heard_ = incoming_;
            heard_once_ = true;
            last_heard_ = Clock::now();
            heard_farewell_ = incoming_.farewell;
        }
    }

    bool sent() {
        const std::lock_guard<std::timed_mutex> lock(mpi::call_mutex());
        int done = 1;
        if (send_ != MPI_REQUEST_NULL) mpi::check(MPI_Test(&send_, &done, MPI_STATUS_IGNORE), "MPI_Test");
        return done != 0;
    }

    /// Nothing while the last beat has not left.
    void send(bool farewell) {
        if (said_farewell_ || !sent()) return;
        outgoing_ = {comm_.status().step(), getpid(), host_, farewell};
        const std::lock_guard<std::timed_mutex> lock(mpi::call_mutex());
        mpi::check(MPI_Isend(&outgoing_, sizeof(Beat), MPI_BYTE, right_, kTag, handle_, &send_), "MPI_Isend");
        said_farewell_ = farewell;
    }

    void judge(Clock::time_point now) {
        if (heard_farewell_) return;
        const std::string who = heard_once_
                                    ? fmt::format("rank {} (process {} on {})", left_, heard_.pid, heard_.host.data())
                                    : fmt::format("rank {}", left_);
        const std::string where = heard_once_ ? "; its last word was from " + step_text(heard_.step) : std::string();
        // Only a process of this host can be asked for.
        if (heard_once_ && heard_.host == host_ && kill(static_cast<pid_t>(heard_.pid), 0) != 0 && errno == ESRCH) {
            lose(fmt::format("{} is gone{}", who, where));
        }
        if (now - last_heard_ > silence_) {
            lose(fmt::format("{} has been silent for {:.1f} s{}", who,
                             std::chrono::duration<double>(now - last_heard_).count(), where));
        }
    }

    /// Ends this process too.
    void lose(const std::string& reason) noexcept {
        comm_.abort(reason, comm_.status().resumable() ? ExitCode::kInterrupted : ExitCode::kUnavailable);
    }

    void forget() {
        const std::lock_guard<std::timed_mutex> lock(mpi::call_mutex());
        if (receive_ != MPI_REQUEST_NULL) mpi::log_unless_ok(MPI_Cancel(&receive_), "MPI_Cancel");
        for (MPI_Request* request : {&receive_, &send_}) {
            if (*request != MPI_REQUEST_NULL) mpi::log_unless_ok(MPI_Request_free(request), "MPI_Request_free");
        }
    }

    MpiCommunicator& comm_;
    MPI_Comm handle_ = MPI_COMM_NULL;
    const milliseconds silence_;
    const int left_;
    const int right_;
    const std::array<char, 64> host_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool leaving_ = false;
    bool abandoned_ = false;

    // The thread's own.
    MPI_Request receive_ = MPI_REQUEST_NULL;
    MPI_Request send_ = MPI_REQUEST_NULL;
    Beat incoming_;
    Beat outgoing_;
    Beat heard_;
    bool heard_once_ = false;
    bool said_farewell_ = false;
    bool heard_farewell_ = false;
    Clock::time_point last_heard_;
    std::thread thread_;
};

MpiMonitor::MpiMonitor(MpiCommunicator& comm, milliseconds timeout) : exceptions_(std::uncaught_exceptions()) {
    if (comm.size() > 1) ring_ = std::make_unique<Ring>(comm, timeout);
}

MpiMonitor::~MpiMonitor() {
    if (ring_ != nullptr) ring_->stop(std::uncaught_exceptions() <= exceptions_);
}

}  // namespace fenwick
