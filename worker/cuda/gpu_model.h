// A model's weights on the GPU: matrices of the operand type, all else fp32.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "kernels/convolution.h"
#include "kernels/cuda/mixer.h"
#include "worker/model.h"
#include "worker/training/flat_places.h"

namespace fenwick::cuda {

struct GpuLinear {
    DeviceBuffer<unsigned char> weight;  ///< [outputs, inputs], operand type
    DeviceBuffer<float> bias;            ///< [outputs] or empty
    std::int64_t outputs = 0;
    std::int64_t inputs = 0;

    /// Weights of the outputs from `first` on.
    [[nodiscard]] const void* rows_from(std::int64_t first, Operand operand) const {
        return weight.data() + first * inputs * (operand == Operand::kBf16 ? 2 : 4);
    }
};

struct GpuLayer {
    MixerShape shape;
    DeviceBuffer<float> mixer_norm;
    GpuLinear in_proj;
    GpuLinear out_proj;
    std::int64_t gates_first = 0;  ///< columns of in_proj from here on are gates: fp32 outputs
    std::int64_t conv_first = 0;
    Convolution convolution;       ///< its pointers lie on the device
    MixerSteps steps;              ///< likewise
    DeviceBuffer<float> mlp_norm;  ///< empty without an MLP
    GpuLinear gate_up;
    GpuLinear down;
    std::vector<DeviceBuffer<float>> owned;  ///< what `convolution` and `steps` point to

    [[nodiscard]] bool has_mlp() const { return mlp_norm.size() > 0; }
    [[nodiscard]] std::int64_t gate_columns() const { return in_proj.outputs - gates_first; }
    [[nodiscard]] std::int64_t halo_elements() const { return (convolution.width - 1) * convolution.channels; }
};

class GpuModel {
public:
    /// Uploads; the stream is idle when it returns. Throws UnavailableError when the memory is too small.
    GpuModel(const Model& model, Operand operand, cudaStream_t stream);

    /// Takes new values, in the stream's order, from a flat fp32 vector on the device (worker/training/parameters.h).
    /// `places`: of the parameters of the model that was uploaded, which is still there. What is no parameter stays.
    void refresh(const FlatPlaces& places, const float* flat, cudaStream_t stream);

    [[nodiscard]] Operand operand() const { return operand_; }
    [[nodiscard]] std::int64_t hidden() const { return hidden_; }
    [[nodiscard]] std::int64_t vocab() const { return vocab_; }
    [[nodiscard]] float norm_eps() const { return norm_eps_; }
    [[nodiscard]] const std::vector<GpuLayer>& layers() const { return layers_; }
    [[nodiscard]] const void* embeddings() const { return embeddings_.data(); }
    [[nodiscard]] const float* final_norm() const { return final_norm_.data(); }
    [[nodiscard]] const void* lm_head() const { return lm_head_.size() == 0 ? embeddings_.data() : lm_head_.data(); }

    /// One upload: where the values lie on the host and on the device.
    struct Upload {
        const float* host = nullptr;
        void* device = nullptr;
        std::int64_t count = 0;
        Operand operand = Operand::kFp32;  ///< of the values on the device
    };

private:
    Operand operand_;
    std::vector<Upload> uploads_;
    std::int64_t hidden_ = 0;
    std::int64_t vocab_ = 0;
    float norm_eps_ = 0.0F;
    std::vector<GpuLayer> layers_;
    DeviceBuffer<unsigned char> embeddings_;
    DeviceBuffer<float> final_norm_;
    DeviceBuffer<unsigned char> lm_head_;  ///< empty when tied to the embeddings
};

/// Bytes of a model's weights on the device, without uploading them.
[[nodiscard]] std::int64_t gpu_weight_bytes(const Model& model, Operand operand);

}  // namespace fenwick::cuda
