#include "coordinator/front/wait_room.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
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

asio::awaitable<bool> WaitRoom::wait(std::string topic, std::uint64_t seen, Clock::time_point until) {
    if (closed_) co_return false;
    if (calls() != seen) co_return true;
    asio::steady_timer timer(io_, until);
    const auto entry = waiting_.emplace(std::move(topic), &timer);
    const auto [ended] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    waiting_.erase(entry);
    co_return ended == asio::error::operation_aborted && !closed_;
}

}  // namespace fenwick
