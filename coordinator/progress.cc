#include "coordinator/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fenwick {
namespace {

constexpr std::chrono::seconds kLineInterval{10};
constexpr int kBarCells = 24;
constexpr std::size_t kIdCharacters = 24;

}  // namespace

std::string duration_text(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
    if (whole < 60) return fmt::format("{} s", whole);
    if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
    return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

Progress::Mode Progress::choose(bool silent) {
    if (silent) return Mode::kSilent;
    return ::isatty(STDERR_FILENO) == 1 ? Mode::kBar : Mode::kLines;
}

void Progress::begin(std::int64_t index, const std::string& custom_id, std::int64_t tokens, std::int64_t position) {
    index_ = index;
    custom_id_ = custom_id.size() <= kIdCharacters ? custom_id : custom_id.substr(0, kIdCharacters - 3) + "...";
    tokens_ = tokens;
    first_position_ = position;
    start_ = Clock::now();
    if (mode_ == Mode::kBar) advance(position);
}

std::string Progress::text(std::int64_t position, Clock::time_point now) const {
    const double done = tokens_ > 0 ? static_cast<double>(position) / static_cast<double>(tokens_) : 1.0;
    std::string line = fmt::format("document {} of {} ({}): {:5.1f} %, {} of {} tokens", index_ + 1, documents_,
                                   custom_id_, 100 * done, position, tokens_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (position > first_position_ && seconds > 0) {
        const double rate = static_cast<double>(position - first_position_) / seconds;
        line += fmt::format(", {:.0f} tokens/s, {} left", rate,
                            duration_text(static_cast<double>(tokens_ - position) / rate));
    }
    return line;
}

void Progress::advance(std::int64_t position) {
    const Clock::time_point now = Clock::now();
    if (mode_ == Mode::kLines && now - last_line_ >= kLineInterval) {
        last_line_ = now;
        fmt::print(stderr, "{}\n", text(position, now));
    } else if (mode_ == Mode::kBar) {
        const auto cells = static_cast<std::size_t>(tokens_ > 0 ? position * kBarCells / tokens_ : kBarCells);
        fmt::print(stderr, "\r\x1b[K[{}{}] {}", std::string(cells, '#'), std::string(kBarCells - cells, '.'),
                   text(position, now));
        std::fflush(stderr);
        bar_shown_ = true;
    }
}

void Progress::end() {
    if (!bar_shown_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    bar_shown_ = false;
}

}  // namespace fenwick
