#include "coordinator/service/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <limits>
#include <set>

#include "core/errors.h"
#include "core/fenwick.h"

namespace fenwick {
namespace {

namespace fs = std::filesystem;

/// Typed access to one table; what nobody asked for is an error at the end.
class Table {
public:
    Table(const toml::table* table, std::string name, const fs::path& file)
        : table_(table), name_(std::move(name)), file_(file) {}

    [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
        const toml::node* node = find(key);
        std::string found = "nothing";
        if (node != nullptr) {
            std::ostringstream text;
            node->visit([&](const auto& value) { text << value; });
            found = fmt::format("{} (line {})", text.str(), node->source().begin.line);
        }
        throw ConfigError(
            fmt::format("{}: {}{}: expected {}, found {}", file_.string(), prefix(), key, expected, found));
    }

    void read(const std::string& key, std::string& value) { get(key, value, "a text in quotes"); }
    void read(const std::string& key, bool& value) { get(key, value, "true or false"); }
    void read(const std::string& key, fs::path& value) {
        std::string text = value.string();
        get(key, text, "a path in quotes");
        if (!text.empty() && text.front() != '/' && find(key) != nullptr) {
            value = fs::absolute(file_).parent_path() / text;  // relative to the file that names it
        } else {
            value = text;
        }
    }
    void read(const std::string& key, std::int64_t& value, std::int64_t least, std::int64_t most) {
        const std::string expected = fmt::format("a whole number from {} to {}", least, most);
        get(key, value, expected);
        if (value < least || value > most) fail(key, expected);
    }
    void read(const std::string& key, double& value, double least, double most) {
        const std::string expected = fmt::format("a number from {} to {}", least, most);
        if (const toml::node* node = find(key)) {
            const auto number = node->value<double>();
            if (!number) fail(key, expected);
            value = *number;
        }
        if (!(value >= least && value <= most)) fail(key, expected);
    }
    void read(const std::string& key, std::vector<fs::path>& paths) {
        const toml::node* node = find(key);
        if (node == nullptr) return;
        const toml::array* array = node->as_array();
        if (array == nullptr) fail(key, "a list of paths");
        for (const toml::node& each : *array) {
            const auto path = each.value<std::string>();
            if (!path || path->empty() || path->front() != '/') fail(key, "a list of absolute paths");
            paths.emplace_back(*path);
        }
    }

    Table under(const std::string& key) {
        const toml::node* node = find(key);
        if (node != nullptr && !node->is_table()) fail(key, "a table");
        return {node == nullptr ? nullptr : node->as_table(), prefix() + key, file_};
    }
    const toml::array* tables(const std::string& key) {
        const toml::node* node = find(key);
        if (node == nullptr) return nullptr;
        if (!node->is_array_of_tables()) fail(key, fmt::format("[[{}{}]] tables", prefix(), key));
        return node->as_array();
    }
    [[nodiscard]] const toml::table* raw() const { return table_; }

    void refuse_others() const {
        if (table_ == nullptr) return;
        for (const auto& [key, node] : *table_) {
            const std::string text(key.str());
            if (known_.count(text) != 0) continue;
            throw ConfigError(fmt::format("{} line {}: {}{}: no such key; known here: {}", file_.string(),
                                          node.source().begin.line, prefix(), text, fmt::join(known_, ", ")));
        }
    }

private:
    [[nodiscard]] std::string prefix() const { return name_.empty() ? "" : name_ + "."; }
    const toml::node* find(const std::string& key) const {
        known_.insert(key);
        return table_ == nullptr ? nullptr : table_->get(key);
    }
    template <class Value>
    void get(const std::string& key, Value& value, const std::string& expected) {
        const toml::node* node = find(key);
        if (node == nullptr) return;
        const auto found = node->value_exact<Value>();
        if (!found) fail(key, expected);
        value = *found;
    }

    const toml::table* table_;
    std::string name_;
    const fs::path& file_;
    mutable std::set<std::string> known_;
};

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void read_endpoint(Table& table, Endpoint& endpoint) {
    table.read("host", endpoint.host);
    std::int64_t port = endpoint.port;
    table.read("port", port, 0, 65535);
    endpoint.port = static_cast<std::uint16_t>(port);
}

bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void read_clients(Table& api, ServeConfig& config, const fs::path& file) {
    const toml::array* clients = api.tables("clients");
    if (clients == nullptr) return;
    std::set<std::string> tokens;
    for (const toml::node& each : *clients) {
        Table table(each.as_table(), "api.clients", file);
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

TlsFiles read_tls(Table tls) {
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

void read_api(Table api, ServeConfig& config, const fs::path& file) {
    read_endpoint(api, config.api);
    read_clients(api, config, file);
    config.tls = read_tls(api.under("tls"));
    api.read("max_frame_bytes", config.max_frame_bytes, 1 << 16, std::int64_t{1} << 30);
    api.read("max_connections", config.max_connections, 1, 100'000);
    api.read("frame_seconds", config.frame_seconds, 1, 3600);
    api.read("idle_seconds", config.idle_seconds, 1, 86'400);
    api.read("max_documents_per_job", config.max_documents_per_job, 1, kMost);
    api.read("upload_hours", config.upload_hours, 1, 24 * 365);
    Table limits = api.under("limits");
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

void read_control(Table control, ServeConfig& config) {
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
    toml::table root;
    try {
        root = toml::parse_file(file.string());
    } catch (const toml::parse_error& error) {
        throw ConfigError(fmt::format("{} line {}: {}", file.string(), error.source().begin.line, error.description()));
    }
    ServeConfig config;
    Table top(&root, "", file);
    top.read("data", config.data);
    if (config.data.empty()) top.fail("data", "the folder that the coordinator keeps everything in");
    top.read("roots", config.roots);
    top.read("model_roots", config.model_roots);
    Table models = top.under("models");
    if (models.raw() != nullptr) {
        for (const auto& [key, node] : *models.raw()) {
            NamedModel model;
            model.name = std::string(key.str());
            models.read(model.name, model.path);
            config.models.push_back(std::move(model));
        }
    }
    read_api(top.under("api"), config, file);
    Table http = top.under("http");
    read_endpoint(http, config.http);
    http.refuse_others();
    if (!is_loopback(config.http.host) && config.tokens.empty() && config.tls.client_ca.empty()) {
        http.fail("host",
                  "a loopback address, or [[api.clients]] with tokens, or api.tls.client_ca, which this port uses "
                  "as well: else anybody could look");
    }
    read_control(top.under("control"), config);
    Table log = top.under("log");
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
