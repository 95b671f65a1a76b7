// A byte stream to one peer: a plain socket or TLS over it, alike for those who read and write frames.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace fenwick {

/// All calls on one executor. Reads and writes throw boost::system::system_error, which is also how `close` ends them.
class Stream {
public:
    virtual ~Stream() = default;
    /// TLS: agrees on keys and checks certificates. Plain: nothing.
    [[nodiscard]] virtual boost::asio::awaitable<void> handshake() = 0;
    /// At least one byte.
    [[nodiscard]] virtual boost::asio::awaitable<std::size_t> read_some(boost::asio::mutable_buffer out) = 0;
    /// All of `bytes`.
    [[nodiscard]] virtual boost::asio::awaitable<void> write(boost::asio::const_buffer bytes) = 0;
    /// Whether the peer has closed its end, as far as the system knows by now; does not wait.
    [[nodiscard]] virtual bool peer_has_left() = 0;
    /// Says goodbye as far as that needs no waiting, then closes. Never throws; may be repeated.
    virtual void close() noexcept = 0;
    /// Common name of the client's verified certificate; empty without one.
    [[nodiscard]] virtual std::string certificate_name() const = 0;
};

[[nodiscard]] std::unique_ptr<Stream> plain_stream(boost::asio::ip::tcp::socket socket);
[[nodiscard]] std::unique_ptr<Stream> tls_stream(boost::asio::ip::tcp::socket socket,
                                                 boost::asio::ssl::context& context);
/// The client's end; the certificate must be for `host`.
[[nodiscard]] std::unique_ptr<Stream> tls_client_stream(boost::asio::ip::tcp::socket socket,
                                                        boost::asio::ssl::context& context, const std::string& host);

}  // namespace fenwick
