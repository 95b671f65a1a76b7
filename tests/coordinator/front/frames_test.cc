// Frames from clients that are wrong, hostile or merely large (CASES I1; the second half of I3).
#include <thrift/TApplicationException.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "support.h"

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;

ListenOptions small_frames(std::int64_t bytes) {
    ListenOptions options;
    options.limits.frame_bytes = bytes;
    return options;
}

/// Of putChunk with `data_bytes` of data, as a frame without its length.
std::string chunk_call(std::size_t data_bytes) {
    const auto string_field = [](char id, const std::string& text) {
        return std::string("\x0b\x00", 2) + id + framed(text);  // a string is a length and its bytes, as a frame is
    };
    return call_header("putChunk") + string_field('\x01', "u") + string_field('\x03', std::string(data_bytes, 'x')) +
           std::string(1, '\0');
}

TEST_CASE("front: a frame at the limit is served, one byte more is refused") {
    const std::size_t overhead = chunk_call(0).size();
    RunningFront front(small_frames(65536));
    RawSocket fits(front.rpc_port());
    REQUIRE(fits.send(framed(chunk_call(65536 - overhead))));
    const std::string reply = fits.receive(4, 2s);
    REQUIRE(reply.size() == 4);
    CHECK_FALSE(fits.is_closed_within(100ms));

    RawSocket exceeds(front.rpc_port());
    REQUIRE(exceeds.send(framed(chunk_call(65537 - overhead)).substr(0, 4)));
    CHECK(exceeds.is_closed_within(1s));
    CHECK(front.metric("fenwick_connections_dropped_total", "frame_size") == 1);
}

TEST_CASE("front: CASES I1: hostile lengths and bodies, 30 connections each, beside a client that is answered") {
    RunningFront front;
    const std::int64_t memory = resident_bytes();
    const std::int64_t descriptors = open_descriptors();
    {
        const Pinger pinger(front.rpc_port());
        const std::vector<std::string> closed_at_once = {
            std::string("\x7f\xff\xff\xff", 4), std::string("\xff\xff\xff\xff", 4), std::string("\x80\x00\x00\x00", 4),
            std::string("\x00\x00\x00\x00", 4), "GET / HTTP/1.1\r\n\r\n",           std::string("\x16\x03\x01\x00", 4),
            std::string("\x00\x80\x00\x01", 4)};  // the last one: limit + 1
        for (const std::string& bytes : closed_at_once) {
            std::vector<RawSocket> sockets;
            for (int copy = 0; copy < 30; ++copy) {
                sockets.emplace_back(front.rpc_port());
                sockets.back().send(bytes);
            }
            for (RawSocket& socket : sockets) CHECK(socket.is_closed_within(1s));
        }
        // listJobs with a list of 2^31 - 1 integers; a string of length -1: answered, then closed.
        const std::vector<std::string> bodies = {
            call_header("listJobs") + std::string("\x0f\x00\x03\x08\x7f\xff\xff\xff", 8),
            call_header("getHealth") + std::string("\x0f\x00\x01\x08\x7f\xff\xff\xff", 8),
            call_header("cancelJob") + std::string("\x0b\x00\x01\xff\xff\xff\xff", 7)};
        for (const std::string& body : bodies) {
            for (int copy = 0; copy < 30; ++copy) {
                RawSocket socket(front.rpc_port());
                REQUIRE(socket.send(framed(body)));
                const std::string reply = socket.receive(4096, 1s);
                CHECK(application_error(reply).find("cannot be read") != std::string::npos);
                CHECK(socket.is_closed_within(1s));
            }
        }
        // Cut half way and held open: nobody is kept waiting by them.
        std::vector<RawSocket> halves;
        for (int copy = 0; copy < 30; ++copy) {
            halves.emplace_back(front.rpc_port());
            REQUIRE(halves.back().send(framed(chunk_call(6 << 20)).substr(0, 100)));
        }
        CHECK(holds_within(2s, [&] { return pinger.answered() > 20; }));
        CHECK(pinger.failed() == 0);
        CHECK(pinger.slowest() < 200ms);
        CHECK(resident_bytes() - memory < std::int64_t{256} << 20);
    }
    // Descriptors return to what they were.
    CHECK(holds_within(2s, [&] { return open_descriptors() == descriptors; }));
    CHECK(front.metric("fenwick_connections_open", "rpc") == 0);
}

TEST_CASE("front: nesting beyond the limit is answered as unreadable") {
    RunningFront front;
    std::string body = call_header("getHealth");
    for (int depth = 0; depth < 200'000; ++depth)
        body += std::string("\x0c\x00\x09", 3);  // a struct in a struct in ...
    RawSocket socket(front.rpc_port());
    REQUIRE(socket.send(framed(body)));
    CHECK(application_error(socket.receive(4096, 2s)).find("cannot be read") != std::string::npos);
    SampleClient client(front.rpc_port());
    idl::Health health;
    client->getHealth(health);
    CHECK(health.reason == "fine");
}

TEST_CASE("front: what the IDL does not declare reaches the log, not the client") {
    RunningFront front;
    SampleClient client(front.rpc_port());
    idl::Job job;
    try {
        client->getJob(job, "any");
        FAIL("no exception came");
    } catch (const apache::thrift::TApplicationException& error) {
        CHECK(std::string(error.what()).find("secret") == std::string::npos);
        CHECK(std::string(error.what()).find("request ") != std::string::npos);
    }
    // The connection goes on, declared exceptions come whole, and unknown methods are told so.
    CHECK_THROWS_AS(client->cancelJob(job, "no such job"), idl::ServiceError);
    RawSocket socket(front.rpc_port());
    REQUIRE(socket.send(framed(call_header("noSuchMethod") + std::string(1, '\0'))));
    CHECK(application_error(socket.receive(4096, 1s)).find("noSuchMethod") != std::string::npos);
}

TEST_CASE("front: CASES I3: one connection carries far more than 100 MiB") {
    RunningFront front;
    SampleClient client(front.rpc_port());
    const std::string mebibyte(1 << 20, 'x');
    for (int request = 0; request < 130; ++request) {
        idl::Upload upload;
        client->putChunk(upload, "u", 0, mebibyte, 0);
        REQUIRE(upload.received == 1 << 20);
    }
}

TEST_CASE("front: requests that come together are answered one after the other") {
    RunningFront front;
    RawSocket socket(front.rpc_port());
    REQUIRE(socket.send(health_call() + health_call() + health_call()));
    RawSocket single(front.rpc_port());
    REQUIRE(single.send(health_call()));
    const std::string one = single.receive(65536, 200ms);
    REQUIRE_FALSE(one.empty());
    CHECK(socket.receive(3 * one.size(), 2s) == one + one + one);
}

}  // namespace
}  // namespace fenwick::testing
