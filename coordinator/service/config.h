// The configuration file of `fenwick serve` (TOML). README.md of this folder shows one with every key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/store/store.h"

namespace fenwick {

struct NamedModel {
    std::string name;
    std::filesystem::path path;
};

/// An address to listen at; port 0 takes any free one.
struct Endpoint {
    std::string host = "127.0.0.1";
    std::uint16_t port = 0;
};

struct TlsFiles {
    std::filesystem::path certificate;  ///< PEM; empty: no TLS
    std::filesystem::path key;
    std::filesystem::path client_ca;  ///< empty: clients need no certificate
};

/// A client that may come in, and by which token. With no tokens at all everybody on loopback may, as "local".
struct ClientToken {
    std::string client;
    std::string token;
    bool admin = false;  ///< sees and changes the jobs of others, drains gangs
};

struct ServeConfig {
    std::filesystem::path data;                      ///< store, uploads, job folders
    std::vector<std::filesystem::path> roots;        ///< where documents and tokenizers may lie that are named by path
    std::vector<NamedModel> models;                  ///< [models] name = "path"
    std::vector<std::filesystem::path> model_roots;  ///< where models may lie that are named by path

    // [api] and [http]
    Endpoint api{"127.0.0.1", 7710};
    Endpoint http{"127.0.0.1", 7711};
    TlsFiles tls;
    std::vector<ClientToken> tokens;
    std::int64_t max_frame_bytes = std::int64_t{16} << 20;
    std::int64_t max_connections = 1000;
    std::int64_t frame_seconds = 10;  ///< a frame that has begun is whole by then
    std::int64_t idle_seconds = 600;
    ClientLimits limits;
    std::int64_t max_documents_per_job = 1'000'000;
    std::int64_t upload_hours = 24;

    // [control]
    Endpoint control{"127.0.0.1", 7712};
    TlsFiles control_tls;
    std::string worker_token;  ///< empty: gangs need none (loopback alone)
    double heartbeat_seconds = 1;
    double lost_seconds = 6;  ///< a rank that is silent for so long is lost
    double save_seconds = 20;
    std::int64_t stretch_tokens = std::int64_t{1} << 22;  ///< most tokens of a lease
    std::int32_t attempts = 3;

    // [log]
    std::string log_level = "info";
    std::filesystem::path log_file;  ///< empty: stderr alone
};

/// Throws ConfigError naming file, key, expected and found; an unknown key is an error too.
[[nodiscard]] ServeConfig read_serve_config(const std::filesystem::path& file);

}  // namespace fenwick
