// What a pass on the GPU exchanges with other ranks, layer by layer: the convolution's halo, then the tree's nodes.
// Both go over the communicator's own stream while the compute stream does what needs nothing from other ranks:
//
//   compute  columns of the convolution | gates' columns | wait | convolution ... summaries, nodes |
//            gate's columns, what outputs can have before | wait | outputs
//   comm     after the first columns: halo, carried rows; after the nodes: rounds of lists, end list
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/cuda/stream.h"
#include "kernels/cuda/mixer.h"
#include "parallel/cuda/device_communicator.h"
#include "parallel/cuda/device_halo.h"
#include "parallel/cuda/device_summaries.h"
#include "parallel/shard_plan.h"

namespace fenwick::cuda {

/// Nodes of a layer's list for which memory is set aside from the start: documents of up to 2^14 blocks (67 million
/// tokens) take no more memory than short ones.
inline constexpr int kPlannedNodes = 14;
/// And those that exist for the length of one exchange.
inline constexpr int kPassingNodes = 8;

/// Times of one layer's exchange on the device, as events. Milliseconds.
struct ExchangeTimes {
    float exchange = 0.0F;  ///< from the shard's nodes to the entering ones
    float list = 0.0F;      ///< from the shard's nodes to the next pass's list
    float exposed = 0.0F;   ///< of it, what the compute stream waited for
    float halo_exposed = 0.0F;
};

class RankExchange {
public:
    explicit RankExchange(std::unique_ptr<DeviceCommunicator> comm);
    ~RankExchange();
    RankExchange(const RankExchange&) = delete;
    RankExchange& operator=(const RankExchange&) = delete;

    [[nodiscard]] DeviceCommunicator& comm() { return *comm_; }
    [[nodiscard]] SummaryPool& pool() { return pool_; }

    /// Exchanges a few bytes with every rank that a pass may talk to: connections are made, and fail, here.
    void connect();

    void begin_pass(const ShardPlan& plan);

    /// Sends what `compute` has in `rows` so far; `await_halo` makes `compute` wait for the halo.
    void start_halo(std::int32_t layer, std::int64_t halo_rows, const DeviceHalo& rows, cudaStream_t compute);
    void await_halo(cudaStream_t compute);

    /// Forms the nodes of `summaries` [complete blocks of the shard][floats], which `compute` has written so far,
    /// exchanges them and moves `carried` on behind the pass. Returns what enters the shard, valid until the next call;
    /// `await_entering` makes `compute` wait for its values. `scratch`: cover_scratch_floats.
    [[nodiscard]] std::vector<EnteringNode> start_exchange(std::int32_t layer, const MixerShape& shape,
                                                           const float* summaries, float* scratch,
                                                           NodeSummaries& carried, cudaStream_t compute);
    void await_entering(cudaStream_t compute);
    /// Makes `compute` wait for the end of the exchange: before it writes to `summaries` and `scratch` again.
    void await_list(cudaStream_t compute);

    /// While on, every layer's times are taken; `take_times` waits for the device and gives those since the last
    /// call.
    void measure(bool on) { measuring_ = on; }
    [[nodiscard]] std::vector<ExchangeTimes> take_times();

private:
    struct Marks;
    Marks* marks();

    std::unique_ptr<DeviceCommunicator> comm_;
    SummaryPool pool_;
    SummaryPool halo_pool_;  ///< apart: the compute stream takes of `pool_` without waiting for the carried rows
    Event compute_mark_;
    Event halo_there_;
    Event entering_there_;
    Event list_there_;  ///< of the last exchange
    ShardPlan plan_;
    ExchangeSchedule schedule_;
    std::map<std::int64_t, HaloPlan> halos_;  ///< of this pass, by halo rows
    NodeSummaries entering_;                  ///< kept until the compute stream has read it
    bool measuring_ = false;
    bool marks_begun_ = false;  ///< this layer's are there, from its halo on
    std::vector<std::unique_ptr<Marks>> times_;
};

}  // namespace fenwick::cuda
