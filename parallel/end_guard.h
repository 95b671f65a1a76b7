// A deadline for steps in which a process can wait for others for ever and nothing else watches over it: the start and
// the end of MPI.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/errors.h"

namespace fenwick {

/// When a deadline is near enough to act: some of `timeout` is left for ending the processes.
[[nodiscard]] constexpr std::chrono::milliseconds time_to_notice(std::chrono::milliseconds timeout) {
    return timeout - std::min<std::chrono::milliseconds>(timeout / 5, std::chrono::milliseconds(2000));
}

/// While it lives, a thread counts. When `timeout` passes, it calls `on_timeout` (in production `end_process`).
class EndGuard {
public:
    EndGuard(std::chrono::milliseconds timeout, std::function<void()> on_timeout);
    ~EndGuard();
    EndGuard(const EndGuard&) = delete;
    EndGuard& operator=(const EndGuard&) = delete;

private:
    std::mutex mutex_;
    std::condition_variable ended_;
    bool over_ = false;
    std::thread thread_;
};

/// Logs `message` and ends this process at once, without destructors: the last resort where a library hangs. The
/// launcher sees the code and ends the other processes.
[[noreturn]] void end_process(const std::string& message, ExitCode code) noexcept;

/// What can be seen on this host of the processes that a launcher started together with this one: "rank 2 (process
/// 4711) is stopped", "rank 3 has not started or is gone". Empty when nothing strikes. Linux: reads /proc.
[[nodiscard]] std::string missing_ranks_on_host();

}  // namespace fenwick
