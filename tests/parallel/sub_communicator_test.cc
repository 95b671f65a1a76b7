#include "parallel/sub_communicator.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "core/errors.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"
#include "tests/parallel/collectives_check.h"

namespace fenwick {

TEST_CASE("groups: rows and columns of a world work by themselves") {
    for (const int ranks : {1, 2, 5, 6}) {
        for (const int width : {1, 2, 3, 6}) {
            std::mutex mutex;
            std::vector<std::string> faults;
            run_thread_ranks(ranks, [&](Communicator& comm) {
                const std::string fault = test::check_groups(comm, width);
                const std::lock_guard<std::mutex> lock(mutex);
                faults.push_back(fault);
            });
            REQUIRE(faults.size() == static_cast<std::size_t>(ranks));
            for (const std::string& fault : faults) {
                CAPTURE(ranks, width, fault);
                REQUIRE(fault.empty());
            }
        }
    }
}

TEST_CASE("groups: ranks may stand in any order, and send to themselves") {
    run_thread_ranks(3, [](Communicator& world) {
        SubCommunicator group(world, {2, 0, 1});
        const int mine = world.rank();
        int from_next = -1;
        int from_self = -1;
        const std::vector<SendOp> sends = {{(group.rank() + 2) % 3, std::as_bytes(std::span(&mine, 1))},
                                           {group.rank(), std::as_bytes(std::span(&mine, 1))}};
        const std::vector<RecvOp> recvs = {{(group.rank() + 1) % 3, std::as_writable_bytes(std::span(&from_next, 1))},
                                           {group.rank(), std::as_writable_bytes(std::span(&from_self, 1))}};
        group.exchange(sends, recvs);
        if (from_next != group.world_rank((group.rank() + 1) % 3)) throw InternalError("not from the next rank");
        if (from_self != mine) throw InternalError("not from itself");
    });
}

TEST_CASE("groups: a rank's failure ends the whole world, by its number there") {
    std::mutex mutex;
    std::vector<std::string> heard;
    REQUIRE_THROWS_AS(run_thread_ranks(4,
                                       [&](Communicator& world) {
                                           SubCommunicator group(world, ranks_in_steps(world.rank() / 2 * 2, 2));
                                           if (world.rank() == 3) throw DataError("document 7 is damaged");
                                           try {
                                               for (;;) barrier(group);  // ranks 0 and 1 share no group with rank 3
                                           } catch (const PeerLostError& error) {
                                               const std::lock_guard<std::mutex> lock(mutex);
                                               heard.emplace_back(error.what());
                                               throw;
                                           }
                                       }),
                      DataError);
    REQUIRE(heard.size() == 3);
    for (const std::string& each : heard) REQUIRE(each == "rank 3 ended the world: document 7 is damaged");
}

TEST_CASE("groups: ranks that make no group are refused") {
    SelfCommunicator self;
    REQUIRE_THROWS_AS(SubCommunicator(self, {}), InternalError);
    REQUIRE_THROWS_AS(SubCommunicator(self, {1}), InternalError);
    REQUIRE_THROWS_AS(SubCommunicator(self, {0, 1}), InternalError);
    REQUIRE_THROWS_AS(SubCommunicator(self, {0, 0}), InternalError);
    SubCommunicator alone(self, {0});
    REQUIRE(alone.world_rank(0) == 0);
    REQUIRE_THROWS_AS(alone.world_rank(1), InternalError);
    const std::byte byte{};
    const SendOp send{1, {&byte, 1}};
    REQUIRE_THROWS_AS(alone.exchange({&send, 1}, {}), InternalError);
}

}  // namespace fenwick
