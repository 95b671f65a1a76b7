// How far a run has come, for people: a bar on a terminal, a line every ten seconds elsewhere. All on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fenwick {

class Progress {
public:
    enum class Mode { kSilent, kLines, kBar };
    /// kBar when stderr is a terminal, else kLines; kSilent when `silent`.
    [[nodiscard]] static Mode choose(bool silent);

    explicit Progress(Mode mode, std::int64_t documents = 0) : mode_(mode), documents_(documents) {}
    ~Progress() { end(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Document `index` (from 0) of `tokens` tokens starts, or continues, at `position`.
    void begin(std::int64_t index, const std::string& custom_id, std::int64_t tokens, std::int64_t position);
    /// Anything else with a name, which is at `position` of `total`; `unit` is what it counts: "steps".
    void begin_work(const std::string& name, std::int64_t total, const std::string& unit, std::int64_t position);
    void advance(std::int64_t position);
    /// Takes the bar away, so that other text can follow.
    void end();

private:
    using Clock = std::chrono::steady_clock;
    [[nodiscard]] std::string text(std::int64_t position, Clock::time_point now) const;

    Mode mode_;
    std::int64_t documents_;
    std::string name_;
    std::string unit_;
    std::int64_t total_ = 0;
    std::int64_t first_position_ = 0;
    Clock::time_point start_;
    Clock::time_point last_line_ = Clock::now();
    bool bar_shown_ = false;
};

/// "45 s", "3:20 min", "2:05 h".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace fenwick
