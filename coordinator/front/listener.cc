#include "coordinator/front/listener.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

tcp::acceptor listen(asio::io_context& io, const ListenOptions& options) {
    error_code error;
    const auto address = asio::ip::make_address(options.address == "localhost" ? "127.0.0.1" : options.address, error);
    if (error) {
        throw ConfigError(fmt::format("listen address: expected localhost or an IPv4 or IPv6 address, found \"{}\"",
                                      options.address));
    }
    tcp::acceptor acceptor(io);
    const tcp::endpoint endpoint(address, options.port);
    const auto check = [&](const char* step) {
        if (error) {
            throw UnavailableError(fmt::format("{} port {}: cannot {}: {}; choose another port, or stop what holds it",
                                               options.address, options.port, step, error.message()));
        }
    };
    acceptor.open(endpoint.protocol(), error);
    check("open a socket");
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    check("set SO_REUSEADDR");
    acceptor.bind(endpoint, error);
    check("bind");
    acceptor.listen(1024, error);
    check("listen");
    return acceptor;
}

}  // namespace

Listener::Listener(asio::io_context& io, const ListenOptions& options, PortMetrics& metrics, const std::string& name,
                   Serve serve)
    : io_(io),
      name_(name),
      serve_(std::move(serve)),
      connections_(io, options.limits, metrics, name),
      acceptor_(listen(io, options)),
      port_(acceptor_.local_endpoint().port()) {
    if (options.tls) tls_.emplace(server_tls(*options.tls));
    asio::co_spawn(io_, accept_all(), asio::detached);
}

void Listener::close() {
    error_code ignored;  // an acceptor that cannot be closed is closed already
    acceptor_.close(ignored);
    connections_.close_all();
}

asio::awaitable<void> Listener::accept_all() {
    asio::steady_timer pause(io_);
    while (acceptor_.is_open()) {
        auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
        if (!acceptor_.is_open()) co_return;
        if (error) {
            connections_.log().warn("{} port: accept failed: {}; trying again", name_, error.message());
            pause.expires_after(connections_.limits().accept_pause);
            co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
            continue;
        }
        if (!connections_.make_room()) continue;  // `socket` closes itself
        asio::co_spawn(io_, talk(std::move(socket)), asio::detached);
    }
}

asio::awaitable<void> Listener::talk(tcp::socket socket) {
    try {
        error_code error;
        const tcp::endpoint peer = socket.remote_endpoint(error);
        if (error) co_return;                           // gone already
        socket.set_option(tcp::no_delay(true), error);  // only a matter of speed
        Connection connection(connections_,
                              tls_ ? tls_stream(std::move(socket), *tls_) : plain_stream(std::move(socket)),
                              fmt::format("{}:{}", peer.address().to_string(), peer.port()));
        connection.expect(Drop::kHandshake, connections_.limits().frame_time);
        std::string refusal;
        try {
            co_await connection.stream().handshake();
        } catch (const boost::system::system_error& failure) {
            refusal = failure.code().message();
        }
        if (!refusal.empty()) {
            connection.drop(Drop::kHandshake, refusal);
            co_return;
        }
        co_await serve_(connection);
    } catch (const std::exception& failure) {
        // One connection's trouble (memory, say) ends that connection and nothing else.
        spdlog::error("{} port: a connection ended by an internal error: {}", name_, failure.what());
    }
}

}  // namespace fenwick
