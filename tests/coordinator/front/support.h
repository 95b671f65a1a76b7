// Scaffolding of the front's tests: a front with a processor of our own behind it, clients that behave, and raw sockets
// for those that do not.
#pragma once

#include <prometheus/registry.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/front/http_server.h"
#include "coordinator/front/rpc_server.h"
#include "coordinator/idl/Fenwick.h"

namespace fenwick::testing {

/// What the service behind the front answers; everything else of the IDL answers empty.
class SampleService final : public idl::FenwickNull {
public:
    SampleService(CallContext& context, const std::atomic<std::int64_t>& version)
        : context_(context), version_(version) {}
    void getHealth(idl::Health& health) override;                   ///< reason "fine"
    void getJob(idl::Job& job, const std::string& id) override;     ///< throws what the IDL does not declare
    void cancelJob(idl::Job& job, const std::string& id) override;  ///< throws a ServiceError
    void waitJob(idl::Job& job, const std::string& id, std::int64_t since, std::int64_t timeout_ms) override;
    void putChunk(idl::Upload& upload, const std::string& id, std::int64_t offset, const std::string& data,
                  std::int64_t crc) override;  ///< received: bytes of data
    void readResult(idl::ResultChunk& chunk, const std::string& id, const std::string& file, std::int64_t offset,
                    std::int32_t max_bytes) override;  ///< max_bytes zeros

private:
    CallContext& context_;
    const std::atomic<std::int64_t>& version_;
};

/// An RPC and an HTTP port on loopback, run by threads of their own until destruction.
class RunningFront {
public:
    explicit RunningFront(const ListenOptions& rpc = {}, const ListenOptions& http = {}, int pool_threads = 2);
    ~RunningFront();
    RunningFront(const RunningFront&) = delete;
    RunningFront& operator=(const RunningFront&) = delete;

    [[nodiscard]] std::uint16_t rpc_port() const { return rpc_->port(); }
    [[nodiscard]] std::uint16_t http_port() const { return http_->port(); }
    /// Makes waitJob's job have this version, and calls it out.
    void set_version(std::int64_t version);
    /// Sum of a counter or gauge over its labels, or with the label value alone.
    [[nodiscard]] double metric(const std::string& name, const std::string& label_value = "") const;

private:
    boost::asio::io_context io_;
    boost::asio::thread_pool pool_;
    WaitRoom waits_{io_};
    prometheus::Registry registry_;
    std::atomic<std::int64_t> version_{1};
    std::unique_ptr<RpcServer> rpc_;
    std::unique_ptr<HttpServer> http_;
    std::thread thread_;
};

/// A client that behaves, by Thrift's own library.
class SampleClient {
public:
    explicit SampleClient(std::uint16_t port);
    idl::FenwickClient* operator->() { return client_.get(); }

private:
    std::shared_ptr<apache::thrift::transport::TTransport> transport_;
    std::unique_ptr<idl::FenwickClient> client_;
};

/// A TCP connection to loopback that sends what it is told to.
class RawSocket {
public:
    explicit RawSocket(std::uint16_t port);
    RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    RawSocket(const RawSocket&) = delete;
    RawSocket& operator=(const RawSocket&) = delete;
    RawSocket& operator=(RawSocket&&) = delete;
    ~RawSocket();
    /// False when the peer has closed.
    bool send(const std::string& bytes);
    /// What comes until the peer closes, `bytes` are there or `time` is over.
    [[nodiscard]] std::string receive(std::size_t bytes, std::chrono::milliseconds time);
    /// Whether the peer closes within `time`; what it sends before that is thrown away.
    [[nodiscard]] bool is_closed_within(std::chrono::milliseconds time);

private:
    int fd_ = -1;
};

/// `body` with its length in front.
[[nodiscard]] std::string framed(const std::string& body);
/// The header of a call in the strict binary protocol, with sequence number 7.
[[nodiscard]] std::string call_header(const std::string& method);
/// A whole frame that calls getHealth.
[[nodiscard]] std::string health_call();
/// The text of the TApplicationException in a reply frame; empty when it is none.
[[nodiscard]] std::string application_error(const std::string& reply_frame);

/// Calls getHealth until destruction and keeps the slowest answer's time.
class Pinger {
public:
    explicit Pinger(std::uint16_t port);
    ~Pinger();
    Pinger(const Pinger&) = delete;
    Pinger& operator=(const Pinger&) = delete;
    [[nodiscard]] std::chrono::milliseconds slowest() const { return std::chrono::milliseconds(slowest_.load()); }
    [[nodiscard]] std::int64_t answered() const { return answered_.load(); }
    [[nodiscard]] std::int64_t failed() const { return failed_.load(); }

private:
    std::atomic<std::int64_t> slowest_{0};
    std::atomic<std::int64_t> answered_{0};
    std::atomic<std::int64_t> failed_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

/// Of this process.
[[nodiscard]] std::int64_t resident_bytes();
[[nodiscard]] std::int64_t open_descriptors();
/// Whether `condition` holds within `time`.
[[nodiscard]] bool holds_within(std::chrono::milliseconds time, const std::function<bool()>& condition);

}  // namespace fenwick::testing
