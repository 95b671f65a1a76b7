#include "coordinator/front/connections.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <utility>

namespace fenwick {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kFirstBuffer = 4096;
/// What each connection may hold whatever the others do, so that small calls go on under attack.
constexpr std::size_t kFreeBuffer = 64 << 10;
constexpr auto kWatchInterval = std::chrono::milliseconds(100);

std::int64_t charged(std::size_t held) {
    return static_cast<std::int64_t>(held > kFreeBuffer ? held - kFreeBuffer : 0);
}

}  // namespace

Connection::Connection(Connections& table, std::unique_ptr<Stream> stream, std::string peer)
    : table_(table), stream_(std::move(stream)), peer_(std::move(peer)), number_(table.next_number_++) {
    table_.open_.emplace(number_, this);
    table_.metrics_.opened();
}

Connection::~Connection() {
    stream_->close();
    give_back(buffer_.size());
    table_.open_.erase(number_);
    table_.metrics_.closed();
}

void Connection::expect(Drop reason, std::chrono::milliseconds time) {
    deadline_ = Clock::now() + time;
    deadline_reason_ = reason;
}

bool Connection::charge(std::size_t now, std::size_t then) {
    const std::int64_t more = charged(then) - charged(now);
    if (more > 0 && table_.buffered_ + more > table_.limits_.buffered_bytes) {
        drop(Drop::kBuffered, fmt::format("requests and replies under way would hold more than {} bytes",
                                          table_.limits_.buffered_bytes));
        return false;
    }
    table_.buffered_ += more;
    return true;
}

void Connection::give_back(std::size_t held) {
    table_.buffered_ -= charged(held);
}

bool Connection::grow() {
    if (filled_ < buffer_.size()) return true;
    const std::size_t size = std::max(kFirstBuffer, 2 * buffer_.size());
    if (!charge(buffer_.size(), size)) return false;
    buffer_.resize(size);
    return true;
}

asio::awaitable<bool> Connection::receive() {
    if (ended_ || !grow()) co_return false;
    if (!in_request_ && filled_ == 0) expect(Drop::kIdle, table_.limits_.idle_time);
    std::size_t received = 0;
    try {
        received = co_await stream_->read_some(asio::buffer(buffer_.data() + filled_, buffer_.size() - filled_));
    } catch (const boost::system::system_error&) {
        co_return false;  // closed by the client, reset, or dropped: there is nobody left to tell
    }
    if (!in_request_) {
        in_request_ = true;
        expect(Drop::kFrameTime, table_.limits_.frame_time);
    }
    filled_ += received;
    table_.metrics_.received(received);
    co_return !ended_;
}

void Connection::consume(std::size_t bytes) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(bytes),
              buffer_.begin() + static_cast<std::ptrdiff_t>(filled_), buffer_.begin());
    filled_ -= bytes;
    in_request_ = filled_ > 0;
    if (in_request_) expect(Drop::kFrameTime, table_.limits_.frame_time);
    const std::size_t keep = std::max(kFirstBuffer, filled_);
    if (buffer_.size() > kFreeBuffer && keep < buffer_.size()) {
        table_.buffered_ -= charged(buffer_.size()) - charged(keep);
        buffer_.resize(keep);
        buffer_.shrink_to_fit();
    }
}

asio::awaitable<bool> Connection::send(std::span<const std::uint8_t> bytes) {
    if (ended_ || !charge(0, bytes.size())) co_return false;
    expect(Drop::kWriteTime, table_.limits_.write_time);
    bool whole = true;
    try {
        co_await stream_->write(asio::buffer(bytes.data(), bytes.size()));
        table_.metrics_.sent(bytes.size());
    } catch (const boost::system::system_error&) {
        whole = false;
    }
    give_back(bytes.size());
    co_return whole && !ended_;
}

void Connection::drop(Drop reason, const std::string& detail) {
    if (ended_) return;
    ended_ = true;
    expect_nothing();
    table_.metrics_.dropped(reason);
    table_.log_.warn("{} port: {} dropped ({}): {}", table_.port_, peer_, to_text(reason), detail);
    stream_->close();
}

Connections::Connections(asio::io_context& io, const FrontLimits& limits, PortMetrics& metrics, std::string port)
    : limits_(limits), metrics_(metrics), port_(std::move(port)), watch_(io) {
    asio::co_spawn(io, watch_deadlines(), asio::detached);
}

bool Connections::make_room() {
    if (closing_) return false;
    if (std::ssize(open_) < limits_.connections) return true;
    const auto unproven = std::find_if(
        open_.begin(), open_.end(), [](const auto& entry) { return !entry.second->proven_ && !entry.second->ended_; });
    if (unproven == open_.end()) {
        metrics_.dropped(Drop::kCap);
        log_.warn("{} port: a new connection was refused: {} are open, the cap", port_, open_.size());
        return false;
    }
    unproven->second->drop(Drop::kCap, "it gave way to a new connection at the cap");
    return true;
}

void Connections::close_all() {
    closing_ = true;
    watch_.cancel();
    for (const auto& [number, connection] : open_) {
        connection->ended_ = true;
        connection->stream_->close();
    }
}

asio::awaitable<void> Connections::watch_deadlines() {
    while (!closing_) {
        watch_.expires_after(kWatchInterval);
        co_await watch_.async_wait(asio::as_tuple(asio::use_awaitable));
        const auto now = Connection::Clock::now();
        for (const auto& [number, connection] : open_) {
            if (connection->deadline_ > now) continue;
            const Drop reason = connection->deadline_reason_;
            connection->drop(reason, reason == Drop::kIdle ? "no request for too long"
                                                           : "too slow: the deadline is for the whole of it");
        }
    }
}

}  // namespace fenwick
