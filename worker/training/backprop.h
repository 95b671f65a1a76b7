// The gradients of a model's loss over a micro-batch of documents, on the CPU, over a group of ranks.
//
// Forward through all layers, keeping each layer's input rows alone; the head's loss and gradient in one walk; then
// back layer by layer, each formed again from its input (layer_pass.h). Embeddings, norms, projections and the MLP see
// the rows of all documents at once; convolution and mixer go document by document.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/communicator.h"
#include "worker/model.h"
#include "worker/training/batch.h"
#include "worker/training/gradients.h"
#include "worker/training/layer_pass.h"

namespace fenwick {

struct BackpropOptions {
    bool recompute = true;  ///< activation checkpointing by layer; false: every layer's ConvolvedRows are kept as well
    float z_loss = 0.0F;    ///< the objective of a label is nll + z_loss * logsumexp(logits)^2
};

/// This rank's part.
struct StepLoss {
    double nll_sum = 0.0;     ///< nats, without z-loss
    std::int64_t labels = 0;  ///< rows with a target
};

/// How rows were predicted, without gradients: [rows] each, 0 where there is no target.
struct RowScores {
    std::span<float> nll;                 ///< nats
    std::span<std::uint8_t> most_likely;  ///< 1: no other token had a larger logit than the target
};

class Backprop {
public:
    /// `group`: the ranks that work on the same documents. `threads`: CPU threads of this rank.
    Backprop(std::shared_ptr<const Model> model, Communicator& group, int threads, BackpropOptions options = {});

    /// Collective: all ranks of the group with their parts of the same documents, in one order. Adds to `gradients`
    /// (of the same model's parameters) this rank's part of gradient_scale times the gradient of the objective's sum
    /// over the labels: the sum of all ranks' parts is the whole. Labels may be none, here or anywhere; their gradient
    /// is 0. Same documents, group and values: same bits, whatever the threads.
    /// Throws InternalError for documents that do not fit the group, and for tokens or targets outside the vocabulary;
    /// PeerLostError when a peer failed.
    StepLoss run(std::span<const TrainingDocument> documents, float gradient_scale, Gradients& gradients);

    /// Of the last run, on this rank, to tell where numbers went wrong: 0 when the embedded rows are not all finite,
    /// i + 1 when the rows that layer i gives are the first ones, -1 when all rows before the head are finite.
    [[nodiscard]] std::int64_t first_not_finite() const;

private:
    void forward(const Batch& batch, LayerPass& pass);
    double head(const Batch& batch, float gradient_scale, MatrixView<float> d, Gradients& gradients);
    [[nodiscard]] MatrixView<float> layer_input(std::size_t layer, std::int64_t rows);

    std::shared_ptr<const Model> model_;
    Communicator& group_;
    int threads_;
    BackpropOptions options_;
    std::int64_t rows_ = 0;            // of the last run
    Buffer<float> inputs_;             // [layers + 1][rows, hidden]: the last are the head's
    std::vector<Buffer<float>> kept_;  // a layer's ConvolvedRows, where they are kept
    LayerMemory layer_memory_;
    Arena arena_;  // for one run
};

}  // namespace fenwick
