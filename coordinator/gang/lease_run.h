// Rank 0's work on one lease: tokens from the coordinator through the gang, losses and save points back. What
// document_run.h is in embedded mode, with the files elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/gang/control_client.h"
#include "coordinator/gang_host.h"

namespace fenwick {

struct LeaseSettings {
    std::int64_t pass_tokens = 0;        ///< kUnlimitedPass, or a multiple of kBlockTokens
    std::filesystem::path state_folder;  ///< where states stay, for all gangs to see; empty: they travel
    std::filesystem::path work_folder;   ///< of this process, for states on their way
};

/// What the gang still holds of the last lease: the next stretch of the same document needs no state.
struct Resident {
    std::int64_t document = -1;
    std::int64_t position = 0;
};

class LeaseRun {
public:
    LeaseRun(LedGang& gang, ControlClient& client, std::uint64_t session, const idl::Grant& grant,
             const LeaseSettings& settings);

    /// Ends with the lease: done, given back or revoked. Returns what the gang then holds. Throws ConnectionLost,
    /// UnavailableError after Stop, and what the gang throws.
    [[nodiscard]] Resident run(const Resident& before);

private:
    using Clock = std::chrono::steady_clock;

    /// False: the state is not to be had, and the lease was given back.
    [[nodiscard]] bool restore(const Resident& before);
    [[nodiscard]] std::filesystem::path fetch_state();
    [[nodiscard]] std::int64_t pass_count() const;
    [[nodiscard]] bool at_end() const;
    void ask_for_tokens();
    [[nodiscard]] bool receive_tokens();
    void run_pass();
    void save();
    void give_back(idl::ReturnReason::type reason, const std::string& message);
    /// The next message under this lease; false once it is revoked.
    [[nodiscard]] bool receive(idl::ControlMessage& message);
    [[nodiscard]] std::string reason_to_stop() const;
    void say_step(const std::string& step);

    LedGang& gang_;
    ControlClient& client_;
    const std::uint64_t session_;
    const idl::Grant grant_;
    const LeaseSettings& settings_;
    const double save_seconds_;
    std::int64_t position_ = 0;
    std::int64_t saved_position_ = 0;
    std::string state_file_;
    Clock::time_point last_save_ = Clock::now();
    std::vector<std::int32_t> ids_;
    std::int64_t asked_ = 0;  ///< tokens of the next pass that were asked for and did not come yet
    std::vector<float> losses_;
    std::deque<idl::ControlMessage> early_;  ///< came while another answer was waited for
};

}  // namespace fenwick
