// One deadline over operations that another thread has begun and that may never end: the collective library's.
//
// An operation counts from when it is seen to run (what is only queued behind work waits for that work). When one runs
// for longer than the deadline, or the library reports a fault, the watchdog remembers why, calls `abort`, and gives
// the owner a grace to notice. When abort hangs or the owner stays stuck, it calls `last_resort`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/world_status.h"

namespace fenwick {

enum class OperationStage { kQueued, kRunning, kDone };

class Watchdog {
public:
    struct Hooks {
        std::function<void()> on_start;                       ///< in the watchdog's thread, first; may be null
        std::function<std::optional<std::string>()> fault;    ///< what the library reports, if anything
        std::function<void()> abort;                          ///< makes all operations end; may hang
        std::function<void(const std::string&)> last_resort;  ///< does not return in production
        std::function<void(const Step&)> on_running;          ///< an operation was seen to run; may be null
    };
    struct Times {
        std::chrono::milliseconds deadline{30000};
        std::chrono::milliseconds period{20};
        std::chrono::milliseconds grace{5000};
    };

    Watchdog(Times times, Hooks hooks);
    /// Forgets what is outstanding.
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    /// Watches an operation from here on. `stage` is asked from the watchdog's thread; `peers`: ranks it may wait for.
    void watch(const Step& step, std::vector<int> peers, std::function<OperationStage()> stage);

    /// Why operations were aborted, once they were. Who asks is taken to have noticed: no last resort any more.
    [[nodiscard]] std::optional<std::string> failure();
    /// The same without that effect; for any thread.
    [[nodiscard]] bool failed() const;

private:
    using Clock = std::chrono::steady_clock;
    struct Operation {
        Step step;
        std::vector<int> peers;
        std::function<OperationStage()> stage;
        std::optional<Clock::time_point> running_since;
    };

    void run();
    [[nodiscard]] std::optional<std::string> look(Clock::time_point now);
    void fail(const std::string& reason);

    Times times_;
    Hooks hooks_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Operation>> operations_;
    std::optional<std::string> failure_;
    bool noticed_ = false;
    bool aborted_ = false;  // hooks_.abort has returned
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace fenwick
