// Training on a rank's GPU: worker/training/training_engine.h with weights, gradients, moments and master values on the
// device.
//
// The flat vectors are fp32: all gradients, and this rank's slice of values and moments. After a step the slices'
// values are gathered where the gradients were, and the weights that products read, of the operand type, are made from
// them. Sums over ranks are formed in rank order, in double (parallel/cuda/device_collectives.h): the same bits each
// time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "parallel/cuda/device_collectives.h"
#include "parallel/cuda/device_communicator.h"
#include "worker/cuda/training/gpu_backprop.h"
#include "worker/training/slice_parts.h"
#include "worker/training/training_engine.h"

namespace fenwick::cuda {

class GpuEngine final : public TrainingEngine {
public:
    /// Collective. As make_training_engine; `device`: the world's ranks between devices, with the current device.
    GpuEngine(const std::shared_ptr<Model>& model, Communicator& world, const TrainingRanks& ranks, Operand operand,
              std::unique_ptr<DeviceCommunicator> device, GpuBackpropOptions options);
    ~GpuEngine() override;

    [[nodiscard]] const std::vector<Parameter>& parameters() const override { return parameters_; }
    void zero_gradients() override;
    StepLoss run(std::span<const TrainingDocument> documents, float gradient_scale) override {
        return backprop_.run(documents, gradient_scale);
    }
    [[nodiscard]] double reduce() override;
    void step(const AdamW& hyper, std::int64_t update, float gradient_scale) override;
    [[nodiscard]] std::int64_t first_not_finite_rows() const override { return backprop_.first_not_finite(); }
    [[nodiscard]] std::optional<std::int64_t> first_not_finite_gradient() override;
    [[nodiscard]] CheckpointSlice slice() override;
    void restore(const TrainingCheckpoint& checkpoint) override;
    void publish() override;
    void losses(std::span<const TrainingDocument> documents, const RowScores& scores) override {
        backprop_.losses(documents, scores);
    }

    [[nodiscard]] GpuBackprop& backprop() { return backprop_; }
    /// The gradients on the host, for tests.
    [[nodiscard]] std::vector<float> gradients();

private:
    void give(std::span<const float> from, float* to);
    void fetch(const float* from, std::span<float> to);
    [[nodiscard]] cudaStream_t stream() const { return backprop_.stream(); }

    std::shared_ptr<Model> model_;
    Communicator& world_;
    std::vector<Parameter> parameters_;
    FlatPlaces places_;
    Slice own_;
    std::vector<SliceRun> runs_;
    std::unique_ptr<DeviceCommunicator> device_;
    std::unique_ptr<DeviceCommunicator> group_;
    Stream memory_stream_;              // of the vectors' memory: outlives it
    DeviceBuffer<float> gradients_;     // [all]
    DeviceBuffer<float> own_gradient_;  // [own]; one rank: none, the gradients themselves
    DeviceBuffer<float> values_;        // [own]
    DeviceBuffer<float> exp_avg_;       // [own]
    DeviceBuffer<float> exp_avg_sq_;    // [own]
    DeviceBuffer<unsigned char> norm_;  // workspace of the norm, and its result before it
    DeviceCollectives collectives_;
    GpuBackprop backprop_;
    Event mark_;
    Buffer<float> host_[3];  // the slice on the host, for checkpoints
};

}  // namespace fenwick::cuda
