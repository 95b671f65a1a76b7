// A rank's connection to its coordinator, kept by a thread of its own: heartbeats go out and orders come in whatever
// the rank computes. A connection that is lost is made again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "coordinator/idl/fenwick_types.h"
#include "core/errors.h"

namespace fenwick {

struct ControlOptions {
    std::string host;
    std::string port;
    std::filesystem::path tls_authority;    ///< PEM: the coordinator's certificate must come from it; empty: no TLS
    std::filesystem::path tls_certificate;  ///< of this gang, where the coordinator asks for one; with its key
    std::filesystem::path tls_key;
    double reconnect_seconds = 600;  ///< without a coordinator for so long the rank ends
    idl::Hello hello;
};

/// The connection under which something was begun is gone, and with it every lease.
class ConnectionLost : public Error {
public:
    explicit ConnectionLost(const std::string& message) : Error(ExitCode::kUnavailable, message) {}
};

class ControlClient {
public:
    /// `stop` is set when this rank must end: the coordinator gave the gang up, or has been away for too long. Throws
    /// ConfigError for TLS files.
    ControlClient(ControlOptions options, std::atomic<bool>* stop);
    ~ControlClient();
    ControlClient(const ControlClient&) = delete;
    ControlClient& operator=(const ControlClient&) = delete;

    /// Returns when the coordinator has welcomed this rank. Throws what it was refused with (ServiceFault), or
    /// UnavailableError when there is no coordinator in time, InterruptedError on a signal.
    void connect();
    [[nodiscard]] idl::Welcome welcome() const;

    /// What the next heartbeats say.
    void set_step(const std::string& step);

    /// The connection of now; 0: none. A lease lives as long as its session.
    [[nodiscard]] std::uint64_t session() const { return session_.load(); }
    /// Throws ConnectionLost when `session` is over, UnavailableError after Stop.
    void send(std::uint64_t session, const idl::ControlMessage& message);
    /// The next answer, if one comes in time; Revoked, Recall, Drain and Stop are told by the calls below. Throws as
    /// `send`.
    [[nodiscard]] std::optional<idl::ControlMessage> receive(std::uint64_t session, std::chrono::milliseconds within);

    [[nodiscard]] bool is_revoked(const idl::LeaseKey& lease) const;
    [[nodiscard]] bool is_recalled(const idl::LeaseKey& lease) const;
    [[nodiscard]] bool drain_requested() const { return drain_.load(); }
    [[nodiscard]] std::string stop_reason() const;
    /// Throws UnavailableError with the reason once this rank must end.
    void check_stop() const;

    /// The last word: returns when it is on its way, or soon. Nothing may follow.
    void bye(const std::string& reason);

private:
    class Loop;
    friend class Loop;
    void stop(const std::string& reason, std::optional<idl::Refused> refused = std::nullopt);

    ControlOptions options_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<std::uint64_t> session_{0};
    std::atomic<bool> drain_{false};
    std::atomic<bool>& stop_;
    std::string stop_reason_;
    std::optional<idl::Refused> refused_;
    std::optional<idl::Welcome> welcome_;
    idl::LeaseKey revoked_;
    idl::LeaseKey recalled_;
    std::deque<idl::ControlMessage> inbox_;
    std::string step_ = "start";
    std::chrono::steady_clock::time_point step_since_ = std::chrono::steady_clock::now();
    std::unique_ptr<Loop> loop_;  ///< last: its thread uses the rest
};

}  // namespace fenwick
