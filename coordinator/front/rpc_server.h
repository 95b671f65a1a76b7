// The Thrift port: framed transport, strict binary protocol, any generated processor behind it.
//
// Threads: one (the io_context's) reads and writes frames; a pool runs the calls, which may block on the store. Calls
// of one connection run one after the other; a call that waits (CallContext::wait) holds no thread.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coordinator/front/call.h"
#include "coordinator/front/front_metrics.h"
#include "coordinator/front/listener.h"
#include "coordinator/front/wait_room.h"

namespace fenwick {

/// Makes the processor of a new connection; its handlers may keep the context, which lives as long as the processor.
using ProcessorFactory = std::function<std::shared_ptr<apache::thrift::TProcessor>(CallContext&)>;

class RpcServer {
public:
    /// Listens at once (see Listener for what is thrown); serves when `io` runs. All references must outlive `io`'s
    /// work.
    RpcServer(boost::asio::io_context& io, boost::asio::thread_pool& pool, WaitRoom& waits,
              const ListenOptions& options, prometheus::Registry& registry, ProcessorFactory factory);

    [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
    /// On the thread of `io`.
    void close() { listener_.close(); }

private:
    struct Client;
    [[nodiscard]] boost::asio::awaitable<void> serve(Connection& connection);
    /// Nothing when the client left while its call waited.
    [[nodiscard]] boost::asio::awaitable<std::optional<CallReply>> answer(Client& client, Connection& connection,
                                                                          std::span<const std::uint8_t> request);
    [[nodiscard]] boost::asio::awaitable<bool> wait_for_change(const CallContext::Wait& wait, std::uint64_t calls,
                                                               Connection& connection);
    [[nodiscard]] std::string next_request_id();

    boost::asio::thread_pool& pool_;
    WaitRoom& waits_;
    FrontLimits limits_;
    ProcessorFactory factory_;
    PortMetrics port_metrics_;
    CallMetrics call_metrics_;
    std::string id_prefix_;
    std::uint64_t next_id_ = 0;
    Listener listener_;
};

}  // namespace fenwick
