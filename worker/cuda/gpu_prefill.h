// One rank's part of a pass on its GPU: the steps of worker/prefill.h with weights, activations and states on the
// device.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/stream.h"
#include "kernels/cuda/matmul.h"
#include "worker/cuda/gpu_layer.h"
#include "worker/cuda/rank_exchange.h"
#include "worker/pass_runner.h"

namespace fenwick::cuda {

class GpuPrefill final : public PassRunner {
public:
    /// Collective. Uploads the weights to the current device, which is the communicator's too. `status`: of the world
    /// that gives the orders. Throws UnavailableError when its memory is too small, PeerLostError when peers fail.
    GpuPrefill(std::shared_ptr<const Model> model, Operand operand, std::unique_ptr<DeviceCommunicator> comm,
               WorldStatus& status);
    ~GpuPrefill() override;

    void reset() override;
    void run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                  std::span<float> nll) override;
    [[nodiscard]] std::vector<LayerCarry>& carries() override { return host_carries_; }
    void collect_carries() override;
    void carries_changed(std::int64_t position) override;
    [[nodiscard]] const Model& model() const override { return *model_; }

    /// For benchmarks: times of the layers' exchanges.
    [[nodiscard]] RankExchange& exchange() { return *exchange_; }

private:
    void make_room(std::int64_t rows, std::int64_t first_block);
    void run_layers(const Shard& mine, std::int64_t rows);
    void synchronize();
    void losses(const std::int32_t* targets, std::int64_t count);
    [[nodiscard]] bool keeps_halos() { return exchange_->comm().rank() == 0; }

    std::shared_ptr<const Model> model_;
    WorldStatus& status_;
    Stream stream_;  // outlives everything that lies on the device
    std::unique_ptr<RankExchange> exchange_;
    GpuModel weights_;
    PassSizes sizes_;
    Matmul matmul_;
    std::vector<GpuCarry> carries_;
    std::int64_t blocks_ = 0;  // complete blocks that have passed
    DeviceBuffer<unsigned char> slab_;
    PassMemory memory_;
    std::int64_t capacity_ = 0;     // rows of memory_
    std::int64_t mixer_bytes_ = 0;  // of memory_.mixer_workspace
    PinnedBuffer<std::int32_t> host_tokens_;
    PinnedBuffer<float> host_nll_;
    std::vector<LayerCarry> host_carries_;
};

}  // namespace fenwick::cuda
