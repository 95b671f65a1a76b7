// What a rank is doing, so that messages about a rank that is lost can say where.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace fenwick {

enum class Activity : std::int32_t {
    kStarting,  ///< until the first order
    kWaiting,   ///< for an order of rank 0; on rank 0: between passes
    kPass,
    kRestoring,
    kEnding,
    kTraining,
    kSaving,
};

/// Small and without pointers: it travels between ranks.
struct Step {
    Activity activity = Activity::kStarting;
    std::int32_t layer = -1;       ///< from 0; -1: none yet
    std::int64_t first_token = 0;  ///< of the pass, in its document; kTraining, kSaving: the number of the step
    std::array<char, 32> part{};   ///< within the layer: "halo", "exchange, round 0"; may be empty

    /// Cut to what fits.
    void set_part(const std::string& text);
    friend bool operator==(const Step&, const Step&) = default;
};

/// "layer 3 of the pass at token 131072, exchange, round 0", "waiting for orders", ...
[[nodiscard]] std::string step_text(const Step& step);

/// One rank's own account, written by whichever thread knows and read by others.
class WorldStatus {
public:
    void set_step(const Step& step);
    [[nodiscard]] Step step() const;
    /// Moves on within the pass at hand.
    void set_place(std::int32_t layer, const std::string& part);

    /// Whether what this job has finished so far outlives it: --resume would find it. Told by rank 0; where this rank
    /// can look for itself, `look` (from any thread) finds also what rank 0 had no time to tell.
    void set_resumable(bool resumable);
    void set_resumable_look(std::function<bool()> look);
    [[nodiscard]] bool resumable() const;

private:
    mutable std::mutex mutex_;
    Step step_;
    bool resumable_ = false;
    std::function<bool()> look_;
};

}  // namespace fenwick
