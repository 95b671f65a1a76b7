#include "coordinator/service/background.h"

#include <spdlog/spdlog.h>

#include <exception>
#include <utility>

namespace fenwick {

Background::Background(std::string name, std::chrono::milliseconds interval, std::function<bool()> step)
    : name_(std::move(name)), interval_(interval), step_(std::move(step)) {}

Background::~Background() {
    stop();
}

void Background::start() {
    thread_ = std::thread([this] { run(); });
}

void Background::notify() {
    {
        const std::lock_guard lock(mutex_);
        wanted_ = true;
    }
    changed_.notify_one();
}

void Background::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void Background::run() {
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, interval_, [&] { return wanted_ || stopping_; });
            if (stopping_) return;
            wanted_ = false;
        }
        bool more = false;
        try {
            more = step_();
        } catch (const std::exception& error) {
            spdlog::error("{}: {}; tried again in {} ms", name_, error.what(), interval_.count());
        }
        if (more) notify();
    }
}

}  // namespace fenwick
