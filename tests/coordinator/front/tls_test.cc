// TLS and mutual TLS: who is let in, and what a wrong certificate gets.
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSSLSocket.h>

#include <catch2/catch.hpp>
#include <string>

#include "../certificates.h"
#include "core/errors.h"
#include "support.h"
#include "tests/core/temporary_folder.h"

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TSSLSocketFactory;

/// A front's port that speaks TLS, for clients of `certificates`' authority.
ListenOptions listen(const Certificates& certificates, bool mutual) {
    ListenOptions options;
    options.limits.frame_time = 2s;
    options.tls = ServerTlsFiles{certificates.certificate("server"), certificates.key("server"),
                                 mutual ? certificates.certificate("ca") : ""};
    return options;
}

/// Calls getHealth over TLS, trusting `authority`, as `client` (empty: without a certificate). Throws what Thrift does.
std::string health_over_tls(const Certificates& certificates, std::uint16_t port, const std::string& authority,
                            const std::string& client) {
    const auto factory = std::make_shared<TSSLSocketFactory>();
    factory->loadTrustedCertificates(certificates.certificate(authority).c_str());
    factory->authenticate(true);
    if (!client.empty()) {
        factory->loadCertificate(certificates.certificate(client).c_str());
        factory->loadPrivateKey(certificates.key(client).c_str());
    }
    const auto socket = factory->createSocket("127.0.0.1", port);
    socket->setRecvTimeout(5000);
    const auto transport = std::make_shared<TFramedTransport>(socket);
    idl::FenwickClient caller(std::make_shared<apache::thrift::protocol::TBinaryProtocol>(transport));
    transport->open();
    idl::Health health;
    caller.getHealth(health);
    return health.reason;
}

TEST_CASE("front: TLS serves those who trust its certificate") {
    const TemporaryFolder folder;
    const Certificates certificates(folder.path());
    RunningFront front(listen(certificates, false));
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "") == "fine");
    CHECK_THROWS(health_over_tls(certificates, front.rpc_port(), "other", ""));
    // Who speaks no TLS is dropped, and nobody else is bothered.
    RawSocket plain(front.rpc_port());
    REQUIRE(plain.send(health_call()));
    CHECK(plain.is_closed_within(4s));
    RawSocket silent(front.rpc_port());
    CHECK(silent.is_closed_within(4s));  // the handshake has a deadline as well
    CHECK(front.metric("fenwick_connections_dropped_total", "tls_handshake") >= 2);
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "") == "fine");
}

TEST_CASE("front: mutual TLS serves certificates of its authority alone") {
    const TemporaryFolder folder;
    const Certificates certificates(folder.path());
    RunningFront front(listen(certificates, true));
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "alice") == "fine");
    CHECK_THROWS(health_over_tls(certificates, front.rpc_port(), "ca", ""));
    CHECK_THROWS(health_over_tls(certificates, front.rpc_port(), "ca", "mallory"));
    CHECK(front.metric("fenwick_connections_dropped_total", "tls_handshake") == 2);
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "alice") == "fine");
}

TEST_CASE("front: TLS files that cannot be used are named") {
    const TemporaryFolder folder;
    const Certificates certificates(folder.path());
    const auto message = [](const ServerTlsFiles& files) {
        return message_of<ConfigError>([&] { (void)server_tls(files); });
    };
    const std::string absent = "/nowhere/server.pem";
    CHECK(message({absent, certificates.key("server"), {}}).rfind(absent + ": expected", 0) == 0);
    // The key of another certificate.
    CHECK(message({certificates.certificate("server"), certificates.key("alice"), {}})
              .rfind(certificates.key("alice"), 0) == 0);
    CHECK(message({certificates.certificate("server"), certificates.key("server"), certificates.key("ca")})
              .rfind(certificates.key("ca"), 0) == 0);
}

}  // namespace
}  // namespace fenwick::testing
