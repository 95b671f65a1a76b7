#include "coordinator/front/wait_room.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace fenwick {

namespace asio = boost::asio;

void WaitRoom::call(const std::string& topic) {
    ++calls_;
    asio::post(io_, [this, topic] {
        const auto [first, last] = waiting_.equal_range(topic);
        for (auto entry = first; entry != last; ++entry) entry->second->cancel();
    });
}

void WaitRoom::close() {
    closed_ = true;
    for (const auto& [topic, timer] : waiting_) timer->cancel();
}

asio::awaitable<void> WaitRoom::wait(std::string topic, std::uint64_t seen, Clock::time_point until) {
    if (closed_ || calls() != seen) co_return;
    asio::steady_timer timer(io_, until);
    const auto entry = waiting_.emplace(std::move(topic), &timer);
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    waiting_.erase(entry);
}

}  // namespace fenwick
