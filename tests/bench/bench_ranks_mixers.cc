#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/cuda/stream.h"
#include "core/fenwick.h"
#include "kernels/cuda/mixer.h"
#include "parallel/collectives.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/self_device.h"
#include "parallel/shard_plan.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/device_data.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::bench {
namespace {

using cuda::DeviceBuffer;
using cuda::Event;
using cuda::MixerInputs;
using cuda::Operand;
using cuda::RankExchange;

struct Work {
    const char* name;
    MixerShape shape;
    bool log_linear;
    double level_cost;  ///< of make_shard_plan, as measured on an H200 with equal shards
};

const std::array<Work, 4> kWorks = {{
    {"Gated DeltaNet, 12 heads 128x128", {TransitionAlgebra::kMatrix, 12, 12, 128, 128, 0}, false, 0.0},
    {"log-linear Gated DeltaNet, 12 heads 128x128", {TransitionAlgebra::kMatrix, 12, 12, 128, 128, 0}, true, 0.2},
    {"Mamba-2, 12 heads 128x128", {TransitionAlgebra::kScalar, 12, 12, 128, 128, 0}, false, 0.0},
    {"log-linear Mamba-2, 48 heads 128x64", {TransitionAlgebra::kScalar, 48, 1, 128, 64, 0}, true, 0.1},
}};

std::int64_t levels_of(std::int64_t tokens) {
    std::int64_t levels = 1;
    for (; tokens > 1; tokens /= 2) ++levels;
    return levels;
}

/// A shard's rows and what the mixer makes of them.
class Shards {
public:
    Shards(const MixerShape& shape, const Shard& shard, cudaStream_t stream)
        : shape_(shape), shard_(shard), stream_(stream) {
        const std::int64_t first = shard.first_token;
        const std::int64_t rows = shard.tokens;
        const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
        q_ = random_operand(first, rows, shape.key_heads, shape.key_dim, 0.15F, false, 1, stream);
        k_ = random_operand(first, rows, shape.key_heads, shape.key_dim, 0.15F, matrix, 2, stream);
        v_ = random_operand(first, rows, shape.heads, shape.value_dim, 1.0F, false, 3, stream);
        decay_ = random_floats(first, rows, shape.heads, -0.05F, 0.0F, 4, stream);
        if (matrix) beta_ = random_floats(first, rows, shape.heads, 0.0F, 1.0F, 5, stream);
        if (shape.levels > 0) lambda_ = random_floats(first, rows, shape.heads * shape.levels, 0.1F, 1.5F, 6, stream);
        in_.q = q_.data();
        in_.k = k_.data();
        in_.v = v_.data();
        in_.log_decay = decay_.data();
        in_.beta = beta_.data();
        in_.lambda = lambda_.data();
        in_.q_stride = in_.k_stride = shape.key_heads * shape.key_dim;
        in_.v_stride = shape.heads * shape.value_dim;
        in_.decay_stride = in_.beta_stride = shape.heads;
        in_.lambda_stride = shape.heads * shape.levels;
        in_.rows = rows;
        const std::int64_t floats = summary_floats(shape);
        blocks_ = rows / kBlockTokens;
        summaries_ = DeviceBuffer<float>(blocks_ * floats, stream);
        scratch_ = DeviceBuffer<float>(cover_scratch_floats(blocks_, floats), stream);
        workspace_ = DeviceBuffer<std::byte>(
            static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, Operand::kBf16, rows, shard.first_block)),
            stream);
        out_ = DeviceBuffer<__nv_bfloat16>(rows * shape.heads * shape.value_dim, stream);
    }

    /// The mixer alone: nothing for other ranks or passes.
    void run_bare() {
        // Nothing follows the last block: nobody needs its summary.
        cuda::mixer_block_summaries(shape_, Operand::kBf16, in_, 0, blocks_ - 1, summaries_.data(), workspace_.data(),
                                    stream_);
        prepare();
        cuda::mixer_outputs(shape_, Operand::kBf16, in_, 0, {}, {summaries_.data()}, out_.data(), workspace_.data(),
                            stream_);
    }

    /// The mixer's step of a pass as the engine does it: with the exchange and the next pass's list.
    void run_step(RankExchange& exchange, const ShardPlan& plan) {
        NodeSummaries carried(summary_floats(shape_), 0);
        exchange.begin_pass(plan);
        cuda::mixer_block_summaries(shape_, Operand::kBf16, in_, shard_.first_block, blocks_, summaries_.data(),
                                    workspace_.data(), stream_);
        const std::vector<EnteringNode> entering =
            exchange.start_exchange(0, shape_, summaries_.data(), scratch_.data(), carried, stream_);
        prepare();
        exchange.await_entering(stream_);
        cuda::mixer_outputs(shape_, Operand::kBf16, in_, shard_.first_block, entering,
                            {summaries_.data(), scratch_.data(), blocks_}, out_.data(), workspace_.data(), stream_);
        exchange.await_list(stream_);
    }

    [[nodiscard]] std::uint64_t output_checksum() {
        return checksum(out_.data(), out_.size(), shard_.first_token * shape_.heads * shape_.value_dim, stream_);
    }

private:
    void prepare() {
        cuda::mixer_prepare_outputs(shape_, Operand::kBf16, in_, shard_.first_block, true, workspace_.data(), stream_);
    }

    MixerShape shape_;
    Shard shard_;
    cudaStream_t stream_;
    DeviceBuffer<__nv_bfloat16> q_, k_, v_, out_;
    DeviceBuffer<float> decay_, beta_, lambda_, summaries_, scratch_;
    DeviceBuffer<std::byte> workspace_;
    MixerInputs in_;
    std::int64_t blocks_ = 0;
};

template <class Run>
double time_alone(int runs, cudaStream_t stream, Run run) {
    const Event begin(true);
    const Event end(true);
    std::vector<double> times;
    for (int i = -2; i < runs; ++i) {
        begin.record(stream);
        run();
        end.record(stream);
        end.synchronize();
        if (i >= 0) times.push_back(end.milliseconds_since(begin));
    }
    return median(std::move(times));
}

/// Work of some 0.4 ms, so that the host has given all of what is timed by the time that it begins; then a message
/// between all ranks, so that they begin together.
class Meeting {
public:
    explicit Meeting(cuda::DeviceCommunicator& comm)
        : comm_(comm), filler_(kFiller, comm.stream()), words_(2, comm.stream()) {}

    void meet() {
        FENWICK_CUDA_CHECK(cudaMemsetAsync(filler_.data(), 0, filler_.bytes(), comm_.stream()));
        for (int peer = 1; peer < comm_.size(); ++peer) {
            const SendOp send{(comm_.rank() + peer) % comm_.size(), {words_.data(), 1}};
            const RecvOp recv{(comm_.rank() + comm_.size() - peer) % comm_.size(), {words_.data() + 1, 1}};
            comm_.exchange({0, "meeting"}, {&send, 1}, {&recv, 1});
        }
    }

private:
    static constexpr std::int64_t kFiller = std::int64_t{3} << 29;
    cuda::DeviceCommunicator& comm_;
    DeviceBuffer<std::byte> filler_;
    DeviceBuffer<std::byte> words_;
};

/// The slowest rank counts.
template <class Run>
double time_together(Communicator& world, cuda::DeviceCommunicator& comm, int runs, cudaStream_t stream, Run run) {
    const Event begin(true);
    const Event end(true);
    const Event met;
    Meeting meeting(comm);
    std::vector<double> times;
    for (int i = -2; i < runs; ++i) {
        barrier(world);
        meeting.meet();
        met.record(comm.stream());
        met.make_wait(stream);
        begin.record(stream);
        run();
        end.record(stream);
        end.synchronize();
        comm.check();
        const double time = largest(world, end.milliseconds_since(begin));
        if (i >= 0) times.push_back(time);
    }
    return median(std::move(times));
}

std::uint64_t sum_of(Communicator& world, std::uint64_t own) {
    std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
    const std::vector<std::int64_t> sizes(all.size(), sizeof(own));
    std::span<std::uint64_t> at_root(all.data(), world.rank() == 0 ? all.size() : 0);
    gather_to_root(world, std::as_bytes(std::span(&own, 1)), sizes, std::as_writable_bytes(at_root));
    std::uint64_t sum = 0;
    for (const std::uint64_t each : at_root) sum += each;
    return sum;
}

}  // namespace

bool bench_mixers(Communicator& world, std::int64_t tokens, int runs, const std::string& part) {
    const bool first = world.rank() == 0;
    auto counting =
        std::make_unique<CountingDevice>(std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{}));
    CountingDevice& counter = *counting;
    RankExchange exchange(std::move(counting));
    exchange.connect();
    const int ranks = world.size();
    const cuda::Stream stream;
    bool same = true;
    if (first) {
        fmt::print("mixers, forward, bf16, T {}; medians of {}; milliseconds\n", tokens, runs);
        fmt::print("{:<44} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9} {:>6}\n", "mixer", "1 GPU", "1, step",
                   fmt::format("{} GPUs", ranks), "speed-up", "exchange", "exposed", "bytes");
    }
    for (const Work& work : kWorks) {
        if (!part.empty() && std::strstr(work.name, part.c_str()) == nullptr) continue;
        MixerShape shape = work.shape;
        if (work.log_linear) shape.levels = levels_of(tokens);
        double bare = 0;
        double alone = 0;
        std::uint64_t want = 0;
        if (first) {
            RankExchange self(std::make_unique<cuda::SelfDeviceCommunicator>());
            const ShardPlan plan = make_shard_plan(0, tokens, 1);
            Shards whole(shape, plan.shard(0), stream.get());
            bare = time_alone(runs, stream.get(), [&] { whole.run_bare(); });
            alone = time_alone(runs, stream.get(), [&] { whole.run_step(self, plan); });
            want = whole.output_checksum();
        }
        stream.synchronize();
        const ShardPlan plan = make_shard_plan(0, tokens, ranks, work.level_cost);
        Shards mine(shape, plan.shard(world.rank()), stream.get());
        const double together =
            time_together(world, exchange.comm(), runs, stream.get(), [&] { mine.run_step(exchange, plan); });
        const std::uint64_t got = sum_of(world, mine.output_checksum());
        exchange.measure(true);
        (void)counter.take();
        Meeting meeting(exchange.comm());
        const Event met;
        for (int i = 0; i < runs; ++i) {
            barrier(world);
            meeting.meet();
            met.record(exchange.comm().stream());
            met.make_wait(stream.get());
            mine.run_step(exchange, plan);
            stream.synchronize();
        }
        const CountingDevice::Counts counts = counter.take();
        std::vector<double> exchange_ms;
        std::vector<double> exposed_ms;
        for (const cuda::ExchangeTimes& times : exchange.take_times()) {
            exchange_ms.push_back(times.exchange);
            exposed_ms.push_back(times.exposed);
        }
        exchange.measure(false);
        const double exchange_time = largest(world, median(exchange_ms));
        const double exposed_time = largest(world, median(exposed_ms));
        if (!first) continue;
        same = same && got == want;
        fmt::print("{:<44} {:>10.3f} {:>10.3f} {:>10.3f} {:>7.2f}x {:>10.3f} {:>9.3f} {:>6}\n", work.name, bare, alone,
                   together, bare / together, exchange_time, exposed_time, got == want ? "same" : "DIFFER");
        const ExchangeSchedule schedule = make_exchange_schedule(plan.complete_block_boundaries());
        fmt::print(
            "    rank 0 has {} of {} blocks; it sent in a step {} messages, {} bytes, in {} rounds; the schedule says "
            "{} messages, {} "
            "summaries of {} bytes, {} rounds\n",
            plan.shard(0).blocks, tokens / kBlockTokens, counts.messages / runs, counts.bytes / runs,
            counts.groups / runs, schedule.messages_sent(0), schedule.summaries_sent(0), summary_floats(shape) * 4,
            schedule.round_count());
        std::fflush(stdout);
    }
    return same;
}

void bench_exchange(Communicator& world, int runs) {
    const bool first = world.rank() == 0;
    RankExchange exchange(std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{}));
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
        DeviceBuffer<std::byte> out(bytes, comm.stream());
        DeviceBuffer<std::byte> in(bytes, comm.stream());
        FENWICK_CUDA_CHECK(cudaMemsetAsync(out.data(), 1, out.bytes(), comm.stream()));
        const double ms = time_together(world, comm, runs, comm.stream(),
                                        [&] {
                                            if (peer >= comm.size()) return;
                                            const SendOp send{peer, {out.data(), out.bytes()}};
                                            const RecvOp recv{peer, {in.data(), in.bytes()}};
                                            for (int i = 0; i < kSwaps; ++i)
                                                comm.exchange({0, "exchange"}, {&send, 1}, {&recv, 1});
                                        }) /
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
        DeviceBuffer<float> summaries = random_floats(0, blocks, floats, -0.05F, 0.0F, 9, stream.get());
        DeviceBuffer<float> scratch(cover_scratch_floats(blocks, floats), stream.get());
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
