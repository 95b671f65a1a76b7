// The open connections of one port: how many there may be, when each is dropped, what their unfinished input holds.
// One thread (the one that runs the port's io_context) owns all of it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/front/front_metrics.h"
#include "coordinator/front/limits.h"
#include "coordinator/front/log_limiter.h"
#include "coordinator/front/stream.h"

namespace fenwick {

class Connections;

/// One client. Input gathers in a buffer that grows as bytes arrive, never by what a client says will come.
class Connection {
public:
    using Clock = std::chrono::steady_clock;

    Connection(Connections& table, std::unique_ptr<Stream> stream, std::string peer);
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection();

    [[nodiscard]] const std::string& peer() const { return peer_; }  ///< "address:port"
    [[nodiscard]] Stream& stream() { return *stream_; }
    [[nodiscard]] const Stream& stream() const { return *stream_; }
    [[nodiscard]] Connections& table() { return table_; }

    /// From now until `expect` is called again, the connection is dropped, for `reason`, once `time` has passed.
    void expect(Drop reason, std::chrono::milliseconds time);
    /// The server is at work: nothing is expected of the client.
    void expect_nothing() { deadline_ = Clock::time_point::max(); }
    /// A whole request came: from now on this connection is not the first to give way at the cap.
    void prove() { proven_ = true; }

    /// Waits for more input; false when the client has closed, or was dropped. The first byte of a request starts
    /// its deadline.
    [[nodiscard]] boost::asio::awaitable<bool> receive();
    /// What came and was not consumed yet. Valid until the next `receive` or `consume`.
    [[nodiscard]] std::span<const std::uint8_t> input() const { return {buffer_.data(), filled_}; }
    /// Takes the first `bytes` off the input: a request is done with. What follows begins the next one.
    void consume(std::size_t bytes);
    /// Sends all of `bytes` under the write deadline; false when the connection ended instead.
    [[nodiscard]] boost::asio::awaitable<bool> send(std::span<const std::uint8_t> bytes);

    /// Ends it for `reason`: counted and logged with `detail`.
    void drop(Drop reason, const std::string& detail);

private:
    friend class Connections;
    [[nodiscard]] bool grow();
    /// Takes the difference between holding `now` and holding `then` bytes from the budget of all connections; drops
    /// this one and returns false when there is not so much left.
    [[nodiscard]] bool charge(std::size_t now, std::size_t then);
    void give_back(std::size_t held);

    Connections& table_;
    std::unique_ptr<Stream> stream_;
    std::string peer_;
    std::uint64_t number_;
    std::vector<std::uint8_t> buffer_;
    std::size_t filled_ = 0;
    Clock::time_point deadline_ = Clock::time_point::max();
    Drop deadline_reason_ = Drop::kIdle;
    bool in_request_ = false;
    bool proven_ = false;
    bool ended_ = false;
};

class Connections {
public:
    Connections(boost::asio::io_context& io, const FrontLimits& limits, PortMetrics& metrics, std::string port);

    /// Whether a newcomer may be served; at the cap this may end another connection.
    [[nodiscard]] bool make_room();
    /// Ends all, and stops watching the deadlines.
    void close_all();
    [[nodiscard]] std::size_t size() const { return open_.size(); }
    [[nodiscard]] const FrontLimits& limits() const { return limits_; }
    [[nodiscard]] PortMetrics& metrics() { return metrics_; }
    [[nodiscard]] LogLimiter& log() { return log_; }

private:
    friend class Connection;
    [[nodiscard]] boost::asio::awaitable<void> watch_deadlines();

    FrontLimits limits_;
    PortMetrics& metrics_;
    std::string port_;
    LogLimiter log_{20};
    std::map<std::uint64_t, Connection*> open_;  // by age
    std::uint64_t next_number_ = 0;
    std::int64_t buffered_ = 0;
    bool closing_ = false;
    boost::asio::steady_timer watch_;
};

}  // namespace fenwick
