#include "coordinator/api/ports.h"

#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <string>

#include "coordinator/api/api_handler.h"
#include "coordinator/api/service_metrics.h"
#include "coordinator/api/status_pages.h"

namespace fenwick {
namespace {

/// Calls are short (a transaction, or a chunk of 4 MiB to disk): more threads would wait for the same disk.
constexpr std::size_t kCallThreads = 4;
constexpr std::int64_t kHttpRequestBytes = 16 << 10;

/// Every connection takes one, and the store, uploads and results take some: the soft limit of a login is often too
/// low.
void allow_descriptors(std::int64_t connections) {
    constexpr rlim_t kOthers = 256;
    const rlim_t wanted = static_cast<rlim_t>(2 * connections) + kOthers;
    rlimit limit = {};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        limit.rlim_cur = std::min(wanted, limit.rlim_max);
        if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == wanted) return;
        spdlog::warn(
            "api.max_connections is {}, but this process may open only {} files (ulimit -n): newcomers wait when "
            "these are used up",
            connections, limit.rlim_cur);
    }
}

/// Requests and replies are large and short-lived: each goes back to the system when it is done with, so that a process
/// is not left with the most that clients ever made it hold.
void return_large_buffers() {
    constexpr int kLarge = 128 << 10;
    if (::mallopt(M_MMAP_THRESHOLD, kLarge) != 1) spdlog::warn("mallopt: M_MMAP_THRESHOLD cannot be set");
}

ListenOptions listen_options(const ServeConfig& config, const Endpoint& endpoint) {
    ListenOptions options;
    options.address = endpoint.host;
    options.port = endpoint.port;
    options.limits.frame_bytes = config.max_frame_bytes;
    options.limits.string_bytes = static_cast<std::int32_t>(config.max_frame_bytes);
    options.limits.buffered_bytes = std::max(options.limits.buffered_bytes, 2 * config.max_frame_bytes);
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
    allow_descriptors(config.max_connections);
    return_large_buffers();
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
