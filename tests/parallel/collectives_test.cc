#include "parallel/collectives.h"

#include <catch2/catch.hpp>
#include <mutex>
#include <numeric>

#include "core/errors.h"
#include "parallel/self_communicator.h"
#include "parallel/thread_world.h"
#include "tests/parallel/collectives_check.h"

namespace fenwick {

TEST_CASE("collectives: slices partition a vector, all of one size but the last") {
    for (const int ranks : {1, 2, 3, 5, 8}) {
        for (const std::int64_t n : {0, 1, 2, 7, 8, 9, 1000}) {
            CAPTURE(ranks, n);
            std::int64_t end = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const Slice slice = slice_of(n, ranks, rank);
                REQUIRE(slice.first == end);
                REQUIRE(slice.size <= (n + ranks - 1) / ranks);
                REQUIRE((slice.size == (n + ranks - 1) / ranks || slice.first + slice.size == n));
                end += slice.size;
            }
            REQUIRE(end == n);
        }
    }
    REQUIRE(slice_of(std::int64_t{1} << 40, 3, 2) == Slice{733007751852, 366503875924});
    REQUIRE_THROWS_AS(slice_of(-1, 1, 0), InternalError);
    REQUIRE_THROWS_AS(slice_of(5, 2, 2), InternalError);
}

TEST_CASE("collectives: sums by slices have the bits of sums in rank order") {
    for (const int ranks : {1, 2, 3, 5}) {
        std::mutex mutex;
        std::vector<std::string> faults;
        run_thread_ranks(ranks, [&](Communicator& comm) {
            const std::string fault = test::check_all_slices(comm);
            const std::lock_guard<std::mutex> lock(mutex);
            faults.push_back(fault);
        });
        REQUIRE(faults.size() == static_cast<std::size_t>(ranks));
        for (const std::string& fault : faults) {
            CAPTURE(ranks, fault);
            REQUIRE(fault.empty());
        }
    }
}

namespace {

/// Remembers the most bytes that were received at once.
class MeteredCommunicator final : public Communicator {
public:
    explicit MeteredCommunicator(Communicator& world) : world_(world) {}
    [[nodiscard]] int rank() const override { return world_.rank(); }
    [[nodiscard]] int size() const override { return world_.size(); }
    [[nodiscard]] std::string name() const override { return world_.name(); }
    void abort(const std::string& reason, ExitCode code) noexcept override { world_.abort(reason, code); }
    void exchange(std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        std::size_t bytes = 0;
        for (const RecvOp& recv : recvs) bytes += recv.bytes.size();
        most = std::max(most, bytes);
        all += bytes;
        world_.exchange(sends, recvs);
    }

    std::size_t most = 0;
    std::size_t all = 0;

private:
    Communicator& world_;
};

}  // namespace

TEST_CASE("collectives: reduce_scatter_sum receives each value once, in pieces of bounded size") {
    run_thread_ranks(3, [&](Communicator& world) {
        MeteredCommunicator comm(world);
        std::vector<float> all(3001);
        std::iota(all.begin(), all.end(), 0.0F);
        std::vector<float> own(static_cast<std::size_t>(slice_of(3001, 3, world.rank()).size));
        reduce_scatter_sum(comm, all, own, 1200);
        if (comm.most > 1200) throw InternalError("more than its share at once");
        if (comm.all != own.size() * 2 * sizeof(float)) throw InternalError("another number of bytes in all");
    });
}

TEST_CASE("collectives: slices of another size are refused") {
    SelfCommunicator self;
    std::vector<float> all(5);
    std::vector<float> own(4);
    REQUIRE_THROWS_AS(reduce_scatter_sum(self, all, own), InternalError);
    REQUIRE_THROWS_AS(all_gather_slices(self, own, all), InternalError);
}

}  // namespace fenwick
