// The coordinator's ports for clients: the Thrift API and HTTP, with the threads that run them.
#pragma once

#include <prometheus/registry.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <thread>

#include "coordinator/api/authentication.h"
#include "coordinator/front/http_server.h"
#include "coordinator/front/rpc_server.h"
#include "coordinator/front/wait_room.h"
#include "coordinator/service/service.h"

namespace fenwick {

class ClientPorts {
public:
    /// Opens both ports as the service's configuration says, and serves until destruction. Takes the store's
    /// on_job_change. Throws ConfigError (addresses, TLS files) and UnavailableError (a port that cannot be had).
    explicit ClientPorts(Service& service);
    /// Answers what is under way, ends all connections. Nobody may change jobs any more: stop what does first.
    ~ClientPorts();
    ClientPorts(const ClientPorts&) = delete;
    ClientPorts& operator=(const ClientPorts&) = delete;

    [[nodiscard]] std::uint16_t api_port() const { return rpc_->port(); }
    [[nodiscard]] std::uint16_t http_port() const { return http_->port(); }
    /// Where other parts of the coordinator may count, too.
    [[nodiscard]] prometheus::Registry& registry() { return *registry_; }

private:
    Service& service_;
    Authentication authentication_;
    std::shared_ptr<prometheus::Registry> registry_;
    boost::asio::io_context io_;
    boost::asio::thread_pool pool_;
    WaitRoom waits_{io_};
    std::unique_ptr<RpcServer> rpc_;
    std::unique_ptr<HttpServer> http_;
    std::thread thread_;
};

}  // namespace fenwick
