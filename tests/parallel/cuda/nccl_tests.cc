// Tests of a world of processes with a GPU each, started by mpirun (ops/gpu-ranks-check). Every rank runs every test
// and prints what is wrong; the exit code is 1 then. `nccl_tests silent`: the last rank does not take part, and the
// others must say so. Exit code 77: fewer GPUs than ranks.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "core/cuda/device_info.h"
#include "core/errors.h"
#include "parallel/cuda/device_halo.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/mpi_communicator.h"
#include "parallel/shard_plan.h"

namespace fenwick {
namespace {

using cuda::DeviceBuffer;
using cuda::NcclCommunicator;
using std::chrono::milliseconds;

std::byte value(int from, int to, std::size_t i) {
    return static_cast<std::byte>((i * 31 + static_cast<std::size_t>(from) * 7 + static_cast<std::size_t>(to)) & 255U);
}

DeviceBuffer<std::byte> to_device(const std::vector<std::byte>& bytes, cudaStream_t stream) {
    DeviceBuffer<std::byte> buffer(static_cast<std::int64_t>(bytes.size()), stream);
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return buffer;
}

std::vector<std::byte> to_host(const DeviceBuffer<std::byte>& buffer, cudaStream_t stream) {
    std::vector<std::byte> bytes(buffer.bytes());
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return bytes;
}

/// All to all but oneself, with sizes that are no multiples of anything.
std::string messages(NcclCommunicator& comm) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{4099}, std::size_t{3} << 20U}) {
        std::vector<DeviceBuffer<std::byte>> out;
        std::vector<DeviceBuffer<std::byte>> in;
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        for (int peer = 0; peer < comm.size(); ++peer) {
            std::vector<std::byte> bytes(size);
            for (std::size_t i = 0; i < size; ++i) bytes[i] = value(comm.rank(), peer, i);
            out.push_back(to_device(bytes, comm.stream()));
            in.emplace_back(static_cast<std::int64_t>(size), comm.stream());
            if (peer == comm.rank()) continue;
            sends.push_back({peer, {out.back().data(), size}});
            recvs.push_back({peer, {in.back().data(), size}});
        }
        comm.exchange({0, "messages"}, sends, recvs);
        for (int peer = 0; peer < comm.size(); ++peer) {
            if (peer == comm.rank()) continue;
            const std::vector<std::byte> got = to_host(in[static_cast<std::size_t>(peer)], comm.stream());
            for (std::size_t i = 0; i < size; ++i) {
                if (got[i] != value(peer, comm.rank(), i)) return "wrong bytes from rank " + std::to_string(peer);
            }
        }
        comm.check();
    }
    return {};
}

/// Rows that say their number in the document; halos of 3 rows over shards down to none.
std::string halo(NcclCommunicator& comm) {
    constexpr std::int64_t kRows = 3;
    constexpr std::int64_t kBytes = 10;
    cuda::SummaryPool pool(comm.stream());
    const int me = comm.rank();
    for (const std::int64_t first_row : {0, 2, 50}) {
        std::vector<std::int64_t> rows;
        for (int rank = 0; rank < comm.size(); ++rank) rows.push_back((rank * 5 + 4) % 7 + (rank == 0 ? 1 : 0));
        const HaloPlan plan = plan_halo(rows, kRows, first_row);
        std::vector<std::int64_t> starts{first_row};
        for (const std::int64_t count : rows) starts.push_back(starts.back() + count);
        const auto bytes_of = [&](std::int64_t first, std::int64_t count) {
            std::vector<std::byte> bytes(static_cast<std::size_t>(count * kBytes));
            for (std::size_t i = 0; i < bytes.size(); ++i) {
                const std::int64_t row = first + static_cast<std::int64_t>(i) / kBytes;
                bytes[i] = row < 0 ? std::byte{0}
                                   : static_cast<std::byte>(1 + row * 3 + static_cast<std::int64_t>(i) % kBytes);
            }
            return bytes;
        };
        const auto r = static_cast<std::size_t>(me);
        const DeviceBuffer<std::byte> own = to_device(bytes_of(starts[r], rows[r]), comm.stream());
        const DeviceBuffer<std::byte> carried = to_device(bytes_of(first_row - kRows, kRows), comm.stream());
        DeviceBuffer<std::byte> halo_out(kRows * kBytes, comm.stream());
        DeviceBuffer<std::byte> carried_out(kRows * kBytes, comm.stream());
        cuda::DeviceHalo memory{own.data(), kBytes, kBytes, nullptr, halo_out.data(), nullptr};
        if (me == 0) {
            memory.carried = carried.data();
            memory.carried_out = carried_out.data();
        }
        cuda::exchange_device_halo(plan, comm, memory, pool, 0, [] {});
        if (rows[r] > 0 && to_host(halo_out, comm.stream()) != bytes_of(starts[r] - kRows, kRows)) return "a halo";
        if (me == 0 && to_host(carried_out, comm.stream()) != bytes_of(starts.back() - kRows, kRows)) {
            return "the carried rows";
        }
    }
    return {};
}

int run_all(Communicator& world) {
    NcclCommunicator comm(world, {milliseconds(30000)});
    int faults = 0;
    for (const auto& [name, test] : {std::pair{"messages", &messages}, std::pair{"halo", &halo}}) {
        const std::string fault = test(comm);
        std::printf("%s %s on rank %d of %d%s%s\n", fault.empty() ? "passed" : "FAILED", name, comm.rank(), comm.size(),
                    fault.empty() ? "" : ": ", fault.c_str());
        faults += fault.empty() ? 0 : 1;
    }
    return faults == 0 ? 0 : 1;
}

/// The last rank sends nothing for longer than the others wait. They must be told within the deadline, not hang.
int fall_silent(Communicator& world) {
    world.status().set_step({Activity::kPass, -1, 0, {}});
    NcclCommunicator comm(world, {milliseconds(3000)});
    const int last = comm.size() - 1;
    if (comm.rank() == last) {
        std::this_thread::sleep_for(std::chrono::seconds(6));
        return 0;
    }
    DeviceBuffer<std::byte> in(1 << 20, comm.stream());
    const auto begun = std::chrono::steady_clock::now();
    try {
        const RecvOp recv{last, {in.data(), in.bytes()}};
        comm.exchange({5, "exchange, round 0"}, {}, {&recv, 1});
        FENWICK_CUDA_CHECK(cudaStreamSynchronize(comm.stream()));
        comm.check();
    } catch (const PeerLostError& error) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        const std::string text = error.what();
        const bool named = text.find("rank(s) " + std::to_string(last)) != std::string::npos &&
                           text.find("layer 5") != std::string::npos;
        std::printf("%s silent on rank %d after %.2f s: %s\n", named && seconds < 5 ? "passed" : "FAILED", comm.rank(),
                    seconds, error.what());
        return named && seconds < 5 ? 0 : 1;
    }
    std::printf("FAILED silent on rank %d: nobody noticed\n", comm.rank());
    return 1;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    using namespace fenwick;
    if (!launched_under_mpi()) {
        std::fprintf(stderr, "nccl_tests: start me with mpirun, a rank for each GPU\n");
        return static_cast<int>(ExitCode::kUsage);
    }
    try {
        const MpiEnvironment environment;
        MpiCommunicator comm({milliseconds(60000)});
        const int device = comm.local_rank();
        if (device >= static_cast<int>(cuda::probe_devices(false).devices.size())) {
            std::printf("skipped: no GPU for rank %d\n", comm.rank());
            return 77;
        }
        FENWICK_CUDA_CHECK(cudaSetDevice(device));
        try {
            return argc > 1 && std::string(argv[1]) == "silent" ? fall_silent(comm) : run_all(comm);
        } catch (const std::exception& error) {
            comm.abort(error.what(), ExitCode::kInternal);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "nccl_tests: %s\n", error.what());
    }
    return 1;
}
