// TLS contexts from files (PEM). Mutual TLS: each side names the authority that the other's certificate must come from.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>

namespace fenwick {

struct ServerTlsFiles {
    std::filesystem::path certificate;  ///< chain, leaf first
    std::filesystem::path key;
    std::filesystem::path client_authority;  ///< empty: clients need no certificate
};

/// TLS 1.2 or newer. Throws ConfigError naming the file and OpenSSL's reason for a file that is absent, no PEM, or a
/// key that does not belong to the certificate.
[[nodiscard]] boost::asio::ssl::context server_tls(const ServerTlsFiles& files);

struct ClientTlsFiles {
    std::filesystem::path authority;    ///< the server's certificate must come from it
    std::filesystem::path certificate;  ///< of this client, where the server asks for one; empty: none
    std::filesystem::path key;
};

/// As server_tls.
[[nodiscard]] boost::asio::ssl::context client_tls(const ClientTlsFiles& files);

}  // namespace fenwick
