#include "coordinator/front/stream.h"

#include <openssl/x509.h>
#include <poll.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace fenwick {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

void close_socket(tcp::socket& socket) noexcept {
    boost::system::error_code ignored;  // it may be closed already, or reset by the peer: closed is what matters
    socket.shutdown(tcp::socket::shutdown_both, ignored);
    socket.close(ignored);
}

bool peer_of_has_left(tcp::socket& socket) {
    // POLLRDHUP also tells where unread bytes come before the end.
    pollfd looked_at = {socket.native_handle(), POLLRDHUP, 0};
    return ::poll(&looked_at, 1, 0) != 0;  // POLLERR, POLLHUP and POLLNVAL come unasked
}

class PlainStream final : public Stream {
public:
    explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}
    asio::awaitable<void> handshake() override { co_return; }
    asio::awaitable<std::size_t> read_some(asio::mutable_buffer out) override {
        co_return co_await socket_.async_read_some(out, asio::use_awaitable);
    }
    asio::awaitable<void> write(asio::const_buffer bytes) override {
        co_await asio::async_write(socket_, bytes, asio::use_awaitable);
    }
    [[nodiscard]] bool peer_has_left() override { return peer_of_has_left(socket_); }
    void close() noexcept override { close_socket(socket_); }
    [[nodiscard]] std::string certificate_name() const override { return {}; }

private:
    tcp::socket socket_;
};

/// Without TLS's own closing exchange: frames carry their length, so a cut connection cannot pass for a short message.
class TlsStream final : public Stream {
public:
    using Side = asio::ssl::stream_base::handshake_type;
    TlsStream(tcp::socket socket, asio::ssl::context& context, Side side)
        : stream_(std::move(socket), context), side_(side) {}
    void expect_host(const std::string& host) {
        stream_.set_verify_callback(asio::ssl::host_name_verification(host));
        // Servers of several names choose their certificate by it. Addresses are not sent.
        boost::system::error_code no_address;
        (void)asio::ip::make_address(host, no_address);
        if (no_address) SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
    }
    asio::awaitable<void> handshake() override { co_await stream_.async_handshake(side_, asio::use_awaitable); }
    asio::awaitable<std::size_t> read_some(asio::mutable_buffer out) override {
        co_return co_await stream_.async_read_some(out, asio::use_awaitable);
    }
    asio::awaitable<void> write(asio::const_buffer bytes) override {
        co_await asio::async_write(stream_, bytes, asio::use_awaitable);
    }
    [[nodiscard]] bool peer_has_left() override { return peer_of_has_left(stream_.next_layer()); }
    void close() noexcept override { close_socket(stream_.next_layer()); }
    [[nodiscard]] std::string certificate_name() const override {
        // native_handle() is not const, though asking for the peer's certificate changes nothing.
        auto* const session = const_cast<asio::ssl::stream<tcp::socket>&>(stream_).native_handle();
        const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(session), X509_free);
        if (certificate == nullptr) return {};
        std::array<char, 256> name = {};
        const int length = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName,
                                                     name.data(), static_cast<int>(name.size()));
        return length > 0 ? std::string(name.data()) : std::string();
    }

private:
    asio::ssl::stream<tcp::socket> stream_;
    Side side_;
};

}  // namespace

std::unique_ptr<Stream> plain_stream(tcp::socket socket) {
    return std::make_unique<PlainStream>(std::move(socket));
}

std::unique_ptr<Stream> tls_stream(tcp::socket socket, asio::ssl::context& context) {
    return std::make_unique<TlsStream>(std::move(socket), context, asio::ssl::stream_base::server);
}

std::unique_ptr<Stream> tls_client_stream(tcp::socket socket, asio::ssl::context& context, const std::string& host) {
    auto stream = std::make_unique<TlsStream>(std::move(socket), context, asio::ssl::stream_base::client);
    stream->expect_host(host);
    return stream;
}

}  // namespace fenwick
