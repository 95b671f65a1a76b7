// Clients that are slow, silent or too many (CASES I3), and the descriptors they take.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support.h"

namespace fenwick::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_CASE("front: CASES I3: the deadline of a frame is absolute, whatever trickles in") {
    ListenOptions options;
    options.limits.frame_time = 600ms;
    RunningFront front(options);
    std::vector<RawSocket> sockets;
    for (int client = 0; client < 50; ++client) sockets.emplace_back(front.rpc_port());
    const Pinger pinger(front.rpc_port());
    const auto begun = Clock::now();
    const std::string frame = framed(std::string(1000, 'x'));
    // A byte each 50 ms, which would restart a deadline that counts from the last byte.
    bool all_closed = false;
    for (std::size_t byte = 0; byte < frame.size() && !all_closed; ++byte) {
        all_closed = true;
        for (RawSocket& socket : sockets) {
            if (!socket.is_closed_within(1ms)) {
                all_closed = false;
                socket.send(frame.substr(byte, 1));
            }
        }
        std::this_thread::sleep_for(50ms);
    }
    CHECK(all_closed);
    // 600 ms, 100 ms between two looks at the clock, and what a busy machine adds.
    CHECK(Clock::now() - begun < 3s);
    CHECK(front.metric("fenwick_connections_dropped_total", "frame_deadline") == 50);
    CHECK(pinger.failed() == 0);
    CHECK(pinger.slowest() < 200ms);
}

TEST_CASE("front: CASES I3: clients that never read their replies are dropped at the write deadline") {
    ListenOptions options;
    options.limits.write_time = 500ms;
    RunningFront front(options);
    // readResult of 7 MiB: more than the socket buffers of both sides hold. 12 of them are within the budget of bytes.
    const std::string call = framed(call_header("readResult") + std::string("\x08\x00\x04\x00\x70\x00\x00\x00", 8));
    std::vector<RawSocket> sockets;
    for (int client = 0; client < 12; ++client) {
        sockets.emplace_back(front.rpc_port());
        REQUIRE(sockets.back().send(call));
    }
    const Pinger pinger(front.rpc_port());
    CHECK(holds_within(4s, [&] { return front.metric("fenwick_connections_dropped_total", "write_deadline") == 12; }));
    CHECK(pinger.failed() == 0);
}

TEST_CASE("front: silent connections end at the idle timeout, busy ones do not") {
    ListenOptions options;
    options.limits.idle_time = 400ms;
    RunningFront front(options);
    RawSocket silent(front.rpc_port());
    const Pinger pinger(front.rpc_port());  // every 10 ms
    CHECK(silent.is_closed_within(2s));
    CHECK(holds_within(2s, [&] { return pinger.answered() > 50; }));
    CHECK(pinger.failed() == 0);
    CHECK(front.metric("fenwick_connections_dropped_total", "idle") == 1);
}

TEST_CASE("front: at the cap, connections without a request give way, and with none of these the newcomer is refused") {
    ListenOptions options;
    options.limits.connections = 8;
    RunningFront front(options);
    std::vector<RawSocket> silent;
    for (int client = 0; client < 8; ++client) silent.emplace_back(front.rpc_port());
    REQUIRE(holds_within(2s, [&] { return front.metric("fenwick_connections_open", "rpc") == 8; }));
    std::vector<SampleClient> proven;
    for (int client = 0; client < 8; ++client) {
        proven.emplace_back(front.rpc_port());
        idl::Health health;
        proven.back()->getHealth(health);
        CHECK(health.reason == "fine");
    }
    for (RawSocket& socket : silent) CHECK(socket.is_closed_within(1s));
    RawSocket newcomer(front.rpc_port());
    CHECK(newcomer.is_closed_within(1s));
    idl::Health health;
    for (SampleClient& client : proven) client->getHealth(health);
}

TEST_CASE("front: unfinished requests together hold no more than their budget") {
    ListenOptions options;
    options.limits.buffered_bytes = 4 << 20;
    RunningFront front(options);
    const std::string part = framed(std::string(2 << 20, 'x')).substr(0, 1 << 20);
    std::vector<RawSocket> sockets;
    for (int client = 0; client < 16; ++client) {
        sockets.emplace_back(front.rpc_port());
        sockets.back().send(part);
    }
    CHECK(holds_within(2s, [&] { return front.metric("fenwick_connections_dropped_total", "buffer_budget") >= 10; }));
    idl::Health health;
    sockets.clear();
    REQUIRE(holds_within(2s, [&] { return front.metric("fenwick_connections_open", "rpc") == 0; }));
    SampleClient client(front.rpc_port());
    client->getHealth(health);
    CHECK(health.reason == "fine");
}

TEST_CASE("front: survives a lack of descriptors") {
    RunningFront front;
    SampleClient before(front.rpc_port());
    idl::Health health;
    before->getHealth(health);
    rlimit limit = {};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlimit low = limit;
    // Clients and server share this process: 20 more descriptors are 10 connections.
    low.rlim_cur = static_cast<rlim_t>(open_descriptors()) + 20;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    std::vector<RawSocket> sockets;
    bool client_ran_out = false;
    for (int client = 0; client < 40 && !client_ran_out; ++client) {
        try {
            sockets.emplace_back(front.rpc_port());
        } catch (const std::system_error&) {
            client_ran_out = true;
        }
    }
    CHECK(client_ran_out);
    std::this_thread::sleep_for(300ms);  // accepts fail now, three times or more
    before->getHealth(health);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
    sockets.clear();
    SampleClient after(front.rpc_port());
    after->getHealth(health);
    CHECK(health.reason == "fine");
}

TEST_CASE("front: calls that wait hold no thread, and end when the job changes or their time is over") {
    RunningFront front({}, {}, 1);
    constexpr int kWaiting = 40;
    std::atomic<int> woken = 0;
    std::vector<std::thread> threads;
    for (int client = 0; client < kWaiting; ++client) {
        threads.emplace_back([&] {
            SampleClient waiting(front.rpc_port());
            idl::Job job;
            waiting->waitJob(job, "job", 1, 15'000);
            if (job.version == 2) ++woken;
        });
    }
    {
        const Pinger pinger(front.rpc_port());
        CHECK(holds_within(3s, [&] { return pinger.answered() > 30; }));
        CHECK(pinger.slowest() < 200ms);
    }
    CHECK(woken == 0);
    const auto called = Clock::now();
    front.set_version(2);
    for (std::thread& thread : threads) thread.join();
    CHECK(woken == kWaiting);
    CHECK(Clock::now() - called < 2s);

    // Who leaves while his call waits gives his connection back.
    {
        RawSocket leaving(front.rpc_port());
        REQUIRE(
            leaving.send(framed(call_header("waitJob") + std::string("\x0a\x00\x02\x00\x00\x00\x00\x00\x00\x00\x09"
                                                                     "\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x75\x30\x00",
                                                                     23))));
        CHECK(leaving.receive(1, 300ms).empty());
        CHECK(front.metric("fenwick_connections_open", "rpc") == 1);
    }
    CHECK(holds_within(4s, [&] { return front.metric("fenwick_connections_open", "rpc") == 0; }));

    SampleClient client(front.rpc_port());
    idl::Job job;
    const auto begun = Clock::now();
    client->waitJob(job, "job", 2, 300);
    const auto took = Clock::now() - begun;
    CHECK(job.version == 2);
    CHECK(took >= 300ms);
    CHECK(took < 2s);
}

}  // namespace
}  // namespace fenwick::testing
