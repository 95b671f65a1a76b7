// Accepts connections of one port, and keeps accepting: through a lack of descriptors, at the cap, under attack.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/front/connections.h"
#include "coordinator/front/limits.h"
#include "coordinator/front/tls.h"

namespace fenwick {

struct ListenOptions {
    std::string address = "127.0.0.1";
    std::uint16_t port = 0;  ///< 0: any that is free
    FrontLimits limits;
    std::optional<ServerTlsFiles> tls;
};

class Listener {
public:
    /// Talks to one client whose handshake is over, until it returns.
    using Serve = std::function<boost::asio::awaitable<void>(Connection&)>;

    /// Binds and starts accepting once `io` runs, which must outlive the listener's connections. `name`: of the port,
    /// in log and metrics. Throws UnavailableError naming address, port and reason when the port cannot be had,
    /// ConfigError for an address that is none and for TLS files.
    Listener(boost::asio::io_context& io, const ListenOptions& options, PortMetrics& metrics, const std::string& name,
             Serve serve);

    [[nodiscard]] std::uint16_t port() const { return port_; }
    /// No new connections, and the end of those that are open. On the thread of `io`.
    void close();

private:
    [[nodiscard]] boost::asio::awaitable<void> accept_all();
    [[nodiscard]] boost::asio::awaitable<void> talk(boost::asio::ip::tcp::socket socket);

    boost::asio::io_context& io_;
    std::string name_;
    Serve serve_;
    std::optional<boost::asio::ssl::context> tls_;
    Connections connections_;
    boost::asio::ip::tcp::acceptor acceptor_;
    std::uint16_t port_ = 0;
};

}  // namespace fenwick
