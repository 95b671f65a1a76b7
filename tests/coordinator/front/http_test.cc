#include <catch2/catch.hpp>
#include <string>

#include "support.h"

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;

/// What comes back for `request` until the server closes or falls silent.
std::string exchange(std::uint16_t port, const std::string& request) {
    RawSocket socket(port);
    REQUIRE(socket.send(request));
    return socket.receive(1 << 20, 300ms);
}

bool begins_with(const std::string& text, const std::string& start) {
    return text.rfind(start, 0) == 0;
}

TEST_CASE("http: pages, their absence, and methods that are not served") {
    RunningFront front;
    const std::string page = exchange(front.http_port(), "GET /page?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(begins_with(page, "HTTP/1.1 200 OK\r\n"));
    CHECK(page.find("\r\n\r\n/page|a=b") != std::string::npos);
    CHECK(begins_with(exchange(front.http_port(), "GET /other HTTP/1.0\r\n\r\n"), "HTTP/1.0 404"));
    CHECK(begins_with(exchange(front.http_port(), "POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"),
                      "HTTP/1.1 405"));
    CHECK(
        begins_with(exchange(front.http_port(), "GET /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "HTTP/1.1 413"));
    const std::string head = exchange(front.http_port(), "HEAD /page HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(begins_with(head, "HTTP/1.1 200 OK\r\n"));
    CHECK(head.find("Content-Length: 6\r\n") != std::string::npos);
    CHECK(head.find("/page|") == std::string::npos);
}

TEST_CASE("http: a connection serves several requests, also when they come in pieces or together") {
    RunningFront front;
    RawSocket socket(front.http_port());
    REQUIRE(socket.send("GET /page?1 HTTP/1.1\r\nHo"));
    CHECK(socket.receive(1, 100ms).empty());
    REQUIRE(socket.send("st: x\r\n\r\nGET /page?2 HTTP/1.1\r\nHost: x\r\n\r\n"));
    const std::string both = socket.receive(1 << 20, 400ms);
    CHECK(both.find("/page|1") != std::string::npos);
    CHECK(both.find("/page|2") != std::string::npos);
    REQUIRE(socket.send("GET /page?3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    CHECK(socket.receive(1 << 20, 2s).find("/page|3") != std::string::npos);
    CHECK(socket.is_closed_within(1s));
}

TEST_CASE("http: what cannot be read is answered and closed, and what a page throws is not told") {
    ListenOptions http;
    http.limits.frame_bytes = 8192;
    http.limits.frame_time = 500ms;
    RunningFront front({}, http);
    CHECK(begins_with(exchange(front.http_port(), "\x16\x03\x01 nonsense\r\n\r\n"), "HTTP/1.1 400"));
    CHECK(begins_with(exchange(front.http_port(), "GET /" + std::string(10000, 'a') + " HTTP/1.1\r\n\r\n"),
                      "HTTP/1.1 431"));
    const std::string broken = exchange(front.http_port(), "GET /broken HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(begins_with(broken, "HTTP/1.1 500"));
    CHECK(broken.find("secret") == std::string::npos);
    RawSocket slow(front.http_port());
    REQUIRE(slow.send("GET /page HTTP/1.1\r\n"));
    CHECK(slow.is_closed_within(3s));
    CHECK(front.metric("fenwick_connections_dropped_total", "frame_deadline") == 1);
}

}  // namespace
}  // namespace fenwick::testing
