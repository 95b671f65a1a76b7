#include "worker/training/backprop.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/errors.h"
#include "kernels/backward/cross_entropy.h"
#include "kernels/backward/embedding.h"
#include "kernels/backward/norm.h"
#include "kernels/embedding.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"

namespace fenwick {

Backprop::Backprop(std::shared_ptr<const Model> model, Communicator& group, int threads, BackpropOptions options)
    : model_(std::move(model)), group_(group), threads_(threads), options_(options) {
    initialise_blas();
}

StepLoss Backprop::run(std::span<const TrainingDocument> documents, float gradient_scale, Gradients& gradients) {
    if (!std::isfinite(gradient_scale)) {
        throw InternalError("backprop: gradient scale " + std::to_string(gradient_scale) + ", expected a finite one");
    }
    const Batch batch = lay_out(documents, group_);
    LayerPass pass(batch, model_->norm_eps(), group_, layer_memory_, threads_);
    forward(batch, pass);

    arena_.reset();
    const MatrixView<float> d = arena_.matrix(batch.rows(), model_->hidden_size());
    StepLoss loss;
    loss.nll_sum = head(batch, gradient_scale, d, gradients);
    loss.labels = batch.labels;
    const std::vector<LayerParts>& layers = model_->layers();
    for (std::size_t i = layers.size(); i-- > 0;) {
        group_.status().set_place(static_cast<std::int32_t>(i), "backward");
        ConvolvedRows rows;
        if (!options_.recompute) rows = pass.kept_at(layers[i], kept_[i].data());
        pass.backward(layers[i], layer_input(i, batch.rows()), options_.recompute ? nullptr : &rows, d, gradients);
    }
    embed_rows_backward(gradients.of(model_->embeddings()), batch.tokens.data(), d, threads_);
    return loss;
}

void Backprop::forward(const Batch& batch, LayerPass& pass) {
    const std::vector<LayerParts>& layers = model_->layers();
    const std::int64_t rows = batch.rows();
    rows_ = rows;
    const std::int64_t floats = (std::ssize(layers) + 1) * rows * model_->hidden_size();
    if (inputs_.size() < floats) inputs_ = Buffer<float>(floats);
    if (!options_.recompute) kept_.resize(layers.size());
    embed_rows(model_->embeddings(), batch.tokens.data(), layer_input(0, rows), threads_);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        group_.status().set_place(static_cast<std::int32_t>(i), "forward");
        copy_rows(layer_input(i, rows), layer_input(i + 1, rows));
        ConvolvedRows kept;
        if (!options_.recompute) {
            if (kept_[i].size() < pass.kept_floats(layers[i])) kept_[i] = Buffer<float>(pass.kept_floats(layers[i]));
            kept = pass.kept_at(layers[i], kept_[i].data());
        }
        pass.forward(layers[i], layer_input(i + 1, rows), options_.recompute ? nullptr : &kept);
    }
}

double Backprop::head(const Batch& batch, float gradient_scale, MatrixView<float> d, Gradients& gradients) {
    const std::int64_t rows = batch.rows();
    if (rows == 0) return 0.0;
    const std::int64_t hidden = model_->hidden_size();
    const MatrixView<float> x = layer_input(model_->layers().size(), rows);
    const MatrixView<float> h = arena_.matrix(rows, hidden);
    const MatrixView<float> nll = arena_.matrix(1, rows);
    rms_norm(x, model_->final_norm(), model_->norm_eps(), h, threads_);
    float* workspace =
        arena_.take(cross_entropy_backward_workspace_floats(rows, hidden, model_->vocab_size(), threads_));
    cross_entropy_with_gradient(h, model_->lm_head(), batch.targets.data(), {gradient_scale, options_.z_loss}, nll.data,
                                d, gradients.of(model_->lm_head()), threads_, workspace);
    rms_norm_backward(x, model_->final_norm(), model_->norm_eps(), d, d, false, gradients.of(model_->final_norm()),
                      threads_, arena_.take(norm_backward_workspace_floats(hidden)));
    double sum = 0.0;
    for (std::int64_t t = 0; t < rows; ++t) sum += static_cast<double>(nll.data[t]);
    return sum;
}

std::int64_t Backprop::first_not_finite() const {
    const std::int64_t floats = rows_ * model_->hidden_size();
    const std::int64_t layers = std::ssize(model_->layers());
    for (std::int64_t i = 0; i <= layers; ++i) {
        const float* first = inputs_.data() + i * floats;
        if (!std::all_of(first, first + floats, [](float value) { return std::isfinite(value); })) return i;
    }
    return -1;
}

MatrixView<float> Backprop::layer_input(std::size_t layer, std::int64_t rows) {
    const std::int64_t hidden = model_->hidden_size();
    return {inputs_.data() + static_cast<std::int64_t>(layer) * rows * hidden, rows, hidden};
}

}  // namespace fenwick
