#include "worker/cuda/rank_exchange.h"

#include <nvtx3/nvtx3.hpp>
#include <utility>

#include "core/fenwick.h"

namespace fenwick::cuda {

/// Timed events of one layer, in the order in which they are recorded.
struct RankExchange::Marks {
    Event halo_wait{true};
    Event halo_go{true};
    Event nodes_there{true};
    Event entering_there{true};
    Event list_there{true};
    Event wait{true};
    Event go{true};
    bool with_halo = false;
};

RankExchange::RankExchange(std::unique_ptr<DeviceCommunicator> comm)
    : comm_(std::move(comm)), pool_(comm_->stream()), halo_pool_(comm_->stream()) {}

RankExchange::~RankExchange() = default;

RankExchange::Marks* RankExchange::marks() {
    return measuring_ ? times_.back().get() : nullptr;
}

void RankExchange::connect() {
    const int ranks = comm_->size();
    const int me = comm_->rank();
    const std::shared_ptr<SummaryBuffer> out = pool_.allocate(1);
    const std::shared_ptr<SummaryBuffer> in = pool_.allocate(1);
    FENWICK_CUDA_CHECK(cudaMemsetAsync(out->data(), 0, sizeof(float), comm_->stream()));
    const std::span<const std::byte> word{reinterpret_cast<const std::byte*>(out->data()), sizeof(float)};
    const std::span<std::byte> place{reinterpret_cast<std::byte*>(in->data()), sizeof(float)};
    // Full shards of one block each: every pair of ranks that swap lists.
    std::vector<std::int64_t> boundaries;
    for (int rank = 0; rank <= ranks; ++rank) boundaries.push_back(rank);
    const ExchangeSchedule schedule = make_exchange_schedule(std::move(boundaries));
    for (const ExchangeRound& round : schedule.rounds[static_cast<std::size_t>(me)]) {
        std::vector<SendOp> sends;
        std::vector<RecvOp> recvs;
        for (const ListSend& send : round.sends) sends.push_back({send.to, word});
        for (const ListReceive& receive : round.receives) recvs.push_back({receive.from, place});
        comm_->exchange({-1, "connecting"}, sends, recvs);
    }
    if (ranks > 1) {  // halos, and the rows that the last ranks hand to rank 0
        const SendOp send{(me + 1) % ranks, word};
        const RecvOp recv{(me + ranks - 1) % ranks, place};
        comm_->exchange({-1, "connecting"}, {&send, 1}, {&recv, 1});
    }
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(comm_->stream()));
    comm_->check();
}

void RankExchange::begin_pass(const ShardPlan& plan) {
    plan_ = plan;
    schedule_ = make_exchange_schedule(plan.complete_block_boundaries());
    halos_.clear();
}

void RankExchange::start_halo(std::int32_t layer, std::int64_t halo_rows, const DeviceHalo& rows,
                              cudaStream_t compute) {
    const nvtx3::scoped_range range("halo");
    auto found = halos_.find(halo_rows);
    if (found == halos_.end()) {
        std::vector<std::int64_t> rows_per_rank;
        for (const Shard& shard : plan_.shards) rows_per_rank.push_back(shard.tokens);
        found =
            halos_.emplace(halo_rows, plan_halo(rows_per_rank, static_cast<int>(halo_rows), plan_.first_token)).first;
    }
    compute_mark_.record(compute);
    compute_mark_.make_wait(comm_->stream());
    exchange_device_halo(found->second, *comm_, rows, halo_pool_, layer, [&] { halo_there_.record(comm_->stream()); });
    if (!measuring_) return;
    times_.push_back(std::make_unique<Marks>());
    times_.back()->with_halo = true;
    marks_begun_ = true;
}

void RankExchange::await_halo(cudaStream_t compute) {
    if (const Marks* m = marks()) m->halo_wait.record(compute);
    halo_there_.make_wait(compute);
    if (const Marks* m = marks()) m->halo_go.record(compute);
}

std::vector<EnteringNode> RankExchange::start_exchange(std::int32_t layer, const MixerShape& shape,
                                                       const float* summaries, float* scratch, NodeSummaries& carried,
                                                       cudaStream_t compute) {
    const nvtx3::scoped_range range("exchange");
    const cudaStream_t stream = comm_->stream();
    if (measuring_ && !std::exchange(marks_begun_, false)) times_.push_back(std::make_unique<Marks>());
    const BlockRun mine = schedule_.shard(comm_->rank());
    // The nodes of the shard are formed before anything else: other ranks wait for them, and beside large kernels they
    // would come late.
    DeviceSummaries computing(shape, pool_, compute);
    NodeSummaries own =
        cover_of_blocks(mine.first, {summaries, mine.size(), summary_floats(shape)}, computing, scratch);
    // Also what the last layer's outputs still read is done then: its memory may be taken again (SummaryPool).
    compute_mark_.record(compute);
    compute_mark_.make_wait(stream);
    if (const Marks* m = marks()) m->nodes_there.record(stream);
    DeviceExchange memory(*comm_, shape, pool_, layer);
    ExchangeResult result = run_exchange(schedule_, memory, std::move(own), carried, [&] {
        entering_there_.record(stream);
        if (const Marks* m = marks()) m->entering_there.record(stream);
    });
    list_there_.record(stream);
    if (const Marks* m = marks()) m->list_there.record(stream);
    entering_ = std::move(result.entering);
    carried = std::move(result.end);
    std::vector<EnteringNode> nodes;
    for (std::int64_t i = 0; i < entering_.size(); ++i) nodes.push_back({entering_.node(i).bit, entering_.values(i)});
    return nodes;
}

void RankExchange::await_entering(cudaStream_t compute) {
    if (const Marks* m = marks()) m->wait.record(compute);
    entering_there_.make_wait(compute);
    if (const Marks* m = marks()) m->go.record(compute);
}

void RankExchange::await_list(cudaStream_t compute) {
    list_there_.make_wait(compute);
}

std::vector<ExchangeTimes> RankExchange::take_times() {
    FENWICK_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<ExchangeTimes> all;
    for (const std::unique_ptr<Marks>& m : times_) {
        ExchangeTimes times;
        times.exchange = m->entering_there.milliseconds_since(m->nodes_there);
        times.list = m->list_there.milliseconds_since(m->nodes_there);
        times.exposed = m->go.milliseconds_since(m->wait);
        if (m->with_halo) times.halo_exposed = m->halo_go.milliseconds_since(m->halo_wait);
        all.push_back(times);
    }
    times_.clear();
    return all;
}

}  // namespace fenwick::cuda
