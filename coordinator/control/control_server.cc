#include "coordinator/control/control_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>

#include "coordinator/control/control_limits.h"
#include "coordinator/control/frames.h"
#include "coordinator/front/stream.h"
#include "coordinator/front/tls.h"
#include "core/errors.h"

namespace fenwick {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kPoolThreads = 8;
constexpr std::size_t kMostConnections = 100'000;
constexpr std::chrono::milliseconds kTick{250};
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::seconds kCloseWithin{2};
/// Messages of one leader that are read ahead of the work on them.
constexpr int kReadAhead = 256;

}  // namespace

/// One rank's connection. Its coroutines run on the io_context's thread; `send`, `close` and `work` come from anywhere.
class ControlServer::Session final : public RankLink, public std::enable_shared_from_this<Session> {
public:
    Session(ControlServer& server, std::unique_ptr<Stream> stream, std::string peer)
        : server_(server),
          stream_(std::move(stream)),
          peer_(std::move(peer)),
          outgoing_(server.io_),
          room_(server.io_),
          deadline_(server.io_),
          strand_(asio::make_strand(server.pool_)) {}

    void send(const idl::ControlMessage& message) override {
        asio::post(server_.io_, [self = shared_from_this(), frame = encode_frame(message)]() mutable {
            if (self->closing_) return;
            self->queue_.push_back(std::move(frame));
            self->outgoing_.cancel();
        });
    }

    void close() override {
        asio::post(server_.io_, [self = shared_from_this()] {
            self->closing_ = true;
            self->outgoing_.cancel();
            // What is on its way gets a moment; a rank that is stopped takes nothing.
            self->end_at(kCloseWithin);
        });
    }

    void work(std::function<void()> work) override {
        outstanding_.fetch_add(1);
        asio::post(strand_, [self = shared_from_this(), work = std::move(work)] {
            try {
                work();
            } catch (const std::exception& error) {
                spdlog::error("control plane, {}: {}", self->peer_, error.what());
            }
            self->outstanding_.fetch_sub(1);
            asio::post(self->server_.io_, [self] { self->room_.cancel(); });
        });
    }

    [[nodiscard]] bool held_back() const override { return held_back_.load(); }

    asio::awaitable<void> run() {
        std::string reason = "its connection was closed";
        try {
            end_at(kHelloWithin);
            co_await stream_->handshake();
            co_await greet();
            deadline_.cancel();
            co_await read();
        } catch (const boost::system::system_error& error) {
            reason = fmt::format("its connection ended: {}", error.code().message());
        } catch (const Error& error) {
            reason = error.what();
            if (!welcome_) spdlog::warn("control plane, {}: {}", peer_, reason);
        }
        // When the coordinator itself ends, nobody is to blame.
        if (welcome_ && !server_.closing_) server_.desk_.left(hello_.gangId, hello_.rank, this, reason);
        closing_ = true;
        outgoing_.cancel();
        if (!refused_) end_now();
        server_.sessions_.erase(shared_from_this());
    }

    asio::awaitable<void> write() {
        try {
            for (;;) {
                while (!queue_.empty()) {
                    const std::string frame = std::move(queue_.front());
                    queue_.pop_front();
                    co_await stream_->write(asio::buffer(frame));
                }
                if (closing_) break;
                error_code woken;
                outgoing_.expires_at(asio::steady_timer::time_point::max());
                co_await outgoing_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
            }
        } catch (const boost::system::system_error&) {
            // Reading ends too, and says why.
        }
        end_now();
    }

    void end_now() {
        deadline_.cancel();
        stream_->close();
    }

private:
    asio::awaitable<void> greet() {
        const idl::ControlMessage first = co_await read_frame(*stream_, kHelloFrameBytes);
        if (!first.__isset.hello) throw DataError("the first frame is no Hello");
        hello_ = first.hello;
        idl::ControlMessage answer;
        try {
            answer = as_message(server_.desk_.join(hello_, shared_from_this()));
            welcome_ = true;
        } catch (const ServiceFault& fault) {
            idl::Refused refused;
            refused.code = fault.service_code();
            refused.message = fault.what();
            // Straight into the queue: once the session ends, `send` takes nothing.
            queue_.push_back(encode_frame(as_message(refused)));
            refused_ = true;
            end_at(kCloseWithin);
            throw;
        }
        // Before anything that the desk has sent to it meanwhile.
        queue_.push_front(encode_frame(answer));
        outgoing_.cancel();
    }

    asio::awaitable<void> read() {
        for (;;) {
            idl::ControlMessage message = co_await read_frame(*stream_, kControlFrameBytes);
            server_.desk_.heard(hello_.gangId, hello_.rank, this);
            if (message.__isset.heartbeat) {
                server_.desk_.at_step(hello_.gangId, hello_.rank, message.heartbeat);
                send(as_message(idl::Heartbeat()));
            } else if (message.__isset.bye) {
                // After the work on what came before: that may be the last save point.
                work([self = shared_from_this(), bye = message.bye] {
                    self->server_.desk_.said_bye(self->hello_.gangId, self->hello_.rank, bye.reason);
                });
            } else if (hello_.rank == 0) {
                co_await make_room();
                work([self = shared_from_this(), message = std::move(message)] {
                    self->server_.desk_.handle(self->hello_.gangId, message);
                });
            } else {
                throw DataError("only rank 0 of a gang asks for work");
            }
        }
    }

    asio::awaitable<void> make_room() {
        while (outstanding_.load() >= kReadAhead) {
            held_back_.store(true);
            error_code woken;
            room_.expires_at(asio::steady_timer::time_point::max());
            co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
        }
        held_back_.store(false);
    }

    void end_at(std::chrono::milliseconds after) {
        deadline_.expires_after(after);
        deadline_.async_wait([self = shared_from_this()](error_code error) {
            if (!error) self->stream_->close();
        });
    }

    ControlServer& server_;
    std::unique_ptr<Stream> stream_;
    std::string peer_;
    idl::Hello hello_;
    bool welcome_ = false;
    bool refused_ = false;
    bool closing_ = false;
    std::deque<std::string> queue_;
    asio::steady_timer outgoing_;  ///< cancelled: there is something to send, or nothing will follow
    asio::steady_timer room_;      ///< cancelled: work is done
    asio::steady_timer deadline_;
    asio::strand<asio::thread_pool::executor_type> strand_;
    std::atomic<int> outstanding_{0};
    std::atomic<bool> held_back_{false};
};

ControlServer::ControlServer(const ServeConfig& config, GangDesk& desk)
    : desk_(desk), acceptor_(io_), ticks_(io_), pool_(kPoolThreads) {
    if (!config.control_tls.certificate.empty()) {
        tls_.emplace(
            server_tls({config.control_tls.certificate, config.control_tls.key, config.control_tls.client_ca}));
    }
    const Endpoint& at = config.control;
    try {
        tcp::resolver resolver(io_);
        const tcp::endpoint endpoint = resolver.resolve(at.host, std::to_string(at.port))->endpoint();
        acceptor_.open(endpoint.protocol());
        acceptor_.set_option(tcp::acceptor::reuse_address(true));
        acceptor_.bind(endpoint);
        acceptor_.listen();
        port_ = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
        throw UnavailableError(
            fmt::format("control.host {} port {}: cannot listen: {}", at.host, at.port, error.code().message()));
    }
    asio::co_spawn(io_, accept(), asio::detached);
    asio::co_spawn(io_, watch(), asio::detached);
    thread_ = std::thread([this] { io_.run(); });
}

ControlServer::~ControlServer() {
    asio::post(io_, [this] { close(); });
    thread_.join();  // all coroutines have ended
    pool_.join();
    // What the last work wanted to say: nobody is there, but the sessions must go before the pool does.
    io_.restart();
    io_.poll();
}

void ControlServer::close() {
    closing_ = true;
    error_code ignored;  // it may be closed already
    acceptor_.close(ignored);
    ticks_.cancel();
    for (const std::shared_ptr<Session>& session : sessions_) session->end_now();
}

asio::awaitable<void> ControlServer::accept() {
    while (!closing_) {
        tcp::socket socket(io_);
        error_code error;
        co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
        if (closing_) co_return;
        if (error || sessions_.size() >= kMostConnections) {
            // No descriptors are left, most likely: without a pause the loop would spin.
            spdlog::warn("control plane: cannot accept: {}", error ? error.message() : "too many connections");
            asio::steady_timer pause(io_, kAcceptPause);
            co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
            continue;
        }
        socket.set_option(tcp::no_delay(true), error);
        const tcp::endpoint peer = socket.remote_endpoint(error);
        const std::string name = error ? "gone" : fmt::format("{}:{}", peer.address().to_string(), peer.port());
        auto stream = tls_ ? tls_stream(std::move(socket), *tls_) : plain_stream(std::move(socket));
        const auto session = std::make_shared<Session>(*this, std::move(stream), name);
        sessions_.insert(session);
        asio::co_spawn(
            io_, [session] { return session->run(); }, asio::detached);
        asio::co_spawn(
            io_, [session] { return session->write(); }, asio::detached);
    }
}

asio::awaitable<void> ControlServer::watch() {
    while (!closing_) {
        error_code error;
        ticks_.expires_after(kTick);
        co_await ticks_.async_wait(asio::redirect_error(asio::use_awaitable, error));
        if (closing_) co_return;
        try {
            desk_.tick();
        } catch (const Error& failure) {
            spdlog::error("control plane: {}", failure.what());
        }
    }
}

}  // namespace fenwick
