// One run of rows on its way through a layer's mixer on the GPU, there and back: worker/training/document_mixer.h with
// device memory. A run of packed documents needs nobody else.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/backward/mixer.h"
#include "worker/cuda/training/gpu_batch.h"
#include "worker/cuda/training/training_exchange.h"

namespace fenwick::cuda {

/// Places in device memory for one run; `summary` floats a block.
struct RunMemory {
    float* summaries = nullptr;       ///< [blocks, summary]
    float* d_summaries = nullptr;     ///< [blocks, summary]
    float* node_scratch = nullptr;    ///< cover_scratch_floats(blocks, summary)
    float* d_node_scratch = nullptr;  ///< the same
    void* workspace = nullptr;        ///< the mixer's, forward's and backward's
};

class RunMixer {
public:
    /// `run` and `exchange` outlive this object.
    RunMixer(const MixerShape& shape, Operand operand, const GpuRun& run, TrainingExchange& exchange,
             std::int32_t layer, const RunMemory& memory, cudaStream_t stream)
        : shape_(shape),
          operand_(operand),
          run_(run),
          exchange_(exchange),
          layer_(layer),
          memory_(memory),
          stream_(stream) {}

    /// Collective for a document over ranks. `inputs`: this run's rows; o [rows, heads * d_v] of the operand type.
    void forward(const MixerInputs& inputs, void* o);

    /// Collective as `forward`, which came before with the same inputs: d_o [rows, heads * d_v] of the operand type,
    /// contiguous. Gradients of the inputs are overwritten. `alone`: no other run has used the workspace since.
    void backward(const MixerInputs& inputs, const void* d_o, const MixerGradients& gradients, bool alone);

private:
    [[nodiscard]] std::vector<EnteringNode> entering_nodes() const;
    [[nodiscard]] ShardNodes shard_nodes() const;
    [[nodiscard]] MatrixView<const float> summaries() const;

    MixerShape shape_;
    Operand operand_;
    const GpuRun& run_;
    TrainingExchange& exchange_;
    std::int32_t layer_;
    RunMemory memory_;
    cudaStream_t stream_;
    NodeSummaries entering_;
    ExchangeTape tape_;
};

}  // namespace fenwick::cuda
