// The GPU's prefill of one rank: the steps of worker/prefill.h with weights, activations and states on the device.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/stream.h"
#include "kernels/cuda/matmul.h"
#include "worker/cuda/gpu_layer.h"
#include "worker/pass_runner.h"

namespace fenwick::cuda {

class GpuPrefill final : public PassRunner {
public:
    /// Uploads the weights to the current device. Throws UnavailableError when its memory is too small.
    GpuPrefill(std::shared_ptr<const Model> model, Operand operand);
    ~GpuPrefill() override;

    void reset() override;
    void run_pass(const ShardPlan& plan, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                  std::span<float> nll) override;
    [[nodiscard]] std::vector<LayerCarry>& carries() override { return host_carries_; }
    void collect_carries() override;
    void carries_changed(std::int64_t position) override;
    [[nodiscard]] const Model& model() const override { return *model_; }

private:
    void make_room(std::int64_t rows);

    std::shared_ptr<const Model> model_;
    Stream stream_;  // outlives everything that lies on the device
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
