// Hostile traffic must not fill the log: at most so many lines a second, and a count of those left out.
#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace fenwick {

/// For one thread.
class LogLimiter {
public:
    explicit LogLimiter(int lines_per_second) : limit_(lines_per_second) {}

    template <class... Args>
    void warn(spdlog::format_string_t<Args...> format, Args&&... args) {
        const auto now = std::chrono::steady_clock::now();
        if (now - second_ >= std::chrono::seconds(1)) {
            if (left_out_ > 0) spdlog::warn("{} more such lines were left out of the log", left_out_);
            second_ = now;
            lines_ = left_out_ = 0;
        }
        if (lines_ >= limit_) {
            ++left_out_;
            return;
        }
        ++lines_;
        spdlog::warn(format, std::forward<Args>(args)...);
    }

private:
    int limit_;
    std::chrono::steady_clock::time_point second_;
    std::int64_t lines_ = 0;
    std::int64_t left_out_ = 0;
};

}  // namespace fenwick
