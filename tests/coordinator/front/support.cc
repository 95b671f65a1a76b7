#include "support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <thrift/TApplicationException.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TMemoryBuffer;
using apache::thrift::transport::TSocket;
using Clock = std::chrono::steady_clock;

HttpReply sample_page(const HttpRequest& request) {
    if (request.path == "/broken") throw std::runtime_error("a secret of the handler");
    HttpReply reply;
    if (request.path != "/page") reply.status = 404;
    reply.body = request.path + "|" + request.query;
    return reply;
}

}  // namespace

void SampleService::getHealth(idl::Health& health) {
    health.reason = "fine";
}
void SampleService::getJob(idl::Job& /*job*/, const std::string& /*id*/) {
    throw std::runtime_error("a secret of the handler");
}
void SampleService::cancelJob(idl::Job& /*job*/, const std::string& id) {
    idl::ServiceError error;
    error.code = idl::ErrorCode::NOT_FOUND;
    error.message = id;
    error.requestId = context_.request_id;
    throw error;
}
void SampleService::waitJob(idl::Job& job, const std::string& id, std::int64_t since, std::int64_t timeout_ms) {
    job.version = version_.load();
    const auto until = context_.begun + std::chrono::milliseconds(std::clamp<std::int64_t>(timeout_ms, 0, 60'000));
    if (job.version <= since && Clock::now() < until) context_.wait = CallContext::Wait{id, until};
}
void SampleService::putChunk(idl::Upload& upload, const std::string& /*id*/, std::int64_t /*offset*/,
                             const std::string& data, std::int64_t /*crc*/) {
    upload.received = static_cast<std::int64_t>(data.size());
}
void SampleService::readResult(idl::ResultChunk& chunk, const std::string& /*id*/, const std::string& /*file*/,
                               std::int64_t /*offset*/, std::int32_t max_bytes) {
    constexpr std::int32_t kMost = 8 << 20;  // clients do not say how much memory is taken
    chunk.data.assign(static_cast<std::size_t>(std::clamp(max_bytes, 0, kMost)), '\0');
}

RunningFront::RunningFront(const ListenOptions& rpc, const ListenOptions& http, int pool_threads)
    : pool_(static_cast<std::size_t>(pool_threads)) {
    rpc_ = std::make_unique<RpcServer>(io_, pool_, waits_, rpc, registry_, [this](CallContext& context) {
        return std::make_shared<idl::FenwickProcessor>(std::make_shared<SampleService>(context, version_));
    });
    http_ = std::make_unique<HttpServer>(io_, pool_, http, registry_, sample_page);
    thread_ = std::thread([this] { io_.run(); });
}

RunningFront::~RunningFront() {
    boost::asio::post(io_, [this] {
        rpc_->close();
        http_->close();
        waits_.close();
    });
    thread_.join();  // run() returns when the last connection's coroutine has ended
    pool_.join();
}

void RunningFront::set_version(std::int64_t version) {
    version_ = version;
    waits_.call("job");
}

double RunningFront::metric(const std::string& name, const std::string& label_value) const {
    double sum = 0;
    for (const auto& family : registry_.Collect()) {
        if (family.name != name) continue;
        for (const auto& series : family.metric) {
            const bool counts =
                label_value.empty() || std::any_of(series.label.begin(), series.label.end(),
                                                   [&](const auto& label) { return label.value == label_value; });
            if (counts) sum += series.counter.value + series.gauge.value;
        }
    }
    return sum;
}

SampleClient::SampleClient(std::uint16_t port) {
    auto socket = std::make_shared<TSocket>("127.0.0.1", port);
    socket->setRecvTimeout(20'000);
    transport_ = std::make_shared<TFramedTransport>(socket);
    client_ = std::make_unique<idl::FenwickClient>(std::make_shared<TBinaryProtocol>(transport_));
    transport_->open();
}

RawSocket::RawSocket(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "socket");
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        const int error = errno;
        ::close(fd_);
        throw std::system_error(error, std::generic_category(), "connect");
    }
}

RawSocket::~RawSocket() {
    if (fd_ >= 0) ::close(fd_);
}

bool RawSocket::send(const std::string& bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
        const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (count <= 0) return false;
        sent += static_cast<std::size_t>(count);
    }
    return true;
}

std::string RawSocket::receive(std::size_t bytes, std::chrono::milliseconds time) {
    std::string received;
    const auto until = Clock::now() + time;
    while (received.size() < bytes) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        pollfd wanted = {fd_, POLLIN, 0};
        if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) <= 0) break;
        char buffer[65536];
        const ssize_t count = ::recv(fd_, buffer, std::min(sizeof buffer, bytes - received.size()), 0);
        if (count <= 0) break;
        received.append(buffer, static_cast<std::size_t>(count));
    }
    return received;
}

bool RawSocket::is_closed_within(std::chrono::milliseconds time) {
    const auto until = Clock::now() + time;
    for (;;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        pollfd wanted = {fd_, POLLIN, 0};
        if (left.count() <= 0 || ::poll(&wanted, 1, static_cast<int>(left.count())) <= 0) return false;
        char buffer[65536];
        if (::recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
    }
}

std::string framed(const std::string& body) {
    const std::uint32_t length = htonl(static_cast<std::uint32_t>(body.size()));
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + body;
}

std::string call_header(const std::string& method) {
    const std::uint32_t length = htonl(static_cast<std::uint32_t>(method.size()));
    return std::string("\x80\x01\x00\x01", 4) + std::string(reinterpret_cast<const char*>(&length), sizeof length) +
           method + std::string("\x00\x00\x00\x07", 4);
}

std::string health_call() {
    return framed(call_header("getHealth") + std::string(1, '\0'));
}

std::string application_error(const std::string& reply_frame) {
    if (reply_frame.size() <= 4) return {};
    auto buffer = std::make_shared<TMemoryBuffer>();
    buffer->write(reinterpret_cast<const std::uint8_t*>(reply_frame.data()) + 4,
                  static_cast<std::uint32_t>(reply_frame.size() - 4));
    TBinaryProtocol in(buffer);
    std::string name;
    apache::thrift::protocol::TMessageType type = apache::thrift::protocol::T_CALL;
    std::int32_t sequence = 0;
    in.readMessageBegin(name, type, sequence);
    if (type != apache::thrift::protocol::T_EXCEPTION) return {};
    apache::thrift::TApplicationException error;
    error.read(&in);
    return error.what();
}

Pinger::Pinger(std::uint16_t port)
    : thread_([this, port] {
          try {
              SampleClient client(port);
              while (!stop_) {
                  const auto begun = Clock::now();
                  idl::Health health;
                  client->getHealth(health);
                  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
                  slowest_ = std::max(slowest_.load(), static_cast<std::int64_t>(took.count()));
                  ++answered_;
                  std::this_thread::sleep_for(10ms);
              }
          } catch (const std::exception&) {
              ++failed_;
          }
      }) {}

Pinger::~Pinger() {
    stop_ = true;
    thread_.join();
}

std::int64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t size = 0;
    std::int64_t resident = 0;
    statm >> size >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
}

std::int64_t open_descriptors() {
    // The folder's own descriptor is among them.
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()) -
           1;
}

bool holds_within(std::chrono::milliseconds time, const std::function<bool()>& condition) {
    const auto until = Clock::now() + time;
    while (!condition()) {
        if (Clock::now() >= until) return false;
        std::this_thread::sleep_for(5ms);
    }
    return true;
}

}  // namespace fenwick::testing
