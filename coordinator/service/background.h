// A thread that does its step when it is told to, and now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fenwick {

class Background {
public:
    /// `step`: returns true when it wants to be called again at once. What it throws is logged, and it is called again
    /// after `interval`.
    Background(std::string name, std::chrono::milliseconds interval, std::function<bool()> step);
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    void start();
    void notify();
    /// Waits for the step that runs.
    void stop();

private:
    void run();

    std::string name_;
    std::chrono::milliseconds interval_;
    std::function<bool()> step_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool wanted_ = true;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace fenwick
