// One layer's way over the rows of a batch on the GPU, there and back: worker/training/layer_pass.h with kernels and a
// stream. Convolution and mixer go run by run (gpu_batch.h), all else over all rows, tile by tile where intermediates
// are wide.
//
//   backward:  everything up to the mixer's output o is formed again from x; then
//     tiles:   y = read_out(o), m = x + out_proj y;  d -> back through the MLP;  d_y = d out_proj -> d_o, d_gate, d_x
//     runs:    d_o -> d_q, d_k, d_v, d_log_decay, d_beta, d_lambda
//     rows:    -> gates' columns;  convolution -> its columns
//     tiles:   d += norm_backward(columns' gradients times in_proj)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/cuda/layer_steps.h"
#include "worker/cuda/training/gpu_batch.h"
#include "worker/cuda/training/layer_gradients.h"
#include "worker/cuda/training/run_mixer.h"
#include "worker/cuda/training/training_exchange.h"
#include "worker/cuda/training/training_memory.h"

namespace fenwick::cuda {

class GpuLayerPass {
public:
    /// All outlive this object. `memory`, laid out for this batch, has its positions.
    GpuLayerPass(const GpuModel& model, Matmul& matmul, const TrainingMemory& memory, const GpuBatch& batch,
                 TrainingExchange& exchange, cudaStream_t stream)
        : model_(model),
          matmul_(matmul),
          memory_(memory),
          batch_(batch),
          exchange_(exchange),
          stream_(stream),
          operand_(model.operand()) {}

    /// Collective where documents lie over ranks. memory.pass.x [rows, hidden] = the layer's output rows.
    void forward(const GpuLayer& layer, std::int32_t index);

    /// Collective as forward. `x` [rows, hidden]: the layer's input rows, only read. memory.d: the gradient of the
    /// layer's output comes in, that of its input goes out; `to` is added to.
    void backward(const GpuLayer& layer, const LayerGradients& to, std::int32_t index, const float* x);

private:
    /// What `mix` leaves for the way back.
    struct Mixed {
        MixerInputs inputs;  // of all rows
        std::vector<RunMixer> runs;
        std::vector<std::shared_ptr<SummaryBuffer>> halos;  // of each run; null: none
    };
    /// Where the mixer's gradients go.
    struct InputGradients {
        MixerGradients mixer;  // of all rows
        float* gates = nullptr;
        std::int64_t stride = 0;
    };

    [[nodiscard]] LayerWork work(const PassMemory& memory, std::int64_t rows) const {
        return {model_, matmul_, memory, stream_, rows};
    }
    [[nodiscard]] Mixed mix(const GpuLayer& layer, std::int32_t index, const float* x);
    void convolve(const GpuLayer& layer, Mixed& mixed);
    [[nodiscard]] ConvolutionRows convolution_rows(const GpuLayer& layer, const GpuRun& run) const;

    void read_out_backward_tile(const GpuLayer& layer, const LayerGradients& to, const float* x, std::int64_t first,
                                std::int64_t rows);
    void mlp_backward_tile(const GpuLayer& layer, const LayerGradients& to, float* d, std::int64_t rows);
    void gates_backward(const GpuLayer& layer, const Mamba2Steps& steps, const LayerGradients& to, Mixed& mixed);
    void gates_backward(const GpuLayer& layer, const GatedDeltaSteps& steps, const LayerGradients& to, Mixed& mixed);
    void convolution_backward(const GpuLayer& layer, const LayerGradients& to, std::int32_t index, const Mixed& mixed);
    void projection_backward_tile(const GpuLayer& layer, const LayerGradients& to, const float* x, std::int64_t first,
                                  std::int64_t rows);
    [[nodiscard]] MixerGradients input_gradients(const GpuLayer& layer, const Mamba2Steps& steps) const;
    [[nodiscard]] MixerGradients input_gradients(const GpuLayer& layer, const GatedDeltaSteps& steps) const;

    /// y [rows, inputs] (+)= dy [rows, outputs] W for the outputs of `weight` from its start on.
    void multiply_back(const void* dy, std::int64_t dy_stride, std::int64_t outputs, const void* weight,
                       std::int64_t inputs, Operand output, void* y, bool accumulate, std::int64_t rows);
    void add_weight_gradient(void* dy, std::int64_t dy_stride, std::int64_t outputs, void* x, std::int64_t inputs,
                             float* d_weight, float* d_bias, std::int64_t rows);

    const GpuModel& model_;
    Matmul& matmul_;
    const TrainingMemory& memory_;
    const GpuBatch& batch_;
    TrainingExchange& exchange_;
    cudaStream_t stream_;
    Operand operand_;
};

}  // namespace fenwick::cuda
