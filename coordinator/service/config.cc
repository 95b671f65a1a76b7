#include "coordinator/service/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <limits>
#include <set>

#include "coordinator/toml_table.h"
#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void read_endpoint(TomlTable& table, Endpoint& endpoint) {
    table.read("host", endpoint.host);
    std::int64_t port = endpoint.port;
    table.read("port", port, 0, 65535);
    endpoint.port = static_cast<std::uint16_t>(port);
}

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void read_clients(TomlTable& api, ServeConfig& config, const fs::path& file) {
    const toml::array* clients = api.tables("clients");
    if (clients == nullptr) return;
    std::set<std::string> tokens;
    for (const toml::node& each : *clients) {
        TomlTable table(each.as_table(), "api.clients", file);
        ClientToken client;
        table.read("name", client.client);
        table.read("token", client.token);
        table.read("admin", client.admin);
        if (client.client.empty()) table.fail("name", "a name");
        constexpr std::size_t kLeastToken = 16;
        if (client.token.size() < kLeastToken) table.fail("token", "at least 16 characters");
        if (!tokens.insert(client.token).second) table.fail("token", "another token for each client");
        table.refuse_others();
        config.tokens.push_back(std::move(client));
    }
}

TlsFiles read_tls(TomlTable tls) {
    TlsFiles files;
    tls.read("certificate", files.certificate);
    tls.read("key", files.key);
    tls.read("client_ca", files.client_ca);
    if (files.certificate.empty() != files.key.empty()) tls.fail("key", "certificate and key together");
    if (files.certificate.empty() && !files.client_ca.empty())
        tls.fail("certificate", "one, to ask clients for theirs");
    tls.refuse_others();
    return files;
}

void read_api(TomlTable api, ServeConfig& config, const fs::path& file) {
    read_endpoint(api, config.api);
    read_clients(api, config, file);
    config.tls = read_tls(api.under("tls"));
    api.read("max_frame_bytes", config.max_frame_bytes, 1 << 16, std::int64_t{1} << 30);
    api.read("max_connections", config.max_connections, 1, 100'000);
    api.read("frame_seconds", config.frame_seconds, 1, 3600);
    api.read("idle_seconds", config.idle_seconds, 1, 86'400);
    api.read("max_documents_per_job", config.max_documents_per_job, 1, kMost);
    api.read("upload_hours", config.upload_hours, 1, 24 * 365);
    TomlTable limits = api.under("limits");
    limits.read("active_jobs", config.limits.active_jobs, 0, kMost);
    limits.read("active_documents", config.limits.active_documents, 0, kMost);
    limits.read("upload_bytes", config.limits.upload_bytes, 0, kMost);
    limits.refuse_others();
    api.refuse_others();
    const bool guarded = !config.tokens.empty() || !config.tls.client_ca.empty();
    if (!is_loopback(config.api.host) && !guarded) {
        api.fail("host",
                 "a loopback address, or [[api.clients]] with tokens, or tls.client_ca: else anybody could use it");
    }
}

void read_control(TomlTable control, ServeConfig& config) {
    read_endpoint(control, config.control);
    control.read("token", config.worker_token);
    config.control_tls = read_tls(control.under("tls"));
    control.read("heartbeat_seconds", config.heartbeat_seconds, 0.05, 60);
    control.read("lost_seconds", config.lost_seconds, 0.2, 3600);
    if (config.lost_seconds < 3 * config.heartbeat_seconds) control.fail("lost_seconds", "at least 3 heartbeats");
    control.read("save_seconds", config.save_seconds, 0, 86'400);
    control.read("stretch_tokens", config.stretch_tokens, kBlockTokens, kMost / 2);
    if (config.stretch_tokens % kBlockTokens != 0) {
        control.fail("stretch_tokens", fmt::format("a multiple of {}", kBlockTokens));
    }
    std::int64_t attempts = config.attempts;
    control.read("attempts", attempts, 1, 100);
    config.attempts = static_cast<std::int32_t>(attempts);
    control.refuse_others();
    const bool guarded = !config.worker_token.empty() || !config.control_tls.client_ca.empty();
    if (!is_loopback(config.control.host) && !guarded) {
        control.fail("token",
                     "a token or tls.client_ca, since host is not loopback: else anybody could join as a gang");
    }
}

}  // namespace

ServeConfig read_serve_config(const fs::path& file) {
    const toml::table root = parse_toml_file(file);
    ServeConfig config;
    TomlTable top(&root, "", file);
    top.read("data", config.data);
    if (config.data.empty()) top.fail("data", "the folder that the coordinator keeps everything in");
    top.read("roots", config.roots);
    top.read("model_roots", config.model_roots);
    TomlTable models = top.under("models");
    if (models.raw() != nullptr) {
        for (const auto& [key, node] : *models.raw()) {
            NamedModel model;
            model.name = std::string(key.str());
            models.read(model.name, model.path);
            config.models.push_back(std::move(model));
        }
    }
    read_api(top.under("api"), config, file);
    TomlTable http = top.under("http");
    read_endpoint(http, config.http);
    http.refuse_others();
    if (!is_loopback(config.http.host) && config.tokens.empty() && config.tls.client_ca.empty()) {
        http.fail("host",
                  "a loopback address, or [[api.clients]] with tokens, or api.tls.client_ca, which this port uses "
                  "as well: else anybody could look");
    }
    read_control(top.under("control"), config);
    TomlTable log = top.under("log");
    log.read("level", config.log_level);
    if (std::set<std::string>{"debug", "info", "warn", "error"}.count(config.log_level) == 0) {
        log.fail("level", "debug, info, warn or error");
    }
    log.read("file", config.log_file);
    log.refuse_others();
    top.refuse_others();
    return config;
}

}  // namespace fenwick
