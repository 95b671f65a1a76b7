#include <fmt/format.h>

#include <memory>
#include <vector>

#include "core/cuda/stream.h"
#include "core/fenwick.h"
#include "parallel/collectives.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/shard_plan.h"
#include "tests/bench/bench_meeting.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/device_data.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::bench {

void bench_exchange(Communicator& world, int runs) {
    const bool first = world.rank() == 0;
    cuda::RankExchange exchange(std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{}));
    exchange.connect();
    cuda::DeviceCommunicator& comm = exchange.comm();
    const cuda::Stream stream;
    const int peer = world.rank() ^ 1;
    constexpr int kSwaps = 10;  // one after the other, so that the start of a timing counts little
    if (first) {
        fmt::print("swaps between ranks 0 and 1 (grouped send and receive), {} in a row, medians of {}\n", kSwaps,
                   runs);
    }
    for (const std::int64_t bytes :
         {std::int64_t{4096}, std::int64_t{1573056}, std::int64_t{16} << 20, std::int64_t{256} << 20}) {
        cuda::DeviceBuffer<std::byte> out(bytes, comm.stream());
        cuda::DeviceBuffer<std::byte> in(bytes, comm.stream());
        FENWICK_CUDA_CHECK(cudaMemsetAsync(out.data(), 1, out.bytes(), comm.stream()));
        const double ms = median(time_together(world, comm, runs, comm.stream(),
                                               [&] {
                                                   if (peer >= comm.size()) return;
                                                   const SendOp send{peer, {out.data(), out.bytes()}};
                                                   const RecvOp recv{peer, {in.data(), in.bytes()}};
                                                   for (int i = 0; i < kSwaps; ++i)
                                                       comm.exchange({0, "exchange"}, {&send, 1}, {&recv, 1});
                                               })) /
                          kSwaps;
        if (first)
            fmt::print("    {:>12} bytes {:>10.1f} us, {:>6.1f} GB/s each way\n", bytes, 1000 * ms,
                       static_cast<double>(bytes) / ms / 1e6);
    }
    const MixerShape shape{TransitionAlgebra::kScalar, 48, 1, 128, 64, 15};
    Meeting meeting(comm);
    const std::int64_t floats = summary_floats(shape);
    if (first)
        fmt::print(
            "the exchange of one log-linear Mamba-2 layer (summary {} bytes), from its block summaries to the entering "
            "nodes\n",
            floats * 4);
    for (const std::int64_t blocks : {1, 16, 64, 128}) {
        const ShardPlan plan = make_shard_plan(0, blocks * world.size() * kBlockTokens, world.size());
        cuda::DeviceBuffer<float> summaries = random_floats(0, blocks, floats, -0.05F, 0.0F, 9, stream.get());
        cuda::DeviceBuffer<float> scratch(cover_scratch_floats(blocks, floats), stream.get());
        stream.synchronize();
        exchange.measure(true);
        for (int i = 0; i < runs + 2; ++i) {
            NodeSummaries carried(floats, 0);
            exchange.begin_pass(plan);
            barrier(world);
            meeting.meet();
            (void)exchange.start_exchange(0, shape, summaries.data(), scratch.data(), carried, stream.get());
            exchange.await_entering(stream.get());
            FENWICK_CUDA_CHECK(cudaDeviceSynchronize());
        }
        std::vector<double> times;
        for (const cuda::ExchangeTimes& each : exchange.take_times()) times.push_back(each.exchange);
        exchange.measure(false);
        const double ms = largest(world, median(times));
        if (first) fmt::print("    {:>4} blocks a rank {:>10.1f} us\n", blocks, 1000 * ms);
    }
    std::fflush(stdout);
}

}  // namespace fenwick::bench
