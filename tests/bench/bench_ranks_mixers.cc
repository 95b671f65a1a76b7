#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/cuda/stream.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "parallel/collectives.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/self_device.h"
#include "parallel/shard_plan.h"
#include "tests/bench/bench_figures.h"
#include "tests/bench/bench_meeting.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/mixer_shard.h"
#include "tests/bench/mixer_works.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::bench {
namespace {

using cuda::Event;
using cuda::RankExchange;

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
std::unique_ptr<MixerShard> fit(const MixerShape& shape, const Shard& shard, cudaStream_t stream) {
    try {
        return std::make_unique<MixerShard>(shape, shard, stream);
    } catch (const UnavailableError& error) {
        fmt::print("    a shard of {} tokens does not fit: {}\n", shard.tokens, error.what());
        return nullptr;
    }
}

std::optional<Alone> run_alone(const MixerShape& shape, std::int64_t tokens, int runs, cudaStream_t stream) {
    RankExchange self(std::make_unique<cuda::SelfDeviceCommunicator>());
    const ShardPlan plan = make_shard_plan(0, tokens, 1);
    const std::unique_ptr<MixerShard> whole = fit(shape, plan.shard(0), stream);
    if (whole == nullptr) return std::nullopt;
    Alone alone;
    alone.bare = time_alone(runs, stream, [&] { whole->run_bare(); });
    alone.step = time_alone(runs, stream, [&] { whole->run_step(self, plan); });
    alone.checksum = whole->output_checksum();
    return alone;
}

/// One step after the other, each counted and its exchange timed.
void run_counted(Communicator& world, RankExchange& exchange, CountingDevice& counter, MixerShard& mine,
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
    const std::unique_ptr<MixerShard> mine = fit(shape, plan.shard(world.rank()), stream);
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

}  // namespace fenwick::bench
