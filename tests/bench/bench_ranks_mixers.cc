#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/cuda/stream.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/mixer.h"
#include "parallel/collectives.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/self_device.h"
#include "parallel/shard_plan.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/device_data.h"
#include "tests/bench/mixer_works.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::bench {
namespace {

using cuda::DeviceBuffer;
using cuda::Event;
using cuda::MixerInputs;
using cuda::Operand;
using cuda::RankExchange;

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

/// Milliseconds of each run.
template <class Run>
std::vector<double> time_alone(int runs, cudaStream_t stream, Run run) {
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
    return times;
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

/// Milliseconds of each run; the slowest rank counts.
template <class Run>
std::vector<double> time_together(Communicator& world, cuda::DeviceCommunicator& comm, int runs, cudaStream_t stream,
                                  Run run) {
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
    return times;
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

/// Of one GPU.
struct Alone {
    std::vector<double> bare;  ///< ms of summaries and outputs
    std::vector<double> step;  ///< ms of the engine's step, with what the next pass needs
    std::uint64_t checksum = 0;
};

/// Of all ranks.
struct Together {
    std::vector<double> step;                          ///< ms
    double exchange = 0, exposed = 0;                  ///< ms, medians of the slowest rank
    CountingDevice::Counts sent;                       ///< by this rank, in one step
    std::int64_t messages = 0, bytes = 0, rounds = 0;  ///< in one step, of the rank with most
    bool as_scheduled = false;                         ///< every rank sent what the schedule says
    std::uint64_t checksum = 0;
};

/// Nothing where the GPU's memory is too small for the shard.
std::unique_ptr<Shards> fit(const MixerShape& shape, const Shard& shard, cudaStream_t stream) {
    try {
        return std::make_unique<Shards>(shape, shard, stream);
    } catch (const UnavailableError& error) {
        fmt::print("    a shard of {} tokens does not fit: {}\n", shard.tokens, error.what());
        return nullptr;
    }
}

std::optional<Alone> run_alone(const MixerShape& shape, std::int64_t tokens, int runs, cudaStream_t stream) {
    RankExchange self(std::make_unique<cuda::SelfDeviceCommunicator>());
    const ShardPlan plan = make_shard_plan(0, tokens, 1);
    const std::unique_ptr<Shards> whole = fit(shape, plan.shard(0), stream);
    if (whole == nullptr) return std::nullopt;
    Alone alone;
    alone.bare = time_alone(runs, stream, [&] { whole->run_bare(); });
    alone.step = time_alone(runs, stream, [&] { whole->run_step(self, plan); });
    alone.checksum = whole->output_checksum();
    return alone;
}

/// One step after the other, each counted and its exchange timed.
void run_counted(Communicator& world, RankExchange& exchange, CountingDevice& counter, Shards& mine,
                 const ShardPlan& plan, int runs, cudaStream_t stream, Together& together) {
    exchange.measure(true);
    (void)counter.take();
    Meeting meeting(exchange.comm());
    const Event met;
    for (int i = 0; i < runs; ++i) {
        barrier(world);
        meeting.meet();
        met.record(exchange.comm().stream());
        met.make_wait(stream);
        mine.run_step(exchange, plan);
        FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    const CountingDevice::Counts all = counter.take();
    std::vector<double> exchange_ms;
    std::vector<double> exposed_ms;
    for (const cuda::ExchangeTimes& times : exchange.take_times()) {
        exchange_ms.push_back(times.exchange);
        exposed_ms.push_back(times.exposed);
    }
    exchange.measure(false);
    together.exchange = largest(world, median(exchange_ms));
    together.exposed = largest(world, median(exposed_ms));
    together.sent = {all.groups / runs, all.messages / runs, all.bytes / runs};
}

/// Sets what the ranks sent beside what the schedule says.
void compare_with_schedule(Communicator& world, const ExchangeSchedule& schedule, std::int64_t summary_bytes,
                           Together& together) {
    const CountingDevice::Counts& sent = together.sent;
    const auto& rounds = schedule.rounds.at(static_cast<std::size_t>(world.rank()));
    const auto used = std::count_if(rounds.begin(), rounds.end(), [](const ExchangeRound& round) {
        return !round.sends.empty() || !round.receives.empty();
    });
    const bool own = sent.groups == used && sent.messages == schedule.messages_sent(world.rank()) &&
                     sent.bytes == schedule.summaries_sent(world.rank()) * summary_bytes;
    together.as_scheduled = largest(world, own ? 0 : 1) == 0;
    const auto most = [&](std::int64_t value) {
        return static_cast<std::int64_t>(largest(world, static_cast<double>(value)));
    };
    together.messages = most(sent.messages);
    together.bytes = most(sent.bytes);
    together.rounds = most(sent.groups);
}

/// Collective. Nothing where a rank's memory is too small for its shard.
std::optional<Together> run_together(Communicator& world, RankExchange& exchange, CountingDevice& counter,
                                     const MixerShape& shape, const ShardPlan& plan, int runs, cudaStream_t stream) {
    const std::unique_ptr<Shards> mine = fit(shape, plan.shard(world.rank()), stream);
    if (largest(world, mine == nullptr ? 1 : 0) > 0) return std::nullopt;
    Together together;
    together.step = time_together(world, exchange.comm(), runs, stream, [&] { mine->run_step(exchange, plan); });
    together.checksum = sum_of(world, mine->output_checksum());
    run_counted(world, exchange, counter, *mine, plan, runs, stream, together);
    compare_with_schedule(world, make_exchange_schedule(plan.complete_block_boundaries()), summary_floats(shape) * 4,
                          together);
    return together;
}

void report(const MixerWork& work, std::int64_t tokens, const ShardPlan& plan, const std::optional<Alone>& alone,
            const std::optional<Together>& together, const std::filesystem::path& json) {
    if (alone) {
        append_figure(json, {{"what", work.name},
                             {"part", "mixer"},
                             {"tokens", tokens},
                             {"ranks", 1},
                             {"ms", alone->bare},
                             {"step_ms", alone->step},
                             {"checksum", alone->checksum}});
    }
    if (!together) {
        fmt::print("{:<44} does not fit\n", work.name);
        return;
    }
    const auto ranks = std::ssize(plan.shards);
    append_figure(json, {{"what", work.name},
                         {"part", "mixer"},
                         {"tokens", tokens},
                         {"ranks", ranks},
                         {"ms", together->step},
                         {"exchange_ms", together->exchange},
                         {"exposed_ms", together->exposed},
                         {"messages", together->messages},
                         {"bytes", together->bytes},
                         {"rounds", together->rounds},
                         {"as_scheduled", together->as_scheduled},
                         {"checksum", together->checksum}});
    const double many = median(together->step);
    fmt::print("{:<44} {:>10.3f} {:>10.3f} {:>10.3f} {:>7.2f}x {:>10.3f} {:>9.3f} {:>6}\n", work.name,
               alone ? median(alone->bare) : 0.0, alone ? median(alone->step) : 0.0, many,
               alone ? median(alone->bare) / many : 0.0, together->exchange, together->exposed,
               !alone ? "-" : (alone->checksum == together->checksum ? "same" : "DIFFER"));
    const ExchangeSchedule schedule = make_exchange_schedule(plan.complete_block_boundaries());
    fmt::print(
        "    rank 0 has {} of {} blocks; it sent in a step {} messages, {} bytes, in {} rounds; the schedule says {} "
        "messages, {} summaries, {} rounds; {}\n",
        plan.shard(0).blocks, tokens / kBlockTokens, together->sent.messages, together->sent.bytes,
        together->sent.groups, schedule.messages_sent(0), schedule.summaries_sent(0), schedule.round_count(),
        together->as_scheduled ? "every rank as scheduled" : "a rank NOT AS SCHEDULED");
    std::fflush(stdout);
}

}  // namespace

bool bench_mixers(Communicator& world, std::int64_t tokens, int runs, const std::string& part,
                  const std::filesystem::path& json) {
    const bool first = world.rank() == 0;
    auto counting =
        std::make_unique<CountingDevice>(std::make_unique<cuda::NcclCommunicator>(world, cuda::NcclOptions{}));
    CountingDevice& counter = *counting;
    RankExchange exchange(std::move(counting));
    exchange.connect();
    const cuda::Stream stream;
    bool same = true;
    if (first) {
        fmt::print("mixers, forward, bf16, T {}; medians of {}; milliseconds\n", tokens, runs);
        fmt::print("{:<44} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9} {:>6}\n", "mixer", "1 GPU", "1, step",
                   fmt::format("{} GPUs", world.size()), "speed-up", "exchange", "exposed", "bytes");
    }
    for (const MixerWork& work : kMixerWorks) {
        if (!part.empty() && std::strstr(work.name, part.c_str()) == nullptr) continue;
        MixerShape shape = work.shape;
        if (work.log_linear) shape.levels = levels_of(tokens);
        std::optional<Alone> alone;
        if (first) alone = run_alone(shape, tokens, runs, stream.get());
        stream.synchronize();
        const ShardPlan plan = make_shard_plan(0, tokens, world.size(), work.level_cost);
        const std::optional<Together> together =
            run_together(world, exchange, counter, shape, plan, runs, stream.get());
        if (!first) continue;
        report(work, tokens, plan, alone, together, json);
        if (together) same = same && together->as_scheduled && (!alone || alone->checksum == together->checksum);
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
