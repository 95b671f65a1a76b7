// A client of the coordinator's Thrift API: connects, says who it is, and tries again what may be tried again.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/idl/Fenwick.h"

namespace apache::thrift::transport {
class TTransport;
}

namespace fenwick {

/// Where the coordinator is, and how to speak with it.
struct ClientOptions {
    std::string server = "127.0.0.1:7710";  ///< HOST:PORT, [IPv6]:PORT
    std::filesystem::path token_file;       ///< its first line is the token; empty: FENWICK_TOKEN, or none
    std::filesystem::path tls_authority;    ///< PEM; empty, as the next two: no TLS
    std::filesystem::path tls_certificate;  ///< for mutual TLS, with its key
    std::filesystem::path tls_key;
    double retry_seconds = 60;  ///< how long a call is tried again while the coordinator is away or asks to wait
};

/// For one thread. Every call is safe to repeat (submissions carry a key), and is repeated on a new connection when the
/// coordinator cannot be reached or says that it may be, for up to retry_seconds, saying so on stderr.
class ServiceClient {
public:
    /// Reads the token; connects with the first call. Throws UsageError for options that cannot be used.
    explicit ServiceClient(ClientOptions options);
    ~ServiceClient();
    ServiceClient(const ServiceClient&) = delete;
    ServiceClient& operator=(const ServiceClient&) = delete;

    /// Runs `request` with the generated client. Throws ServiceFault (what the coordinator answered) and
    /// UnavailableError (it cannot be reached, or its certificate is not trusted).
    void call(const std::function<void(idl::FenwickClient&)>& request);

    /// The same for calls of the form `client.METHOD(result, arguments...)`.
    template <class Result, class... Parameters, class... Arguments>
    [[nodiscard]] Result get(void (idl::FenwickClient::*method)(Result&, Parameters...),
                             const Arguments&... arguments) {
        Result result;
        call([&](idl::FenwickClient& client) { (client.*method)(result, arguments...); });
        return result;
    }

private:
    void connect();
    void close() noexcept;

    ClientOptions options_;
    std::string host_;
    std::uint16_t port_ = 0;
    std::string token_;
    std::shared_ptr<apache::thrift::transport::TTransport> transport_;
    std::unique_ptr<idl::FenwickClient> client_;
};

/// A new key for a submission that may be repeated: 32 hexadecimal digits from the system's random numbers.
[[nodiscard]] std::string new_idempotency_key();

}  // namespace fenwick
