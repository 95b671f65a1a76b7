// Tests of a world of processes, started by mpirun. Every rank runs every test; rank 0 collects what each found and is
// the one reporter. `mpi_tests abort` and `mpi_tests timeout` are worlds that must end in a certain way.
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "core/errors.h"
#include "parallel/collectives.h"
#include "parallel/exchange.h"
#include "parallel/mpi_communicator.h"
#include "parallel/shard_plan.h"
#include "tests/parallel/collectives_check.h"
#include "tests/parallel/exchange_backward_check.h"
#include "tests/parallel/halo_check.h"
#include "tests/parallel/test_algebra.h"

namespace fenwick {
namespace {

using std::chrono::milliseconds;

/// Nothing, or what is wrong on this rank.
using Verdict = std::string;

struct MpiTest {
    const char* name;
    std::function<Verdict(Communicator&)> run;
};

/// A message's bytes: a function of who sends what to whom.
std::vector<std::byte> message_bytes(int from, int to, std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) {
        bytes[i] =
            static_cast<std::byte>((i * 31 + static_cast<std::size_t>(from) * 7 + static_cast<std::size_t>(to)) & 255);
    }
    return bytes;
}

/// All to all, itself included, with sizes around multiples of a part and the empty message.
Verdict exchange_all(Communicator& comm, std::size_t unit) {
    for (const std::size_t size : {std::size_t{0}, unit - 1, unit, unit + 1, 3 * unit + 5}) {
        std::vector<std::vector<std::byte>> out;
        out.reserve(static_cast<std::size_t>(comm.size()));
        std::vector<std::vector<std::byte>> in(static_cast<std::size_t>(comm.size()), std::vector<std::byte>(size));
        for (int peer = 0; peer < comm.size(); ++peer) out.push_back(message_bytes(comm.rank(), peer, size));
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        for (int peer = 0; peer < comm.size(); ++peer) {
            sends.push_back({peer, out[static_cast<std::size_t>(peer)]});
            recvs.push_back({peer, in[static_cast<std::size_t>(peer)]});
        }
        comm.exchange(sends, recvs);
        for (int peer = 0; peer < comm.size(); ++peer) {
            if (in[static_cast<std::size_t>(peer)] != message_bytes(peer, comm.rank(), size)) {
                return "wrong bytes from rank " + std::to_string(peer) + " in a message of " + std::to_string(size);
            }
        }
    }
    return {};
}

Verdict messages(Communicator& comm) {
    return exchange_all(comm, 100000);  // beyond the eager limit of every transport
}

/// What happens to messages past 2 GiB, with parts of 64 bytes.
Verdict messages_in_parts(Communicator&) {
    MpiCommunicator parts({milliseconds(60000), 64});
    return exchange_all(parts, 64);
}

Verdict collectives(Communicator& comm) {
    for (const int root : {0, comm.size() - 1}) {
        std::vector<std::byte> bytes = message_bytes(comm.rank(), 1, 5000);
        broadcast(comm, bytes, root);
        if (bytes != message_bytes(root, 1, 5000)) return "broadcast";
        barrier(comm);
        std::vector<std::int64_t> sizes;
        std::vector<std::byte> expected;
        for (int rank = 0; rank < comm.size(); ++rank) {
            sizes.push_back(rank % 3);
            const std::vector<std::byte> part = message_bytes(rank, 2, static_cast<std::size_t>(rank % 3));
            expected.insert(expected.end(), part.begin(), part.end());
        }
        const std::vector<std::byte> own = message_bytes(comm.rank(), 2, static_cast<std::size_t>(comm.rank() % 3));
        std::vector<std::byte> all(comm.rank() == root ? expected.size() : 0);
        gather_to_root(comm, own, sizes, all, root);
        if (comm.rank() == root && all != expected) return "gather_to_root";
        std::vector<std::byte> back(own.size());
        scatter_from_root(comm, all, sizes, back, root);
        if (back != own) return "scatter_from_root";
    }
    return {};
}

Verdict halo(Communicator& comm) {
    for (const std::int64_t first_row : {0, 2, 50}) {
        for (const std::int64_t most : {1, 2, 20}) {
            std::vector<std::int64_t> rows;
            rows.reserve(static_cast<std::size_t>(comm.size()));
            for (int rank = 0; rank < comm.size(); ++rank) rows.push_back((rank * 5 + 1) % (most + 1));
            Verdict fault = test::check_halo(comm, rows, 3, first_row);
            if (!fault.empty()) return fault;
        }
    }
    return {};
}

Verdict halo_backward(Communicator& comm) {
    test::FirstFault fault;
    for (const std::int64_t most : {1, 2, 20}) {
        std::vector<std::int64_t> rows;
        rows.reserve(static_cast<std::size_t>(comm.size()));
        for (int rank = 0; rank < comm.size(); ++rank) rows.push_back((rank * 5 + 1) % (most + 1));
        std::array<double, 2> products{};
        fault.note(test::check_halo_backward(comm, rows, 3, 50, products));
        all_sum(comm, products);
        fault.note(products[0] == products[1], "<halo(x), y> is not <x, halo_backward(y)>");
    }
    return fault.text;
}

Verdict sliced_collectives(Communicator& comm) {
    return test::check_all_slices(comm);
}

Verdict groups(Communicator& comm) {
    test::FirstFault fault;
    for (const int width : {1, 2, 3}) fault.note(test::check_groups(comm, width));
    return fault.text;
}

Verdict check_list(const NodeSummaries& list, std::int64_t end) {
    if (list.blocks() != BlockRun{0, end}) return "a list covers other blocks";
    for (std::int64_t i = 0; i < list.size(); ++i) {
        const std::vector<float> expected =
            test::node_values(list.node(i), test::kMatrixFloats, test::combine_matrices);
        if (std::memcmp(expected.data(), list.values(i), expected.size() * sizeof(float)) != 0) {
            return "a node has other bits than one rank alone gives it";
        }
    }
    return {};
}

Verdict node_exchange(Communicator& comm) {
    const auto cover = [](const BlockRun& blocks) {
        const Buffer<float> rows = test::blocks_values(blocks, test::kMatrixFloats);
        HostSummaries memory(test::combine_matrices);
        Buffer<float> scratch(cover_scratch_floats(blocks.size(), test::kMatrixFloats));
        return owned(
            cover_of_blocks(blocks.first, rows.matrix(blocks.size(), test::kMatrixFloats), memory, scratch.data()),
            memory);
    };
    for (const std::int64_t blocks : {0, 1, 4, 37}) {
        for (const std::int64_t first : {0, 13}) {
            const ShardPlan plan = make_shard_plan(first * kBlockTokens, blocks * kBlockTokens + 9, comm.size());
            const ExchangeSchedule schedule = make_exchange_schedule(plan.complete_block_boundaries());
            const BlockRun own = schedule.shard(comm.rank());
            const ExchangeResult result =
                run_exchange(schedule, comm, cover(own), cover(schedule.carried_in()), test::combine_matrices);
            for (const Verdict& fault :
                 {check_list(result.entering, own.first), check_list(result.end, first + blocks)}) {
                if (!fault.empty()) return fault;
            }
        }
    }
    return {};
}

/// In the world, and in a group of all its ranks but the first (which works by itself).
Verdict exchange_backward(Communicator& comm) {
    SubCommunicator group(comm, comm.rank() == 0 ? std::vector<int>{0} : ranks_in_steps(1, comm.size() - 1));
    test::FirstFault fault;
    for (Communicator* ranks : {&comm, static_cast<Communicator*>(&group)}) {
        for (const MixerShape& shape : test::exchange_shapes()) {
            for (const std::int64_t blocks : {1, 4, 23}) {
                const ShardPlan plan = make_shard_plan(0, blocks * kBlockTokens + 9, ranks->size());
                fault.note(test::check_exchange_backward(*ranks, plan.complete_block_boundaries(), shape));
            }
        }
    }
    return fault.text;
}

Verdict guard(Communicator& comm) {
    guard_world(comm);
    try {
        guard_world(comm, [&](const std::string& name) -> std::optional<std::string> {
            if (name == "SLURM_NTASKS") return std::to_string(comm.size() + 1);
            return std::nullopt;
        });
    } catch (const UnavailableError&) {
        return {};
    }
    return "a world smaller than the launcher's was not noticed";
}

/// Rank 0 hears every rank's verdict and prints one line a test. Returns the number of faults, the same on all ranks.
int report(Communicator& comm, const char* name, const Verdict& own) {
    std::array<char, 256> mine{};
    std::copy_n(own.begin(), std::min(own.size(), mine.size() - 1), mine.begin());
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(comm.size()), sizeof mine);
    std::vector<std::array<char, 256>> all(comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 0);
    gather_to_root(comm, std::as_bytes(std::span(mine)), sizes, std::as_writable_bytes(std::span(all)));
    int faults = 0;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].front() == '\0') continue;
        ++faults;
        std::printf("FAILED %s, rank %zu of %d: %s\n", name, rank, comm.size(), all[rank].data());
    }
    broadcast(comm, std::as_writable_bytes(std::span(&faults, 1)));
    if (comm.rank() == 0 && faults == 0) std::printf("passed %s on %d ranks\n", name, comm.size());
    return faults;
}

int run_all(Communicator& comm) {
    const std::vector<MpiTest> tests = {
        {"messages", messages},
        {"messages in parts", messages_in_parts},
        {"collectives", collectives},
        {"halo", halo},
        {"node exchange", node_exchange},
        {"world guard", guard},
        {"halo backward", halo_backward},
        {"sliced collectives", sliced_collectives},
        {"groups", groups},
        {"exchange backward", exchange_backward},
    };
    int faults = 0;
    for (const MpiTest& test : tests) faults += report(comm, test.name, test.run(comm));
    return faults == 0 ? 0 : 1;
}

/// The last rank fails; the others wait for it.
int fail_on_last_rank(Communicator& comm) {
    if (comm.rank() == comm.size() - 1) throw DataError("document 7 is damaged");
    barrier(comm);
    return 0;
}

/// The last rank is busy for longer than the others wait.
int stall_last_rank(Communicator&) {
    MpiCommunicator impatient({milliseconds(300)});
    if (impatient.rank() == impatient.size() - 1) {
        std::this_thread::sleep_for(std::chrono::seconds(60));
        return 0;
    }
    std::byte byte{};
    const RecvOp recv{impatient.size() - 1, {&byte, 1}};
    impatient.exchange({}, {&recv, 1});
    return 0;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    using namespace fenwick;
    if (!launched_under_mpi()) {
        std::fprintf(stderr, "mpi_tests: start me with mpirun\n");
        return static_cast<int>(ExitCode::kUsage);
    }
    const std::string mode = argc > 1 ? argv[1] : "all";
    try {
        const MpiEnvironment environment;
        MpiCommunicator comm({milliseconds(60000)});
        try {
            if (mode == "abort") return fail_on_last_rank(comm);
            if (mode == "timeout") return stall_last_rank(comm);
            return run_all(comm);
        } catch (const std::exception& error) {
            comm.abort(error.what(), ExitCode::kUnavailable);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "mpi_tests: %s\n", error.what());
    }
    return 1;
}
