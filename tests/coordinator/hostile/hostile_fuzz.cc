// Sends broken requests to a coordinator's API and HTTP ports as fast as it can: valid ones with bytes changed, cut,
// doubled or torn out, lengths that lie, and noise. Says how many; whether the coordinator bore it is for hostile.py to
// see. The same --seed sends the same inputs.
#include <fmt/format.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/idl/Fenwick.h"

namespace fenwick::testing {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

struct Options {
    std::uint16_t api_port = 0;
    std::uint16_t http_port = 0;
    double seconds = 600;
    std::int64_t inputs = 10'000'000;
    std::uint64_t seed = 1;
};

/// Calls of every method, as frames without their length.
std::vector<std::string> sample_calls() {
    using namespace apache::thrift;
    const auto buffer = std::make_shared<transport::TMemoryBuffer>();
    idl::FenwickClient client(std::make_shared<protocol::TBinaryProtocol>(buffer));
    idl::JobSpec spec;
    spec.model.__set_name("small");
    for (const char* text : {"a text", "another"}) {
        idl::DocumentRef document;
        document.__set_customId(text);
        document.source.__set_text(text);
        spec.documents.push_back(document);
    }
    spec.documents.emplace_back();
    spec.documents.back().__set_customId("tokens");
    spec.documents.back().source.__set_tokens({1, 2, 3});
    // To be listed and refused, not queued without end: the model's name is wrong in what is sent unchanged.
    spec.model.__set_name("no such model");
    const std::vector<std::function<void()>> calls = {
        [&] { client.send_authenticate("a token"); },
        [&] { client.send_getServerInfo(1); },
        [&] { client.send_getHealth(); },
        [&] { client.send_planJob(spec); },
        [&] { client.send_submitJob(spec, "key"); },
        [&] { client.send_getJob("job"); },
        [&] { client.send_waitJob("job", 1, 10); },
        [&] {
            client.send_listJobs("", 10, {idl::JobState::COMPLETED, idl::JobState::FAILED});
        },
        [&] { client.send_listDocuments("job", "7", 10, {idl::DocumentState::QUEUED}); },
        [&] { client.send_cancelJob("job"); },
        [&] { client.send_retryJob("job", true); },
        [&] { client.send_beginUpload("", 100); },
        [&] { client.send_putChunk("upload", 0, std::string(300, 'x'), 0); },
        [&] { client.send_commitUpload("upload"); },
        [&] { client.send_readResult("job", "results.jsonl", 0, 100); },
        [&] { client.send_readLogs("job", 0, 100); },
        [&] { client.send_describeState("job", "document"); },
        [&] { client.send_listWorkers("", 10); },
        [&] { client.send_drainWorker("gang"); },
        [&] { client.send_getUsage(""); },
    };
    std::vector<std::string> frames;
    for (const auto& call : calls) {
        buffer->resetBuffer();
        call();
        frames.push_back(buffer->getBufferAsString());
    }
    return frames;
}

const std::vector<std::string>& sample_requests() {
    static const std::vector<std::string> requests = {
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n",
        "GET /api/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token\r\n\r\n",
        "GET /api/job?id=job%2Fx&page=3&document=a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "HEAD /livez HTTP/1.0\r\n\r\n",
        "POST /readyz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 18446744073709551615\r\n\r\n",
    };
    return requests;
}

std::string big_endian(std::uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
            static_cast<char>(value)};
}

std::size_t below(Random& random, std::size_t limit) {
    return limit == 0 ? 0 : std::uniform_int_distribution<std::size_t>(0, limit - 1)(random);
}

std::string noise(Random& random, std::size_t most) {
    std::string bytes(below(random, most + 1), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

void mutate(Random& random, std::string& bytes) {
    static constexpr std::array<std::uint32_t, 10> kWords = {0,          1,          0x7fffffff, 0x80000000, 0xffffffff,
                                                             0x00010000, 0x01000000, 0x7ffffff0, 0x20000000, 255};
    for (std::size_t changes = 1 + below(random, 6); changes > 0; --changes) {
        const std::size_t at = below(random, bytes.size() + 1);
        switch (below(random, 7)) {
            case 0:
                if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
                break;
            case 1:
                if (at < bytes.size()) bytes[at] = static_cast<char>(random());
                break;
            case 2:
                bytes.insert(at, noise(random, 16));
                break;
            case 3:
                bytes.erase(at, below(random, 16));
                break;
            case 4:
                bytes.insert(at, bytes.substr(below(random, bytes.size() + 1), below(random, 64)));
                break;
            case 5:
                bytes.resize(at);
                break;
            default:
                if (bytes.size() >= 4)
                    bytes.replace(below(random, bytes.size() - 3), 4, big_endian(kWords[below(random, kWords.size())]));
        }
    }
}

std::string api_input(Random& random, const std::vector<std::string>& calls) {
    if (below(random, 20) == 0) return noise(random, 200);
    std::string body = calls[below(random, calls.size())];
    if (below(random, 10) != 0) mutate(random, body);
    auto length = static_cast<std::uint32_t>(body.size());
    if (below(random, 10) == 0) length = static_cast<std::uint32_t>(random() >> below(random, 64));
    return big_endian(length) + body;
}

std::string http_input(Random& random) {
    if (below(random, 20) == 0) return noise(random, 200);
    std::string request = sample_requests()[below(random, sample_requests().size())];
    if (below(random, 10) != 0) mutate(random, request);
    return request;
}

/// Sends inputs on one connection until the server closes it or `most` are sent; returns how many were sent whole.
std::int64_t send_on_one_connection(std::uint16_t port, std::int64_t most, const std::function<std::string()>& next) {
    asio::io_context io;
    tcp::socket socket(io);
    boost::system::error_code error;
    socket.connect({asio::ip::address_v4::loopback(), port}, error);
    if (error) return 0;  // at the cap, or out of local ports: the next one may do
    std::int64_t sent = 0;
    std::array<char, 16384> replies = {};
    while (sent < most) {
        asio::write(socket, asio::buffer(next()), error);
        if (error) break;
        ++sent;
        socket.non_blocking(true, error);
        while (!error) (void)socket.read_some(asio::buffer(replies), error);
        if (error != asio::error::would_block) break;  // closed by the server
        socket.non_blocking(false, error);
    }
    // Without lingering: closed ports must not run out in a minute of this.
    socket.set_option(asio::socket_base::linger(true, 0), error);
    socket.close(error);
    return sent;
}

int fuzz(const Options& options) {
    const std::vector<std::string> calls = sample_calls();
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
    std::array<std::int64_t, 2> sent = {0, 0};
    std::array<std::int64_t, 2> connections = {0, 0};
    const auto run = [&](std::size_t port, const std::function<std::string(Random&)>& make) {
        Random random(options.seed + port);
        int idle = 0;
        while (Clock::now() < end && sent[port] < options.inputs / 2 && idle < 1000) {
            const std::int64_t more = send_on_one_connection(port == 0 ? options.api_port : options.http_port, 64,
                                                             [&] { return make(random); });
            sent[port] += more;
            ++connections[port];
            idle = more == 0 ? idle + 1 : 0;
            if (more == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    };
    std::thread http(run, 1, [](Random& random) { return http_input(random); });
    run(0, [&](Random& random) { return api_input(random, calls); });
    http.join();
    fmt::print(
        "{{\"api_inputs\": {}, \"api_connections\": {}, \"http_inputs\": {}, \"http_connections\": {}, \"seed\": "
        "{}}}\n",
        sent[0], connections[0], sent[1], connections[1], options.seed);
    return sent[0] > 0 && sent[1] > 0 ? 0 : 1;
}

}  // namespace
}  // namespace fenwick::testing

int main(int argc, char** argv) {
    fenwick::testing::Options options;
    CLI::App app("Sends broken requests to a coordinator's ports", "hostile_fuzz");
    app.add_option("--api-port", options.api_port)->required();
    app.add_option("--http-port", options.http_port)->required();
    app.add_option("--seconds", options.seconds, "Stop after so long")->capture_default_str();
    app.add_option("--inputs", options.inputs, "... or so many inputs")->capture_default_str();
    app.add_option("--seed", options.seed)->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        return fenwick::testing::fuzz(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "hostile_fuzz: {}\n", error.what());
        return 1;
    }
}
