// Threads and the world of one rank. Timeouts: tests that wait for one use 50 ms; what must end at once gets 20 s, far
// beyond any scheduling delay, so a hang fails instead of stalling the run.
#include "parallel/communicator.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"

namespace fenwick {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLongest{20000};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
}
template <class T>
std::span<std::byte> writable_bytes_of(std::vector<T>& values) {
    return std::as_writable_bytes(std::span(values));
}

}  // namespace

TEST_CASE("threads: every rank exchanges messages of different sizes with every rank and itself") {
    for (const int ranks : {1, 2, 3, 8}) {
        std::atomic<int> wrong = 0;
        const auto length = [](int from, int to) { return static_cast<std::size_t>((7 * from + 3 * to) % 11); };
        run_thread_ranks(
            ranks,
            [&](Communicator& comm) {
                std::vector<std::vector<int>> out;
                std::vector<std::vector<int>> in;
                for (int peer = 0; peer < comm.size(); ++peer) {
                    out.emplace_back(length(comm.rank(), peer), 100 * comm.rank() + peer);
                    in.emplace_back(length(peer, comm.rank()), -1);
                }
                std::vector<SendOp> sends;
                std::vector<RecvOp> recvs;
                for (int peer = 0; peer < comm.size(); ++peer) {
                    const auto p = static_cast<std::size_t>(peer);
                    sends.push_back({peer, bytes_of(out[p])});
                    recvs.insert(recvs.begin(), {peer, writable_bytes_of(in[p])});  // in another order than sent
                }
                comm.exchange(sends, recvs);
                for (int peer = 0; peer < comm.size(); ++peer) {
                    const std::vector<int> expected(length(peer, comm.rank()), 100 * peer + comm.rank());
                    if (in[static_cast<std::size_t>(peer)] != expected) ++wrong;
                }
            },
            kLongest);
        REQUIRE(wrong == 0);
    }
}

TEST_CASE("threads: messages between two ranks keep their order") {
    std::vector<int> received(200, -1);
    run_thread_ranks(
        2,
        [&](Communicator& comm) {
            std::vector<int> values(received.size());
            std::iota(values.begin(), values.end(), 0);
            std::vector<SendOp> sends;
            std::vector<RecvOp> recvs;
            for (std::size_t i = 0; i < values.size(); ++i) {
                sends.push_back({1, std::as_bytes(std::span(&values[i], 1))});
                recvs.push_back({0, std::as_writable_bytes(std::span(&received[i], 1))});
            }
            // Half in one group, half one by one.
            const std::size_t half = values.size() / 2;
            if (comm.rank() == 0) {
                comm.exchange(std::span(sends).first(half), {});
                for (std::size_t i = half; i < sends.size(); ++i) comm.exchange({&sends[i], 1}, {});
            } else {
                comm.exchange({}, std::span(recvs).first(half));
                for (std::size_t i = half; i < recvs.size(); ++i) comm.exchange({}, {&recvs[i], 1});
            }
        },
        kLongest);
    for (std::size_t i = 0; i < received.size(); ++i) REQUIRE(received[i] == static_cast<int>(i));
}

TEST_CASE("threads: an error of one rank wakes all who wait and is the one that is reported") {
    std::atomic<int> woken = 0;
    const auto run = [&] {
        run_thread_ranks(5, [&](Communicator& comm) {
            if (comm.rank() == 2) throw DataError("document 7 is damaged");
            try {
                barrier(comm);
            } catch (const UnavailableError& error) {
                if (std::string(error.what()).find("rank 2") != std::string::npos &&
                    std::string(error.what()).find("document 7 is damaged") != std::string::npos) {
                    ++woken;
                }
                throw;
            }
        });
    };
    REQUIRE_THROWS_AS(run(), DataError);
    REQUIRE(woken == 4);
}

TEST_CASE("threads: a rank that does not come is named when the timeout passes") {
    std::atomic<bool> named = false;
    std::atomic<bool> may_leave = false;
    const auto run = [&] {
        run_thread_ranks(
            3,
            [&](Communicator& comm) {
                if (comm.rank() == 2) {
                    while (!may_leave) std::this_thread::sleep_for(milliseconds(1));
                    return;
                }
                if (comm.rank() == 1) return;
                std::byte byte{};
                const RecvOp recv{2, {&byte, 1}};
                const auto begun = std::chrono::steady_clock::now();
                try {
                    comm.exchange({}, {&recv, 1});
                } catch (const UnavailableError& error) {
                    named = std::string(error.what()).find("rank(s) 2") != std::string::npos &&
                            std::chrono::steady_clock::now() - begun >= milliseconds(50);
                }
                may_leave = true;
                throw InternalError("end of test");
            },
            milliseconds(50));
    };
    REQUIRE_THROWS_WITH(run(), "end of test");
    REQUIRE(named);
}

TEST_CASE("threads: a sender that is not received is named too") {
    const auto run = [] {
        run_thread_ranks(
            2,
            [](Communicator& comm) {
                if (comm.rank() == 1) return;
                const std::byte byte{};
                const SendOp send{1, {&byte, 1}};
                comm.exchange({&send, 1}, {});
            },
            milliseconds(50));
    };
    REQUIRE_THROWS_WITH(run(), Catch::Contains("rank(s) 1"));
}

TEST_CASE("threads: sizes that disagree end the world with both sizes in the message") {
    const auto run = [] {
        run_thread_ranks(
            2,
            [](Communicator& comm) {
                std::vector<char> bytes(comm.rank() == 0 ? 8 : 12);
                const SendOp send{1, bytes_of(bytes)};
                const RecvOp recv{0, writable_bytes_of(bytes)};
                if (comm.rank() == 0) comm.exchange({&send, 1}, {});
                if (comm.rank() == 1) comm.exchange({}, {&recv, 1});
            },
            kLongest);
    };
    // Which of the two ranks reports first is open; both name the sizes.
    REQUIRE_THROWS_WITH(run(), Catch::Contains("8 bytes") && Catch::Contains("12"));
}

TEST_CASE("broadcast and barrier and gather and scatter over threads") {
    for (const int ranks : {1, 2, 3, 5, 8}) {
        for (const int root : {0, ranks - 1}) {
            std::atomic<int> wrong = 0;
            std::atomic<int> arrived = 0;
            run_thread_ranks(
                ranks,
                [&](Communicator& comm) {
                    std::vector<int> values(1000, comm.rank() == root ? 42 : 0);
                    broadcast(comm, writable_bytes_of(values), root);
                    if (values != std::vector<int>(1000, 42)) ++wrong;

                    ++arrived;
                    barrier(comm);
                    if (arrived != ranks) ++wrong;

                    // Rank r has r % 3 values: some parts are empty.
                    std::vector<std::int64_t> sizes;
                    std::vector<int> expected;
                    for (int rank = 0; rank < ranks; ++rank) {
                        sizes.push_back(static_cast<std::int64_t>(sizeof(int)) * (rank % 3));
                        expected.insert(expected.end(), static_cast<std::size_t>(rank % 3), rank);
                    }
                    const std::vector<int> own(static_cast<std::size_t>(comm.rank() % 3), comm.rank());
                    std::vector<int> all(comm.rank() == root ? expected.size() : 0);
                    gather_to_root(comm, bytes_of(own), sizes, writable_bytes_of(all), root);
                    if (comm.rank() == root && all != expected) ++wrong;
                    std::vector<int> back(own.size(), -1);
                    scatter_from_root(comm, bytes_of(all), sizes, writable_bytes_of(back), root);
                    if (back != own) ++wrong;
                },
                kLongest);
            REQUIRE(wrong == 0);
        }
    }
}

TEST_CASE("gather refuses parts of another size than announced") {
    SelfCommunicator self;
    std::vector<int> own(2);
    std::vector<int> all(2);
    REQUIRE_NOTHROW(gather_to_root(self, bytes_of(own), std::vector<std::int64_t>{8}, writable_bytes_of(all)));
    REQUIRE_THROWS_AS(gather_to_root(self, bytes_of(own), std::vector<std::int64_t>{4}, writable_bytes_of(all)),
                      InternalError);
    REQUIRE_THROWS_AS(gather_to_root(self, bytes_of(own), std::vector<std::int64_t>{8, 8}, writable_bytes_of(all)),
                      InternalError);
}

TEST_CASE("the world of one rank copies its own messages and knows nobody else") {
    SelfCommunicator self;
    std::vector<int> out = {1, 2, 3};
    std::vector<int> in(3);
    const SendOp send{0, bytes_of(out)};
    const RecvOp recv{0, writable_bytes_of(in)};
    self.exchange({&send, 1}, {&recv, 1});
    REQUIRE(in == out);
    barrier(self);
    const SendOp stranger{1, bytes_of(out)};
    REQUIRE_THROWS_AS(self.exchange({&stranger, 1}, {&recv, 1}), InternalError);
    REQUIRE_THROWS_AS(self.exchange({&send, 1}, {}), InternalError);
    self.abort("no more", ExitCode::kUnavailable);
    REQUIRE_THROWS_WITH(self.exchange({}, {}), Catch::Contains("no more"));
}

TEST_CASE("a thread world needs a rank") {
    REQUIRE_THROWS_AS(ThreadWorld(0), UsageError);
    REQUIRE_THROWS_AS(run_thread_ranks(0, [](Communicator&) {}), UsageError);
    REQUIRE_THROWS_AS(ThreadWorld(2).communicator(2), InternalError);
}

}  // namespace fenwick
