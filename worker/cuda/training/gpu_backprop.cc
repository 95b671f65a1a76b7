#include "worker/cuda/training/gpu_backprop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nvtx3/nvtx3.hpp>
#include <string>
#include <utility>

#include "core/cuda/device_info.h"
#include "core/errors.h"
#include "kernels/cuda/backward/cross_entropy.h"
#include "kernels/cuda/backward/embedding.h"
#include "kernels/cuda/backward/norm.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/vectors.h"
#include "parallel/collectives.h"
#include "worker/cuda/training/gpu_layer_pass.h"

namespace fenwick::cuda {
namespace {

/// Left free for the libraries, for kernels that are loaded when they are first called, and for the exchange's lists.
constexpr std::int64_t kReservedBytes = std::int64_t{3} << 29;

void raise(std::int64_t& size, std::int64_t other) {
    size = std::max(size, other);
}

}  // namespace

GpuBackprop::GpuBackprop(std::shared_ptr<const Model> model, const FlatPlaces& places, Operand operand,
                         Communicator& group, DeviceCommunicator& device, float* gradients, GpuBackpropOptions options)
    : model_(std::move(model)),
      places_(places),
      group_(group),
      options_(options),
      gradients_(gradients),
      exchange_(device, operand, stream_.get()),
      weights_(*model_, operand, stream_.get()),
      first_bad_(std::ssize(model_->layers()) + 1, stream_.get()),
      host_first_bad_(first_bad_.size()) {
    for (const LayerParts& layer : model_->layers()) {
        layer_gradients_.push_back(gradients_of(layer, places_, gradients_));
        log_linear_ = log_linear_ || layer.mixer->shape().log_linear();
    }
}

GpuBackprop::~GpuBackprop() {
    (void)cudaStreamSynchronize(stream_.get());  // nothing may still use what is given back now
}

void GpuBackprop::make_room(const GpuBatch& batch) {
    const std::int64_t blocks = std::max<std::int64_t>(batch.blocks, 1);
    TrainingSizes wanted = training_sizes(*model_, weights_.operand(), blocks * kBlockTokens, 0);
    wanted.mixer_workspace = 0;
    for (const GpuRun& run : batch.runs) {
        if (run.rows == 0) continue;
        const TrainingSizes sizes = training_sizes(*model_, weights_.operand(), run.rows, run.first_block);
        raise(wanted.mixer_workspace, sizes.mixer_workspace);
    }
    if (wanted.rows <= sizes_.rows && wanted.mixer_workspace <= sizes_.mixer_workspace &&
        wanted.row_workspace <= sizes_.row_workspace) {
        return;
    }
    raise(wanted.rows, sizes_.rows);
    raise(wanted.mixer_workspace, sizes_.mixer_workspace);
    raise(wanted.row_workspace, sizes_.row_workspace);
    slab_ = {};  // before the new one is asked for
    sizes_ = {};
    stream_.synchronize();
    const std::int64_t left = free_device_bytes() - kReservedBytes;
    std::int64_t places = places_that_fit(wanted, left);
    if (options_.most_places > 0) places = std::min(places, options_.most_places);
    if (places < 1 && wanted.pass.layers > 0) {
        throw UnavailableError(fmt::format(
            "training on the GPU: a micro-batch of {} rows needs {} bytes of device memory, {} are free beside weights "
            "and optimiser; use a smaller data.batch_tokens or more ranks",
            wanted.rows, lay_out(wanted, 1, nullptr).bytes, left));
    }
    slab_ = DeviceBuffer<unsigned char>(lay_out(wanted, places, nullptr).bytes, stream_.get());
    memory_ = lay_out(wanted, places, slab_.data());
    sizes_ = wanted;
    kept_places_ = places;
    host_rows_ = PinnedBuffer<std::int32_t>(3 * wanted.rows);
    host_nll_ = PinnedBuffer<float>(wanted.rows);
    host_most_likely_ = PinnedBuffer<std::uint8_t>(wanted.rows);
}

/// Ranks that exchange have to run the layers in one order: that of the rank with the fewest places.
void GpuBackprop::plan_together() {
    std::vector<double> places(static_cast<std::size_t>(group_.size()), 0.0);
    places[static_cast<std::size_t>(group_.rank())] = static_cast<double>(kept_places_);
    if (group_.size() > 1) all_sum(group_, places);
    const auto fewest = static_cast<std::int64_t>(*std::min_element(places.begin(), places.end()));
    if (fewest == planned_places_) return;
    plan_ = plan_recompute(sizes_.pass.layers + 1, fewest);
    planned_places_ = fewest;
}

void GpuBackprop::upload(const GpuBatch& batch, bool scored) {
    const std::int64_t rows = batch.rows();
    if (rows == 0) return;
    std::int32_t* tokens = host_rows_.data();
    std::int32_t* targets = tokens + rows;
    std::int32_t* positions = targets + rows;
    std::copy(batch.tokens.begin(), batch.tokens.end(), tokens);
    // Without gradients a loss is formed for every row, and not looked at where there is no target.
    std::transform(batch.targets.begin(), batch.targets.end(), targets,
                   [&](std::int32_t target) { return scored || target != kNoTarget ? target : 0; });
    std::copy(batch.positions.begin(), batch.positions.end(), positions);
    const auto give = [&](const std::int32_t* from, std::int32_t* to, std::int64_t count) {
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                                           cudaMemcpyHostToDevice, stream_.get()));
    };
    give(tokens, memory_.pass.tokens, 2 * rows);
    give(positions, memory_.positions, rows);
    embed_rows(weights_.operand(), weights_.embeddings(), memory_.pass.tokens, memory_.pass.x, rows, weights_.hidden(),
               stream_.get());
}

float* GpuBackprop::kept(std::int64_t place) const {
    return place == RecomputeAction::kWorking ? memory_.pass.x
                                              : memory_.kept + place * sizes_.rows * sizes_.pass.hidden;
}

StepLoss GpuBackprop::run(std::span<const TrainingDocument> documents, float gradient_scale) {
    if (!std::isfinite(gradient_scale)) {
        throw InternalError("backprop: gradient scale " + std::to_string(gradient_scale) + ", expected a finite one");
    }
    const nvtx3::scoped_range range("micro-batch");
    values_ = 0;
    const GpuBatch batch = pack_batch(documents, group_, log_linear_);
    StepLoss loss;
    loss.labels = batch.documents.labels;
    make_room(batch);
    plan_together();
    if (batch.runs.empty()) return loss;
    upload(batch, true);
    const std::int64_t rows = batch.rows();
    const std::int64_t layers = sizes_.pass.layers;
    const auto bytes = static_cast<std::size_t>(rows * sizes_.pass.hidden) * sizeof(float);
    GpuLayerPass pass(weights_, matmul_, memory_, batch, exchange_, stream_.get());
    std::int64_t reached = 0;  // layers whose input rows were there
    look_at_rows(reached++, rows);
    for (const RecomputeAction& action : plan_) {
        const auto step = static_cast<std::size_t>(action.step);
        const auto index = static_cast<std::int32_t>(action.step);
        switch (action.kind) {
            case RecomputeAction::Kind::kRun:
                group_.status().set_place(index, "forward");
                pass.forward(weights_.layers()[step], index);
                if (action.step + 1 == reached) look_at_rows(reached++, rows);
                break;
            case RecomputeAction::Kind::kKeep:
            case RecomputeAction::Kind::kLoad: {
                const bool keep = action.kind == RecomputeAction::Kind::kKeep;
                float* from = keep ? memory_.pass.x : kept(action.place);
                float* to = keep ? kept(action.place) : memory_.pass.x;
                if (rows == 0) break;
                FENWICK_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()));
                break;
            }
            case RecomputeAction::Kind::kBack:
                if (action.step == layers) {
                    head(kept(action.place), rows, gradient_scale);
                    break;
                }
                group_.status().set_place(index, "backward");
                pass.backward(weights_.layers()[step], layer_gradients_[step], index, kept(action.place));
                break;
        }
    }
    if (rows > 0) {
        embed_rows_backward(gradients_ + places_.of(model_->embeddings().data), memory_.pass.tokens, memory_.d, rows,
                            weights_.vocab(), weights_.hidden(), memory_.row_workspace, stream_.get());
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(host_nll_.data(), memory_.pass.nll,
                                           static_cast<std::size_t>(rows) * sizeof(float), cudaMemcpyDeviceToHost,
                                           stream_.get()));
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(host_first_bad_.data(), first_bad_.data(), first_bad_.bytes(),
                                           cudaMemcpyDeviceToHost, stream_.get()));
    }
    synchronize();
    values_ = rows * sizes_.pass.hidden;
    for (std::int64_t t = 0; t < rows; ++t) loss.nll_sum += static_cast<double>(host_nll_.data()[t]);
    return loss;
}

void GpuBackprop::look_at_rows(std::int64_t place, std::int64_t rows) {
    find_not_finite(memory_.pass.x, rows * sizes_.pass.hidden, first_bad_.data() + place, stream_.get());
}

std::int64_t GpuBackprop::first_not_finite() const {
    if (values_ == 0) return -1;
    for (std::int64_t i = 0; i < host_first_bad_.size(); ++i) {
        if (host_first_bad_.data()[i] < values_) return i;
    }
    return -1;
}

void GpuBackprop::head(const float* x, std::int64_t rows, float gradient_scale) {
    if (rows == 0) return;
    const std::int64_t hidden = weights_.hidden();
    rms_norm(weights_.operand(), x, weights_.final_norm(), weights_.norm_eps(), memory_.pass.normed, rows, hidden,
             stream_.get());
    CrossEntropyBackward call;
    call.forward = {weights_.operand(),
                    memory_.pass.normed,
                    weights_.lm_head(),
                    memory_.pass.tokens + rows,
                    memory_.pass.nll,
                    rows,
                    hidden,
                    weights_.vocab()};
    call.options = {gradient_scale, options_.z_loss};
    call.d_h = memory_.d;
    call.d_lm_head = gradients_ + places_.of(model_->lm_head().data);
    cross_entropy_with_gradient(call, matmul_, memory_.row_workspace, memory_.pass.matmul_workspace, stream_.get());
    RmsNormBackward norm;
    norm.x = x;
    norm.weight = weights_.final_norm();
    norm.eps = weights_.norm_eps();
    norm.dy = norm.dx = memory_.d;
    norm.d_weight = gradients_ + places_.of(model_->final_norm());
    norm.rows = rows;
    norm.channels = hidden;
    rms_norm_backward(norm, memory_.row_workspace, stream_.get());
}

void GpuBackprop::losses(std::span<const TrainingDocument> documents, const RowScores& scores) {
    const GpuBatch batch = pack_batch(documents, group_, log_linear_);
    if (batch.runs.empty()) return;
    make_room(batch);
    upload(batch, false);
    const std::int64_t rows = batch.rows();
    GpuLayerPass pass(weights_, matmul_, memory_, batch, exchange_, stream_.get());
    for (std::size_t i = 0; i < weights_.layers().size(); ++i) {
        pass.forward(weights_.layers()[i], static_cast<std::int32_t>(i));
    }
    if (rows > 0) {
        rms_norm(weights_.operand(), memory_.pass.x, weights_.final_norm(), weights_.norm_eps(), memory_.pass.normed,
                 rows, weights_.hidden(), stream_.get());
        cross_entropy({weights_.operand(), memory_.pass.normed, weights_.lm_head(), memory_.pass.tokens + rows,
                       memory_.pass.nll, rows, weights_.hidden(), weights_.vocab(), memory_.pass.most_likely},
                      matmul_, memory_.pass.loss_workspace, memory_.pass.matmul_workspace, stream_.get());
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(host_most_likely_.data(), memory_.pass.most_likely,
                                           static_cast<std::size_t>(rows), cudaMemcpyDeviceToHost, stream_.get()));
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(host_nll_.data(), memory_.pass.nll,
                                           static_cast<std::size_t>(rows) * sizeof(float), cudaMemcpyDeviceToHost,
                                           stream_.get()));
    }
    synchronize();
    std::size_t next = 0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
        for (std::size_t t = 0; t < documents[i].targets.size(); ++t, ++next) {
            const bool scored = documents[i].targets[t] != kNoTarget;
            const std::int64_t row = batch.first_rows[i] + static_cast<std::int64_t>(t);
            scores.nll[next] = scored ? host_nll_.data()[row] : 0.0F;
            scores.most_likely[next] = scored ? host_most_likely_.data()[row] : 0;
        }
    }
}

/// Both streams; what came over is whole afterwards.
void GpuBackprop::synchronize() {
    stream_.synchronize();
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(exchange_.comm().stream()));
    exchange_.comm().check();
}

}  // namespace fenwick::cuda
