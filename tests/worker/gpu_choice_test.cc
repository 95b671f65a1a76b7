// CASES J2: which GPU a rank takes, and worlds in which that cannot work.
#include "worker/gpu_choice.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "core/errors.h"
#include "parallel/thread_world.h"
#include "worker/gpu.h"

using namespace fenwick;
using Catch::Matchers::Contains;

namespace {

GpuFacts gpu(unsigned char id, const char* host, int device) {
    GpuFacts facts;
    facts.device = device;
    facts.usable = true;
    facts.uuid[15] = id;
    std::copy_n(host, std::char_traits<char>::length(host), facts.host.begin());
    return facts;
}

}  // namespace

TEST_CASE("the device is the local rank modulo the visible ones") {
    CHECK(device_of_local_rank(3, 1) == 0);  // CUDA_VISIBLE_DEVICES="2", or one UUID
    CHECK(device_of_local_rank(3, 4) == 3);  // "0,1,2,3"
    CHECK(device_of_local_rank(3, 2) == 1);  // "4,5"
    CHECK(device_of_local_rank(7, 4) == 3);
    CHECK_THROWS_WITH(device_of_local_rank(3, 0), Contains("no GPU is visible"));
}

TEST_CASE("ranks need a GPU each, told apart by UUID") {
    CHECK(gpu_problem({gpu(1, "a", 0), gpu(2, "a", 1), gpu(3, "b", 0), gpu(4, "b", 1)}).empty());
    CHECK_THAT(gpu_problem({gpu(1, "a", 0), gpu(2, "a", 1), gpu(1, "a", 0)}),
               Contains("ranks 0 and 2") && Contains("share one GPU"));
    GpuFacts none;
    const std::string why = "no NVIDIA driver is loaded";
    std::copy(why.begin(), why.end(), none.problem.begin());
    CHECK_THAT(gpu_problem({gpu(1, "a", 0), none}), Contains("rank 1") && Contains(why));
    CHECK_THAT(gpu_text(1, gpu(171, "node7", 2)), Contains("rank 1: GPU 2 of node7") && Contains("ab"));
}

TEST_CASE("every rank learns every rank's GPU, in order") {
    std::mutex mutex;
    int right = 0;
    run_thread_ranks(3, [&](Communicator& comm) {
        const auto own = static_cast<unsigned char>(10 + comm.rank());
        const std::vector<GpuFacts> all = share_gpu_facts(comm, gpu(own, "h", comm.rank()));
        const std::lock_guard<std::mutex> lock(mutex);
        for (int rank = 0; rank < 3; ++rank) {
            const GpuFacts& facts = all.at(static_cast<std::size_t>(rank));
            if (facts.device == rank && facts.uuid[15] == 10 + rank && facts.usable) ++right;
        }
    });
    CHECK(right == 9);
}

TEST_CASE("without a visible GPU the facts say why") {
    // These tests run with CUDA_VISIBLE_DEVICES="".
    const GpuFacts facts = look_at_gpu(3);
    CHECK_FALSE(facts.usable);
    CHECK(facts.problem.front() != '\0');
    CHECK(facts.host.front() != '\0');
}
