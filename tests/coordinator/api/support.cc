#include "support.h"

#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <catch2/catch.hpp>

namespace fenwick::testing {

namespace http = boost::beast::http;

LocalCoordinator::LocalCoordinator(const std::function<void(ServeConfig&)>& change) {
    std::filesystem::create_directories(roots());
    config_.data = folder_ / "data";
    config_.roots = {roots()};
    config_.models = {{"small", small_model(folder_)}};
    config_.api.port = config_.http.port = config_.control.port = 0;
    if (change) change(config_);
    start();
}

void LocalCoordinator::start() {
    service_ = std::make_unique<Service>(config_);
    ports_ = std::make_unique<ClientPorts>(*service_);
    service_->start();
}

void LocalCoordinator::restart() {
    service_->stop();
    ports_.reset();
    service_.reset();
    start();
}

ApiClient::ApiClient(std::uint16_t port, const std::string& token) {
    using namespace apache::thrift;
    const auto socket = std::make_shared<transport::TSocket>("127.0.0.1", port);
    socket->setRecvTimeout(30'000);
    const auto framed = std::make_shared<transport::TFramedTransport>(socket);
    client_ = std::make_unique<idl::FenwickClient>(std::make_shared<protocol::TBinaryProtocol>(framed));
    framed->open();
    if (!token.empty()) client_->authenticate(token);
}

idl::JobSpec text_job(const std::string& text) {
    idl::JobSpec spec;
    spec.model.__set_name("small");
    idl::DocumentRef document;
    document.__set_customId("a");
    document.source.__set_text(text);
    spec.documents.push_back(document);
    return spec;
}

idl::ServiceError refusal_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const idl::ServiceError& error) {
        CHECK_FALSE(error.requestId.empty());
        return error;
    }
    FAIL("the call was not refused");
    return {};
}

std::uint16_t free_port() {
    boost::asio::io_context io;
    const boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    return acceptor.local_endpoint().port();
}

HttpAnswer http_get(std::uint16_t port, const std::string& target, const std::string& token) {
    boost::asio::io_context io;
    boost::asio::ip::tcp::socket socket(io);
    socket.connect({boost::asio::ip::address_v4::loopback(), port});
    http::request<http::string_body> request(http::verb::get, target, 11);
    request.set(http::field::host, "localhost");
    request.keep_alive(false);
    if (!token.empty()) request.set(http::field::authorization, "Bearer " + token);
    http::write(socket, request);
    boost::beast::flat_buffer buffer;
    http::response<http::string_body> response;
    http::read(socket, buffer, response);
    return {static_cast<int>(response.result_int()), response.body()};
}

}  // namespace fenwick::testing
