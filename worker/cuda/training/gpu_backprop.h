// The gradients of a model's loss over a micro-batch of documents, on a GPU, over a group of ranks: the steps of
// worker/training/backprop.h with weights, activations and gradients on the device.
//
// Of every layer's input rows as many are kept as there is memory for; the others are formed again
// (worker/training/recompute_plan.h). On the way back every layer's inside is formed again from its input.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/matmul.h"
#include "parallel/cuda/device_communicator.h"
#include "worker/cuda/gpu_model.h"
#include "worker/cuda/training/gpu_batch.h"
#include "worker/cuda/training/layer_gradients.h"
#include "worker/cuda/training/training_exchange.h"
#include "worker/cuda/training/training_memory.h"
#include "worker/training/backprop.h"
#include "worker/training/recompute_plan.h"

namespace fenwick::cuda {

class GpuLayerPass;

struct GpuBackpropOptions {
    float z_loss = 0.0F;
    std::int64_t most_places = 0;  ///< layer inputs that are kept at most, for tests; 0: what fits
};

class GpuBackprop {
public:
    /// `group`: the ranks that work on the same documents; `device`: the same ranks' memories. Both outlive this
    /// object, and so do `model` in its place (its parameters' addresses name them) and `gradients`, the flat vector on
    /// the device that `run` adds to. Uploads the weights to the current device.
    GpuBackprop(std::shared_ptr<const Model> model, const FlatPlaces& places, Operand operand, Communicator& group,
                DeviceCommunicator& device, float* gradients, GpuBackpropOptions options);
    ~GpuBackprop();
    GpuBackprop(const GpuBackprop&) = delete;
    GpuBackprop& operator=(const GpuBackprop&) = delete;

    /// Collective; as Backprop::run. Waits once, at its end. Throws UnavailableError when the device's memory is too
    /// small: the message says what is needed and what there is.
    StepLoss run(std::span<const TrainingDocument> documents, float gradient_scale);

    /// Of the last run, on this rank: as Backprop::first_not_finite.
    [[nodiscard]] std::int64_t first_not_finite() const;

    /// Collective. Scores of this rank's rows of `documents`, one after the other.
    void losses(std::span<const TrainingDocument> documents, const RowScores& scores);

    /// New weights, from a flat vector on the device, in the order of `stream()`.
    void refresh(const float* flat) { weights_.refresh(places_, flat, stream_.get()); }

    [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }
    [[nodiscard]] std::int64_t places() const { return planned_places_; }  ///< layer inputs that are kept
    [[nodiscard]] std::int64_t bytes() const { return slab_.size(); }      ///< of a pass, those included

private:
    void make_room(const GpuBatch& batch);
    void plan_together();
    void upload(const GpuBatch& batch, bool scored);
    [[nodiscard]] float* kept(std::int64_t place) const;
    void head(const float* x, std::int64_t rows, float gradient_scale);
    void look_at_rows(std::int64_t place, std::int64_t rows);
    void synchronize();

    std::shared_ptr<const Model> model_;
    FlatPlaces places_;
    Communicator& group_;
    GpuBackpropOptions options_;
    float* gradients_;
    Stream stream_;  // outlives everything that lies on the device
    TrainingExchange exchange_;
    GpuModel weights_;
    Matmul matmul_;
    bool log_linear_ = false;
    std::vector<LayerGradients> layer_gradients_;
    TrainingSizes sizes_;  // that memory_ was laid out for
    DeviceBuffer<unsigned char> slab_;
    TrainingMemory memory_;
    std::int64_t kept_places_ = 0;
    std::int64_t planned_places_ = -1;  // of plan_
    std::vector<RecomputeAction> plan_;
    PinnedBuffer<std::int32_t> host_rows_;  // [3, rows]: tokens, targets, positions
    PinnedBuffer<float> host_nll_;
    PinnedBuffer<std::uint8_t> host_most_likely_;
    DeviceBuffer<std::int64_t> first_bad_;  // [layers + 1] of each layer's input rows: the first value not finite
    PinnedBuffer<std::int64_t> host_first_bad_;
    std::int64_t values_ = 0;  // of a layer's rows in the last run
};

}  // namespace fenwick::cuda
