#include "coordinator/gang/control_client.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <utility>

#include "coordinator/control/control_limits.h"
#include "coordinator/control/frames.h"
#include "coordinator/control/rank_link.h"
#include "coordinator/front/stream.h"
#include "coordinator/front/tls.h"
#include "coordinator/stop_signal.h"
#include "coordinator/store/service_fault.h"

namespace fenwick {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{200};
constexpr milliseconds kLongestPause{3000};
constexpr std::chrono::seconds kConnectWithin{10};
constexpr std::chrono::seconds kByeWithin{5};
constexpr std::chrono::seconds kSayEvery{10};
constexpr milliseconds kLook{200};

}  // namespace

/// The thread and its coroutines.
class ControlClient::Loop {
public:
    explicit Loop(ControlClient& client) : client_(client), outgoing_(io_), beat_(io_), pause_(io_), deadline_(io_) {
        const ControlOptions& options = client.options_;
        if (!options.tls_authority.empty()) {
            tls_.emplace(client_tls({options.tls_authority, options.tls_certificate, options.tls_key}));
        }
        asio::co_spawn(io_, live(), asio::detached);
        thread_ = std::thread([this] { io_.run(); });
    }
    ~Loop() {
        asio::post(io_, [this] { end(); });
        thread_.join();
    }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    void send(std::uint64_t session, std::string frame) {
        asio::post(io_, [this, session, frame = std::move(frame)]() mutable {
            if (session != client_.session_.load()) return;
            queue_.push_back(std::move(frame));
            outgoing_.cancel();
        });
    }

    /// After what was sent before.
    void finish(std::string frame) {
        asio::post(io_, [this, frame = std::move(frame)]() mutable {
            ending_ = true;
            if (stream_ == nullptr) {
                end();
                return;
            }
            queue_.push_back(std::move(frame));
            last_frame_ = true;
            outgoing_.cancel();
        });
    }

    [[nodiscard]] bool ended() const { return ended_.load(); }

private:
    void end() {
        ending_ = true;
        pause_.cancel();
        beat_.cancel();
        outgoing_.cancel();
        deadline_.cancel();
        if (stream_ != nullptr) stream_->close();
    }

    asio::awaitable<void> live() {
        milliseconds pause = kFirstPause;
        Clock::time_point away_since = Clock::now();
        Clock::time_point said = Clock::time_point();
        while (!ending_ && !client_.stop_.load()) {
            std::string reason = "the connection was closed";
            try {
                co_await connect();
                pause = kFirstPause;
                said = Clock::time_point();
                co_await read();
            } catch (const boost::system::system_error& error) {
                reason = error.code().message();
            } catch (const Error& error) {
                reason = error.what();
            }
            if (over()) away_since = Clock::now();
            if (ending_ || client_.stop_.load()) break;
            const double away = std::chrono::duration<double>(Clock::now() - away_since).count();
            if (away >= client_.options_.reconnect_seconds) {
                client_.stop(fmt::format("no coordinator at {}:{} for {:.0f} s (--reconnect-seconds): {}",
                                         client_.options_.host, client_.options_.port, away, reason));
                break;
            }
            if (Clock::now() - said > kSayEvery) {
                said = Clock::now();
                if (client_.options_.hello.rank == 0) {
                    spdlog::warn("coordinator {}:{}: {}; trying again", client_.options_.host, client_.options_.port,
                                 reason);
                }
            }
            error_code ignored;
            pause_.expires_after(pause);
            co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
            pause = std::min(2 * pause, kLongestPause);
        }
        ended_.store(true);
        client_.changed_.notify_all();
    }

    /// The connection is gone. Returns whether there was one.
    bool over() {
        deadline_.cancel();
        beat_.cancel();
        queue_.clear();
        const bool was = client_.session_.load() != 0;
        {
            const std::lock_guard lock(client_.mutex_);
            client_.session_.store(0);
            client_.inbox_.clear();
        }
        if (stream_ != nullptr) stream_->close();
        // The writer, if it waits, sees that its stream is another one or none.
        stream_.reset();
        outgoing_.cancel();
        client_.changed_.notify_all();
        return was;
    }

    asio::awaitable<void> connect() {
        deadline_.expires_after(kConnectWithin);
        const auto socket = std::make_shared<tcp::socket>(io_);
        deadline_.async_wait([this, socket](error_code error) {
            if (error) return;
            error_code ignored;
            socket->close(ignored);
            if (stream_ != nullptr) stream_->close();
        });
        tcp::resolver resolver(io_);
        const auto found =
            co_await resolver.async_resolve(client_.options_.host, client_.options_.port, asio::use_awaitable);
        co_await asio::async_connect(*socket, found, asio::use_awaitable);
        socket->set_option(tcp::no_delay(true));
        stream_ = tls_ ? tls_client_stream(std::move(*socket), *tls_, client_.options_.host)
                       : plain_stream(std::move(*socket));
        co_await stream_->handshake();
        const std::string hello = encode_frame(as_message(client_.options_.hello));
        co_await stream_->write(asio::buffer(hello));
        const idl::ControlMessage answer = co_await read_frame(*stream_, kHelloFrameBytes);
        deadline_.cancel();
        if (answer.__isset.refused) {
            client_.stop("the coordinator refused this worker: " + answer.refused.message, answer.refused);
            throw UnavailableError(answer.refused.message);
        }
        if (!answer.__isset.welcome) throw DataError("neither welcomed nor refused: no coordinator of fenwick");
        {
            const std::lock_guard lock(client_.mutex_);
            client_.welcome_ = answer.welcome;
            client_.session_.store(++sessions_);
        }
        client_.changed_.notify_all();
        asio::co_spawn(io_, write(stream_), asio::detached);
        asio::co_spawn(io_, beat(stream_, milliseconds(answer.welcome.heartbeatMs)), asio::detached);
        silence_ = milliseconds(2 * answer.welcome.timeoutMs);
        expect_word();
    }

    /// A coordinator that says nothing, not even a heartbeat, is as good as gone.
    void expect_word() {
        deadline_.expires_after(silence_);
        deadline_.async_wait([this, stream = stream_](error_code error) {
            if (!error) stream->close();
        });
    }

    asio::awaitable<void> read() {
        const std::shared_ptr<Stream> stream = stream_;
        for (;;) {
            idl::ControlMessage message = co_await read_frame(*stream, kControlFrameBytes);
            expect_word();
            if (message.__isset.heartbeat) continue;
            if (message.__isset.stop) {
                client_.stop("the coordinator gave this gang up: " + message.stop.reason);
                co_return;
            }
            {
                const std::lock_guard lock(client_.mutex_);
                if (message.__isset.drain) {
                    client_.drain_.store(true);
                } else if (message.__isset.revoked) {
                    client_.revoked_ = message.revoked.lease;
                } else if (message.__isset.recall) {
                    client_.recalled_ = message.recall.lease;
                } else {
                    client_.inbox_.push_back(std::move(message));
                }
            }
            client_.changed_.notify_all();
        }
    }

    asio::awaitable<void> write(std::shared_ptr<Stream> stream) {
        try {
            while (stream == stream_) {
                while (!queue_.empty()) {
                    const std::string frame = std::move(queue_.front());
                    queue_.pop_front();
                    co_await stream->write(asio::buffer(frame));
                    if (stream != stream_) co_return;
                }
                if (last_frame_) {
                    end();
                    co_return;
                }
                error_code ignored;
                outgoing_.expires_at(Clock::time_point::max());
                co_await outgoing_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
            }
        } catch (const boost::system::system_error&) {
            // Reading ends too, and connects again.
            stream->close();
        }
    }

    asio::awaitable<void> beat(std::shared_ptr<Stream> stream, milliseconds every) {
        while (stream == stream_ && !ending_) {
            idl::Heartbeat heartbeat;
            {
                const std::lock_guard lock(client_.mutex_);
                heartbeat.step = client_.step_;
                heartbeat.stepMs = std::chrono::duration_cast<milliseconds>(Clock::now() - client_.step_since_).count();
            }
            queue_.push_back(encode_frame(as_message(heartbeat)));
            outgoing_.cancel();
            error_code ignored;
            beat_.expires_after(every);
            co_await beat_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        }
    }

    ControlClient& client_;
    asio::io_context io_;
    std::optional<asio::ssl::context> tls_;
    std::shared_ptr<Stream> stream_;
    std::deque<std::string> queue_;
    asio::steady_timer outgoing_;
    asio::steady_timer beat_;
    asio::steady_timer pause_;
    asio::steady_timer deadline_;
    milliseconds silence_{0};
    std::uint64_t sessions_ = 0;
    bool ending_ = false;
    bool last_frame_ = false;
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

ControlClient::ControlClient(ControlOptions options, std::atomic<bool>* stop)
    : options_(std::move(options)), stop_(*stop) {
    loop_ = std::make_unique<Loop>(*this);
}

ControlClient::~ControlClient() = default;

void ControlClient::connect() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [&] { return session_.load() != 0 || stop_.load(); })) {
        if (const char* signal = stop_requested(); signal != nullptr) {
            throw InterruptedError(fmt::format("{}: stopped before there was a coordinator", signal));
        }
    }
    if (session_.load() != 0) return;
    if (refused_) throw ServiceFault(refused_->code, stop_reason_);
    throw UnavailableError(stop_reason_);
}

idl::Welcome ControlClient::welcome() const {
    const std::lock_guard lock(mutex_);
    if (!welcome_) throw InternalError("no coordinator has welcomed this rank yet");
    return *welcome_;
}

void ControlClient::set_step(const std::string& step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
    step_since_ = Clock::now();
}

void ControlClient::send(std::uint64_t session, const idl::ControlMessage& message) {
    check_stop();
    if (session == 0 || session != session_.load()) throw ConnectionLost("the connection to the coordinator is gone");
    loop_->send(session, encode_frame(message));
}

std::optional<idl::ControlMessage> ControlClient::receive(std::uint64_t session, milliseconds within) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, within, [&] { return !inbox_.empty() || session != session_.load() || stop_.load(); });
    if (stop_.load()) throw UnavailableError(stop_reason_);
    if (session == 0 || session != session_.load()) throw ConnectionLost("the connection to the coordinator is gone");
    if (inbox_.empty()) return std::nullopt;
    idl::ControlMessage message = std::move(inbox_.front());
    inbox_.pop_front();
    return message;
}

bool ControlClient::is_revoked(const idl::LeaseKey& lease) const {
    const std::lock_guard lock(mutex_);
    return revoked_ == lease;
}

bool ControlClient::is_recalled(const idl::LeaseKey& lease) const {
    const std::lock_guard lock(mutex_);
    return recalled_ == lease;
}

std::string ControlClient::stop_reason() const {
    const std::lock_guard lock(mutex_);
    return stop_reason_;
}

void ControlClient::check_stop() const {
    if (stop_.load()) throw UnavailableError(stop_reason());
}

void ControlClient::stop(const std::string& reason, std::optional<idl::Refused> refused) {
    {
        const std::lock_guard lock(mutex_);
        stop_reason_ = reason;
        refused_ = std::move(refused);
        stop_.store(true);
    }
    changed_.notify_all();
}

void ControlClient::bye(const std::string& reason) {
    idl::Bye bye;
    bye.reason = reason;
    loop_->finish(encode_frame(as_message(bye)));
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kByeWithin, [&] { return loop_->ended(); });
}

}  // namespace fenwick
