// The port that gangs connect to: one connection a rank.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "coordinator/control/gang_desk.h"
#include "coordinator/service/config.h"

namespace fenwick {

class ControlServer {
public:
    /// Listens at config.control and serves, on threads of its own, until destruction. Throws UnavailableError when it
    /// cannot, ConfigError for TLS files.
    ControlServer(const ServeConfig& config, GangDesk& desk);
    /// Ends all connections. Work that has begun is done first.
    ~ControlServer();
    ControlServer(const ControlServer&) = delete;
    ControlServer& operator=(const ControlServer&) = delete;

    [[nodiscard]] std::uint16_t port() const { return port_; }

private:
    class Session;
    void close();
    boost::asio::awaitable<void> accept();
    boost::asio::awaitable<void> watch();

    boost::asio::io_context io_;
    GangDesk& desk_;
    std::optional<boost::asio::ssl::context> tls_;
    boost::asio::ip::tcp::acceptor acceptor_;
    boost::asio::steady_timer ticks_;
    /// Where the messages of leaders are worked on, which waits for disks.
    boost::asio::thread_pool pool_;
    std::set<std::shared_ptr<Session>> sessions_;
    std::uint16_t port_ = 0;
    bool closing_ = false;
    std::thread thread_;
};

}  // namespace fenwick
