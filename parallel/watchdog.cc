#include "parallel/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace fenwick {

Watchdog::Watchdog(Times times, Hooks hooks) : times_(times), hooks_(std::move(hooks)) {
    thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Watchdog::watch(const Step& step, std::vector<int> peers, std::function<OperationStage()> stage) {
    auto operation = std::make_shared<Operation>(Operation{step, std::move(peers), std::move(stage), std::nullopt});
    const std::lock_guard<std::mutex> lock(mutex_);
    operations_.push_back(std::move(operation));
}

std::optional<std::string> Watchdog::failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) {
        noticed_ = true;
        changed_.notify_all();
    }
    return failure_;
}

bool Watchdog::failed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_.has_value();
}

/// Operations end in the order in which they were begun: only the oldest can be the one that runs.
std::optional<std::string> Watchdog::look(Clock::time_point now) {
    for (;;) {
        std::shared_ptr<Operation> oldest;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (operations_.empty()) break;
            oldest = operations_.front();
        }
        const OperationStage stage = oldest->stage();
        if (stage == OperationStage::kDone) {
            const std::lock_guard<std::mutex> lock(mutex_);
            operations_.pop_front();
            continue;
        }
        if (stage == OperationStage::kQueued) break;
        if (!oldest->running_since) {
            oldest->running_since = now;
            if (hooks_.on_running) hooks_.on_running(oldest->step);
        }
        if (now - *oldest->running_since > times_.deadline) {
            return fmt::format("rank(s) {} did not answer within {:.1f} s in {}", fmt::join(oldest->peers, ", "),
                               std::chrono::duration<double>(times_.deadline).count(), step_text(oldest->step));
        }
        break;
    }
    if (std::optional<std::string> fault = hooks_.fault()) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (operations_.empty()) return fault;
        const Operation& oldest = *operations_.front();
        return fmt::format("{}, in {} with rank(s) {}", *fault, step_text(oldest.step), fmt::join(oldest.peers, ", "));
    }
    return std::nullopt;
}

void Watchdog::run() {
    try {
        if (hooks_.on_start) hooks_.on_start();
        std::unique_lock<std::mutex> lock(mutex_);
        while (!changed_.wait_for(lock, times_.period, [&] { return stopping_; })) {
            lock.unlock();
            if (const std::optional<std::string> reason = look(Clock::now())) return fail(*reason);
            lock.lock();
        }
    } catch (const std::exception& error) {
        fail(error.what());
    }
}

void Watchdog::fail(const std::string& reason) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = reason;
    }
    // Apart, because it may hang; then it is left behind, and `last_resort` ends the process.
    std::thread aborting([this] {
        hooks_.abort();
        const std::lock_guard<std::mutex> lock(mutex_);
        aborted_ = true;
        changed_.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex_);
    const bool in_time = changed_.wait_for(lock, times_.grace, [&] { return aborted_ && (noticed_ || stopping_); });
    if (!in_time) {
        const std::string text = fmt::format(
            "{}; {} within {:.1f} s", reason,
            aborted_ ? "the rank is stuck in a call and did not notice" : "ending the operations did not succeed",
            std::chrono::duration<double>(times_.grace).count());
        lock.unlock();
        hooks_.last_resort(text);
        lock.lock();
        changed_.wait(lock, [&] { return aborted_; });  // where last_resort returns: the hook is no longer in use
    }
    lock.unlock();
    aborting.join();
}

}  // namespace fenwick
