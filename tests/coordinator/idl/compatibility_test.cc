// Version 1 of the public service, as bytes on the wire: whoever speaks it is understood, and understands. The bytes in
// tests/data/idl/v1 were written once, by version 1 itself (the hidden test below), and stay as they are.
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <string>

#include "coordinator/front/call.h"
#include "samples.h"
#include "tests/core/temporary_folder.h"

namespace fenwick::testing {
namespace {

using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TMemoryBuffer;

constexpr std::size_t kLengthBytes = 4;

std::filesystem::path recorded(const std::string& name) {
    return std::filesystem::path(FENWICK_TEST_DATA) / "idl" / "v1" / name;
}

std::string request_of(const Exchange& exchange) {
    const auto buffer = std::make_shared<TMemoryBuffer>();
    idl::FenwickClient client(std::make_shared<TBinaryProtocol>(buffer));
    exchange.send(client);
    return buffer->getBufferAsString();
}

/// The reply of today's processor, without the frame's length.
std::string reply_to(const std::string& request, int& wrong_arguments) {
    idl::FenwickProcessor processor(sample_handler(wrong_arguments));
    CallContext context;
    const CallReply reply = run_call(processor, {reinterpret_cast<const std::uint8_t*>(request.data()), request.size()},
                                     FrontLimits(), context);
    CHECK_FALSE(reply.malformed);
    return std::string(reply.frame.begin() + kLengthBytes, reply.frame.end());
}

bool understands(const Exchange& exchange, const std::string& reply) {
    const auto buffer = std::make_shared<TMemoryBuffer>();
    buffer->write(reinterpret_cast<const std::uint8_t*>(reply.data()), static_cast<std::uint32_t>(reply.size()));
    idl::FenwickClient client(std::make_shared<TBinaryProtocol>(buffer));
    return exchange.receive(client);
}

TEST_CASE("idl: requests of version 1 are understood") {
    for (const Exchange& exchange : exchanges()) {
        INFO(exchange.method);
        int wrong_arguments = 0;
        const std::string reply = reply_to(get(recorded(exchange.method + ".request")), wrong_arguments);
        CHECK(wrong_arguments == 0);
        CHECK(understands(exchange, reply));
    }
}

TEST_CASE("idl: replies of version 1 are understood") {
    for (const Exchange& exchange : exchanges()) {
        INFO(exchange.method);
        CHECK(understands(exchange, get(recorded(exchange.method + ".reply"))));
    }
}

TEST_CASE("idl: version 1 is sent as it was") {
    // New optional fields are not set by these samples: what version 1 said is said in the same bytes still.
    for (const Exchange& exchange : exchanges()) {
        INFO(exchange.method);
        int wrong_arguments = 0;
        const std::string request = get(recorded(exchange.method + ".request"));
        CHECK(request_of(exchange) == request);
        CHECK(reply_to(request, wrong_arguments) == get(recorded(exchange.method + ".reply")));
    }
}

TEST_CASE("idl: what is recorded is every call, and nothing else") {
    std::set<std::string> methods;
    for (const Exchange& exchange : exchanges()) methods.insert(exchange.method);
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(recorded("")))
        files.insert(entry.path().stem().string());
    CHECK(files == methods);
}

/// For a new version: record it into a folder of its own, and keep the older ones.
TEST_CASE("idl: record this version", "[.record]") {
    std::filesystem::create_directories(recorded(""));
    for (const Exchange& exchange : exchanges()) {
        int wrong_arguments = 0;
        const std::string request = request_of(exchange);
        put(recorded(exchange.method + ".request"), request);
        put(recorded(exchange.method + ".reply"), reply_to(request, wrong_arguments));
        REQUIRE(wrong_arguments == 0);
    }
}

}  // namespace
}  // namespace fenwick::testing
