// TLS and mutual TLS: who is let in, and what a wrong certificate gets. Certificates are made by the openssl program.
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSSLSocket.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "core/errors.h"
#include "support.h"
#include "tests/core/temporary_folder.h"

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TSSLSocketFactory;

/// Two authorities; of the first a server's and a client's certificate, of the second another client's.
class Certificates {
public:
    Certificates() {
        for (const char* authority : {"ca", "other"}) {
            run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" +
                std::string(authority) + " -keyout " + file(authority, "key") + " -out " + file(authority, "pem"));
        }
        issue("server", "ca");
        issue("alice", "ca");
        issue("mallory", "other");
    }
    [[nodiscard]] std::string certificate(const std::string& name) const { return file(name, "pem"); }
    [[nodiscard]] std::string key(const std::string& name) const { return file(name, "key"); }
    [[nodiscard]] ListenOptions listen(bool mutual) const {
        ListenOptions options;
        options.limits.frame_time = 2s;
        options.tls = ServerTlsFiles{certificate("server"), key("server"), mutual ? certificate("ca") : ""};
        return options;
    }

private:
    void issue(const std::string& name, const std::string& authority) const {
        put(folder_ / "extensions", "subjectAltName=IP:127.0.0.1,DNS:localhost\n");
        run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
            key(name) + " -out " + file(name, "csr"));
        run("openssl x509 -req -days 2 -CAcreateserial -in " + file(name, "csr") + " -CA " + file(authority, "pem") +
            " -CAkey " + file(authority, "key") + " -extfile " + (folder_ / "extensions").string() + " -out " +
            certificate(name));
    }
    static void run(const std::string& command) {
        INFO(command);
        REQUIRE(std::system((command + " >/dev/null 2>&1").c_str()) == 0);
    }
    [[nodiscard]] std::string file(const std::string& name, const std::string& ending) const {
        return (folder_ / (name + "." + ending)).string();
    }
    TemporaryFolder folder_;
};

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
    const Certificates certificates;
    RunningFront front(certificates.listen(false));
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
    const Certificates certificates;
    RunningFront front(certificates.listen(true));
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "alice") == "fine");
    CHECK_THROWS(health_over_tls(certificates, front.rpc_port(), "ca", ""));
    CHECK_THROWS(health_over_tls(certificates, front.rpc_port(), "ca", "mallory"));
    CHECK(front.metric("fenwick_connections_dropped_total", "tls_handshake") == 2);
    CHECK(health_over_tls(certificates, front.rpc_port(), "ca", "alice") == "fine");
}

TEST_CASE("front: TLS files that cannot be used are named") {
    const Certificates certificates;
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
