// Where requests wait for something to change without holding a thread: parked under a topic (a job's id) until
// somebody calls out that topic, or their time is up.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace fenwick {

class WaitRoom {
public:
    using Clock = std::chrono::steady_clock;

    explicit WaitRoom(boost::asio::io_context& io) : io_(io) {}
    WaitRoom(const WaitRoom&) = delete;
    WaitRoom& operator=(const WaitRoom&) = delete;

    /// Wakes those who wait for `topic`. From any thread; `io` must not have been destroyed.
    void call(const std::string& topic);
    /// Wakes all; from now on nobody waits. On the thread of `io`.
    void close();
    /// Counts calls of every topic. Read it before looking at the topic's state, and give it to `wait`: a call that
    /// comes between the two is then not missed.
    [[nodiscard]] std::uint64_t calls() const { return calls_.load(); }
    /// Returns true when `topic` is called, or at once if there was any call since `seen`; false at `until`, and when
    /// the room is closed. On the thread of `io`.
    [[nodiscard]] boost::asio::awaitable<bool> wait(std::string topic, std::uint64_t seen, Clock::time_point until);
    [[nodiscard]] bool closed() const { return closed_; }

private:
    boost::asio::io_context& io_;
    std::atomic<std::uint64_t> calls_ = 0;
    std::multimap<std::string, boost::asio::steady_timer*> waiting_;
    bool closed_ = false;
};

}  // namespace fenwick
