#include "coordinator/front/rpc_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

namespace fenwick {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kLengthBytes = 4;

/// What a length that is out of range more likely is.
std::string hint(std::span<const std::uint8_t> start) {
    if (std::memcmp(start.data(), "GET ", 4) == 0 || std::memcmp(start.data(), "POST", 4) == 0) {
        return "; this looks like HTTP, which has its own port";
    }
    if (start[0] == 0x16 && start[1] == 0x03) return "; this looks like TLS, which this port does not speak";
    return {};
}

/// Waits for a whole frame at the start of the input. Nothing when the connection ended or was dropped.
asio::awaitable<std::optional<std::size_t>> receive_frame(Connection& connection, std::int64_t limit) {
    while (connection.input().size() < kLengthBytes) {
        if (!co_await connection.receive()) co_return std::nullopt;
    }
    std::uint32_t raw = 0;
    std::memcpy(&raw, connection.input().data(), kLengthBytes);
    const std::int64_t length = static_cast<std::int32_t>(ntohl(raw));
    if (length <= 0 || length > limit) {
        connection.drop(Drop::kFrameSize, fmt::format("frame length: expected 1 to {} bytes, found {}{}", limit, length,
                                                      hint(connection.input())));
        co_return std::nullopt;
    }
    while (connection.input().size() < kLengthBytes + static_cast<std::size_t>(length)) {
        if (!co_await connection.receive()) co_return std::nullopt;
    }
    co_return static_cast<std::size_t>(length);
}

}  // namespace

/// The context comes first: the processor's handlers keep a reference to it.
struct RpcServer::Client {
    CallContext context;
    std::shared_ptr<apache::thrift::TProcessor> processor;
};

RpcServer::RpcServer(asio::io_context& io, asio::thread_pool& pool, WaitRoom& waits, const ListenOptions& options,
                     prometheus::Registry& registry, ProcessorFactory factory)
    : pool_(pool),
      waits_(waits),
      limits_(options.limits),
      factory_(std::move(factory)),
      port_metrics_(registry, "rpc"),
      call_metrics_(registry),
      id_prefix_(fmt::format("{:08x}", std::random_device()())),
      listener_(io, options, port_metrics_, "rpc", [this](Connection& connection) { return serve(connection); }) {}

std::string RpcServer::next_request_id() {
    return fmt::format("{}-{}", id_prefix_, ++next_id_);
}

asio::awaitable<void> RpcServer::serve(Connection& connection) {
    Client client;
    client.context.peer = connection.peer();
    client.context.certificate_name = connection.stream().certificate_name();
    client.processor = factory_(client.context);
    for (;;) {
        const auto length = co_await receive_frame(connection, limits_.frame_bytes);
        if (!length) co_return;
        connection.expect_nothing();
        connection.prove();
        const auto reply = co_await answer(client, connection, connection.input().subspan(kLengthBytes, *length));
        if (!reply) co_return;
        if (!reply->frame.empty() && !co_await connection.send(reply->frame)) co_return;
        if (reply->malformed) {
            connection.drop(Drop::kMalformed, "a request that cannot be read");
            co_return;
        }
        connection.consume(kLengthBytes + *length);
    }
}

asio::awaitable<std::optional<CallReply>> RpcServer::answer(Client& client, Connection& connection,
                                                            std::span<const std::uint8_t> request) {
    CallContext& context = client.context;
    context.request_id = next_request_id();
    context.outcome = "ok";
    context.begun = std::chrono::steady_clock::now();
    CallReply reply;
    for (;;) {
        context.wait.reset();
        const std::uint64_t calls = waits_.calls();
        reply = co_await asio::co_spawn(
            pool_,
            [&]() -> asio::awaitable<CallReply> { co_return run_call(*client.processor, request, limits_, context); },
            asio::use_awaitable);
        if (!context.wait || waits_.closed()) break;
        if (!co_await wait_for_change(*context.wait, calls, connection)) co_return std::nullopt;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - context.begun;
    call_metrics_.called(reply.method, context.outcome, seconds.count());
    co_return reply;
}

/// False when the client has left: nobody waits for the answer, and its connection is wanted for others.
asio::awaitable<bool> RpcServer::wait_for_change(const CallContext::Wait& wait, std::uint64_t calls,
                                                 Connection& connection) {
    constexpr auto kLookInterval = std::chrono::seconds(1);
    for (;;) {
        const auto now = WaitRoom::Clock::now();
        if (now >= wait.until || waits_.closed()) co_return true;
        if (co_await waits_.wait(wait.topic, calls, std::min(wait.until, now + kLookInterval))) co_return true;
        if (connection.stream().peer_has_left()) co_return false;
        calls = waits_.calls();
    }
}

}  // namespace fenwick
