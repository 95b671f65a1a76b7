#include "coordinator/front/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/none.hpp>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

namespace fenwick {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

using Parser = http::request_parser<http::empty_body>;

std::string to_bytes(const HttpReply& reply, unsigned version, bool keep_alive, bool head) {
    http::response<http::string_body> response(static_cast<http::status>(reply.status), version);
    response.set(http::field::server, "fenwick");
    response.set(http::field::content_type, reply.content_type);
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    response.set(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "frame-ancestors 'none'");
    if (reply.status == 401) response.set(http::field::www_authenticate, "Bearer");
    if (reply.status == 405) response.set(http::field::allow, "GET, HEAD");
    response.keep_alive(keep_alive);
    response.content_length(reply.body.size());
    if (!head) response.body() = reply.body;
    std::ostringstream out;
    if (head) {
        out << response.base();  // the length of what GET would give, and no body
    } else {
        out << response;
    }
    return std::move(out).str();
}

HttpReply refusal(int status, const std::string& text) {
    HttpReply reply;
    reply.status = status;
    reply.body = text + "\n";
    return reply;
}

std::optional<HttpReply> refused_request(const Parser& parser) {
    const auto method = parser.get().method();
    if (method != http::verb::get && method != http::verb::head)
        return refusal(405, "only GET and HEAD are served here");
    if (parser.get().has_content_length() || parser.get().chunked()) return refusal(413, "requests have no body here");
    return std::nullopt;
}

HttpRequest to_request(const Parser& parser, const Connection& connection) {
    const auto target = parser.get().target();
    const std::string text(target.data(), target.size());
    const std::size_t mark = text.find('?');
    HttpRequest request;
    request.path = text.substr(0, mark);
    if (mark != std::string::npos) request.query = text.substr(mark + 1);
    const auto authorization = parser.get()[http::field::authorization];
    request.certificate_name = connection.stream().certificate_name();
    request.authorization.assign(authorization.data(), authorization.size());
    return request;
}

/// Parses the header at the start of the input: its bytes, or nothing when the connection ended.
asio::awaitable<std::optional<std::size_t>> receive_header(Connection& connection, Parser& parser,
                                                           boost::system::error_code& error) {
    std::size_t parsed = 0;
    for (;;) {
        const auto input = connection.input().subspan(parsed);
        if (!input.empty()) {
            error.clear();
            parsed += parser.put(asio::buffer(input.data(), input.size()), error);
            if (error == http::error::need_more) error.clear();
            if (error || parser.is_header_done()) co_return parsed;
        }
        if (!co_await connection.receive()) co_return std::nullopt;
    }
}

}  // namespace

HttpServer::HttpServer(asio::io_context& io, asio::thread_pool& pool, const ListenOptions& options,
                       prometheus::Registry& registry, HttpHandler handler)
    : pool_(pool),
      handler_(std::move(handler)),
      port_metrics_(registry, "http"),
      listener_(io, options, port_metrics_, "http", [this](Connection& connection) { return serve(connection); }) {}

HttpReply HttpServer::handle(const HttpRequest& request) const {
    try {
        return handler_(request);
    } catch (const std::exception& error) {
        spdlog::error("http port: {}: {}", request.path, error.what());
        return refusal(500, "internal error; the server's log says more");
    }
}

asio::awaitable<void> HttpServer::serve(Connection& connection) {
    for (;;) {
        Parser parser;
        parser.header_limit(static_cast<std::uint32_t>(connection.table().limits().frame_bytes));
        parser.body_limit(boost::none);  // a body is refused below, whatever its length
        boost::system::error_code error;
        const auto header = co_await receive_header(connection, parser, error);
        if (!header) co_return;
        connection.expect_nothing();
        HttpReply reply;
        bool keep_alive = false;
        bool head = false;
        unsigned version = 11;
        if (error) {
            reply = refusal(error == http::error::header_limit ? 431 : 400,
                            "the request cannot be read: " + error.message());
        } else {
            connection.prove();
            version = parser.get().version();
            head = parser.get().method() == http::verb::head;
            if (const auto refused = refused_request(parser)) {
                reply = *refused;  // and the connection closed: its body is not read
            } else {
                keep_alive = parser.keep_alive();
                const HttpRequest request = to_request(parser, connection);
                reply = co_await asio::co_spawn(
                    pool_, [&]() -> asio::awaitable<HttpReply> { co_return handle(request); }, asio::use_awaitable);
            }
        }
        const std::string bytes = to_bytes(reply, version, keep_alive, head);
        if (!co_await connection.send({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})) co_return;
        if (error) connection.drop(Drop::kMalformed, "a request that cannot be read: " + error.message());
        if (!keep_alive) co_return;
        connection.consume(*header);
    }
}

}  // namespace fenwick
