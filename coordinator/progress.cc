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
    const std::string id =
        custom_id.size() <= kIdCharacters ? custom_id : custom_id.substr(0, kIdCharacters - 3) + "...";
    begin_work(fmt::format("document {} of {} ({})", index + 1, documents_, id), tokens, "tokens", position);
}

void Progress::begin_work(const std::string& name, std::int64_t total, const std::string& unit, std::int64_t position) {
    name_ = name;
    unit_ = unit;
    total_ = total;
    first_position_ = position;
    start_ = Clock::now();
    if (mode_ == Mode::kBar) advance(position);
}

std::string Progress::text(std::int64_t position, Clock::time_point now) const {
    const double done = total_ > 0 ? static_cast<double>(position) / static_cast<double>(total_) : 1.0;
    std::string line = fmt::format("{}: {:5.1f} %, {} of {} {}", name_, 100 * done, position, total_, unit_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (position > first_position_ && seconds > 0) {
        const double rate = static_cast<double>(position - first_position_) / seconds;
        line += fmt::format(", {:.{}f} {}/s, {} left", rate, rate < 100 ? 1 : 0, unit_,
                            duration_text(static_cast<double>(total_ - position) / rate));
    }
    return line;
}

void Progress::advance(std::int64_t position) {
    const Clock::time_point now = Clock::now();
    if (mode_ == Mode::kLines && now - last_line_ >= kLineInterval) {
        last_line_ = now;
        fmt::print(stderr, "{}\n", text(position, now));
    } else if (mode_ == Mode::kBar) {
        const auto cells = static_cast<std::size_t>(total_ > 0 ? position * kBarCells / total_ : kBarCells);
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
