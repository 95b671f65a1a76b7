#include "coordinator/client/service_client.h"

#include <fmt/format.h>
#include <thrift/TApplicationException.h>
#include <thrift/TOutput.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSSLSocket.h>
#include <thrift/transport/TSocket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "coordinator/address.h"
#include "coordinator/idl/fenwick_constants.h"
#include "coordinator/store/service_fault.h"
#include "core/errors.h"
#include "core/files.h"

namespace fenwick {
namespace {

using apache::thrift::TApplicationException;
using apache::thrift::TConfiguration;
using apache::thrift::TException;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TSocket;
using apache::thrift::transport::TSSLException;
using apache::thrift::transport::TSSLSocketFactory;
using apache::thrift::transport::TTransportException;
using Clock = std::chrono::steady_clock;

constexpr int kConnectMs = 5'000;
/// Longer than the longest wait that the coordinator grants (a minute).
constexpr int kReplyMs = 90'000;
/// Replies hold pages and chunks of at most a few MiB.
constexpr int kMaxReplyBytes = 64 << 20;

std::string without_line_end(std::string text) {
    const std::size_t end = text.find_first_of("\r\n");
    if (end != std::string::npos) text.resize(end);
    return text;
}

ServiceFault to_fault(const idl::ServiceError& error) {
    std::string message = fmt::format("{}: {}", name_of(error.code), error.message);
    return {error.code, message, error.retryable, error.retryAfterMs};
}

}  // namespace

ServiceClient::ServiceClient(ClientOptions options) : options_(std::move(options)) {
    const Address server = parse_address(options_.server, "--server");
    host_ = server.host;
    port_ = server.port;
    if (options_.tls_certificate.empty() != options_.tls_key.empty()) {
        throw UsageError("--tls-certificate and --tls-key: expected both or neither");
    }
    if (options_.tls_authority.empty() && !options_.tls_certificate.empty()) {
        throw UsageError(
            "--tls-certificate: expected --tls-ca as well, the authority that signed the coordinator's certificate");
    }
    if (!options_.token_file.empty()) {
        token_ = without_line_end(read_text_file(options_.token_file, 4096));
        if (token_.empty()) throw UsageError(options_.token_file.string() + ": expected a token in the first line");
    } else if (const char* const token = std::getenv("FENWICK_TOKEN")) {
        token_ = token;
    }
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that the peer may have closed
    // The library's own words would come between ours; every failure comes as an exception as well.
    apache::thrift::GlobalOutput.setOutputFunction([](const char*) {});
}

ServiceClient::~ServiceClient() {
    close();
}

void ServiceClient::close() noexcept {
    client_.reset();
    try {
        if (transport_ != nullptr) transport_->close();
    } catch (const TException&) {  // it was broken: that is why it is closed
    }
    transport_.reset();
}

void ServiceClient::connect() {
    const auto config = std::make_shared<TConfiguration>(kMaxReplyBytes, kMaxReplyBytes);
    std::shared_ptr<TSocket> socket;
    if (options_.tls_authority.empty()) {
        socket = std::make_shared<TSocket>(host_, port_, config);
    } else {
        TSSLSocketFactory factory;
        factory.loadTrustedCertificates(options_.tls_authority.c_str());
        factory.authenticate(true);
        if (!options_.tls_certificate.empty()) {
            factory.loadCertificate(options_.tls_certificate.c_str());
            factory.loadPrivateKey(options_.tls_key.c_str());
        }
        socket = factory.createSocket(host_, port_);
    }
    socket->setConnTimeout(kConnectMs);
    socket->setSendTimeout(kReplyMs);
    socket->setRecvTimeout(kReplyMs);
    transport_ = std::make_shared<TFramedTransport>(socket, config);
    client_ = std::make_unique<idl::FenwickClient>(std::make_shared<TBinaryProtocol>(transport_));
    transport_->open();
    if (!token_.empty()) client_->authenticate(token_);
    idl::ServerInfo info;
    client_->getServerInfo(info, idl::g_fenwick_constants.PROTOCOL_VERSION);
}

void ServiceClient::call(const std::function<void(idl::FenwickClient&)>& request) {
    const auto give_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                            std::chrono::duration<double>(options_.retry_seconds));
    auto pause = std::chrono::milliseconds(200);
    bool said = false;
    for (;;) {
        std::string trouble;
        std::exception_ptr last;
        try {
            if (client_ == nullptr) connect();
            request(*client_);
            return;
        } catch (const idl::ServiceError& error) {
            if (!error.retryable) throw to_fault(error);
            trouble = fmt::format("{}: {}", name_of(error.code), error.message);
            last = std::make_exception_ptr(to_fault(error));
            pause = std::max(pause, std::chrono::milliseconds(error.retryAfterMs));
        } catch (const TApplicationException& error) {
            close();
            throw ServiceFault(ServiceCode::INTERNAL, fmt::format("{}: {}", options_.server, error.what()));
        } catch (const TSSLException& error) {  // trust does not come with time
            close();
            throw UnavailableError(
                fmt::format("{}: TLS: {}; check --tls-ca, --tls-certificate and --tls-key, and that the "
                            "coordinator speaks TLS",
                            options_.server, error.what()));
        } catch (const TException& error) {
            close();
            trouble = fmt::format("{}: {}", options_.server, error.what());
            last = std::make_exception_ptr(
                UnavailableError(trouble + "; is the coordinator running there ('fenwick serve')?"));
        }
        if (Clock::now() + pause > give_up) std::rethrow_exception(last);
        if (!said) fmt::print(stderr, "fenwick: {}; trying again for {:.0f} s\n", trouble, options_.retry_seconds);
        said = true;
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, std::chrono::milliseconds(5000));
    }
}

std::string new_idempotency_key() {
    std::random_device random;
    std::string key;
    for (int word = 0; word < 4; ++word) key += fmt::format("{:08x}", random());
    return key;
}

}  // namespace fenwick
