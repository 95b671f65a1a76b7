// The HTTP port: GET and HEAD of a few pages (Boost.Beast parses and writes), for browsers, Prometheus and health
// checks.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "coordinator/front/front_metrics.h"
#include "coordinator/front/listener.h"

namespace fenwick {

struct HttpRequest {
    std::string path;              ///< without the query
    std::string query;             ///< after "?", as sent
    std::string authorization;     ///< the header's value, empty without one
    std::string certificate_name;  ///< of the client's verified certificate, as in CallContext
};

struct HttpReply {
    int status = 200;
    std::string content_type = "text/plain; charset=utf-8";
    std::string body;
};

/// Called on a thread of the pool. What it throws is logged and answered by 500 without its text.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

class HttpServer {
public:
    /// As RpcServer.
    HttpServer(boost::asio::io_context& io, boost::asio::thread_pool& pool, const ListenOptions& options,
               prometheus::Registry& registry, HttpHandler handler);
    [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
    /// On the thread of `io`.
    void close() { listener_.close(); }

private:
    [[nodiscard]] boost::asio::awaitable<void> serve(Connection& connection);
    [[nodiscard]] HttpReply handle(const HttpRequest& request) const;

    boost::asio::thread_pool& pool_;
    HttpHandler handler_;
    PortMetrics port_metrics_;
    Listener listener_;
};

}  // namespace fenwick
