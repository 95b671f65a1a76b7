#include "coordinator/api/ports.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <string>

#include "coordinator/api/api_handler.h"
#include "coordinator/api/service_metrics.h"
#include "coordinator/api/status_pages.h"
#include "core/errors.h"

namespace fenwick {
namespace {

/// Calls are short (a transaction, or a chunk of 4 MiB to disk): more threads would wait for the same disk.
constexpr std::size_t kCallThreads = 4;
constexpr std::int64_t kHttpRequestBytes = 16 << 10;

bool is_loopback(const std::string& host) {
    boost::system::error_code error;
    const auto address = boost::asio::ip::make_address(host, error);
    return !error && address.is_loopback();
}

/// Nobody may come in from other machines unasked.
void check_exposure(const ServeConfig& config, const Endpoint& endpoint, const char* table) {
    const bool asks = !config.tokens.empty() || !config.tls.client_ca.empty();
    if (is_loopback(endpoint.host) || asks) return;
    throw ConfigError(fmt::format(
        "[{}] listens at {}, beyond loopback, where everybody would be let in: expected tokens or [tls] with "
        "client_ca, found neither",
        table, endpoint.host));
}

ListenOptions listen_options(const ServeConfig& config, const Endpoint& endpoint) {
    ListenOptions options;
    options.address = endpoint.host;
    options.port = endpoint.port;
    options.limits.frame_bytes = config.max_frame_bytes;
    options.limits.string_bytes = static_cast<std::int32_t>(config.max_frame_bytes);
    options.limits.connections = static_cast<int>(config.max_connections);
    options.limits.frame_time = std::chrono::seconds(config.frame_seconds);
    options.limits.write_time = std::chrono::seconds(config.frame_seconds);
    options.limits.idle_time = std::chrono::seconds(config.idle_seconds);
    if (!config.tls.certificate.empty()) {
        options.tls = ServerTlsFiles{config.tls.certificate, config.tls.key, config.tls.client_ca};
    }
    return options;
}

}  // namespace

ClientPorts::ClientPorts(Service& service)
    : service_(service),
      authentication_(service.config().tokens, !service.config().tls.client_ca.empty()),
      registry_(std::make_shared<prometheus::Registry>()),
      pool_(kCallThreads) {
    const ServeConfig& config = service.config();
    check_exposure(config, config.api, "api");
    check_exposure(config, config.http, "http");
    rpc_ = std::make_unique<RpcServer>(io_, pool_, waits_, listen_options(config, config.api), *registry_,
                                       api_processors(service_, authentication_));
    ListenOptions http = listen_options(config, config.http);
    http.limits.frame_bytes = kHttpRequestBytes;
    http_ = std::make_unique<HttpServer>(io_, pool_, http, *registry_,
                                         status_pages(service_, authentication_, *registry_, ServiceMetrics(service_)));
    service_.store().on_job_change(
        [this](const std::string& job_id, std::int64_t /*version*/) { waits_.call(job_id); });
    thread_ = std::thread([this] {
        try {
            io_.run();
        } catch (const std::exception& error) {
            spdlog::critical("the client ports ended by an internal error: {}", error.what());
        }
    });
}

ClientPorts::~ClientPorts() {
    service_.store().on_job_change({});
    boost::asio::post(io_, [this] {
        rpc_->close();
        http_->close();
        waits_.close();
    });
    thread_.join();
    pool_.join();
}

}  // namespace fenwick
