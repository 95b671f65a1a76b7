#include "worker/cuda/gpu_model.h"

#include <utility>

#include "kernels/cuda/convert.h"

namespace fenwick::cuda {
namespace {

class Uploader {
public:
    /// `uploads` gets an entry for everything.
    Uploader(Operand operand, cudaStream_t stream, std::vector<GpuModel::Upload>& uploads)
        : operand_(operand), stream_(stream), uploads_(uploads) {}

    [[nodiscard]] DeviceBuffer<float> vector(const float* values, std::int64_t count) const {
        if (values == nullptr) return {};
        DeviceBuffer<float> buffer = copy(values, count);
        uploads_.push_back({values, buffer.data(), count, Operand::kFp32});
        return buffer;
    }
    [[nodiscard]] DeviceBuffer<unsigned char> matrix(MatrixView<const float> values) const {
        const std::int64_t count = values.rows * values.cols;
        const DeviceBuffer<float> staging = copy(values.data, count);
        DeviceBuffer<unsigned char> buffer(count * (operand_ == Operand::kBf16 ? 2 : 4), stream_);
        to_operand(operand_, staging.data(), buffer.data(), count, stream_);
        uploads_.push_back({values.data, buffer.data(), count, operand_});
        return buffer;
    }
    [[nodiscard]] GpuLinear linear(const Linear& layer) const {
        return {matrix(layer.matrix()), vector(layer.bias_or_null(), layer.outputs), layer.outputs, layer.inputs};
    }
    /// Replaces a host pointer by a device one; `owned` keeps the memory.
    void move(const float*& values, std::int64_t count, std::vector<DeviceBuffer<float>>& owned) const {
        owned.push_back(vector(values, count));
        values = owned.back().data();
    }

private:
    [[nodiscard]] DeviceBuffer<float> copy(const float* values, std::int64_t count) const {
        DeviceBuffer<float> buffer(count, stream_);
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(buffer.data(), values, buffer.bytes(), cudaMemcpyHostToDevice, stream_));
        return buffer;
    }

    Operand operand_;
    cudaStream_t stream_;
    std::vector<GpuModel::Upload>& uploads_;
};

void move_steps(const Uploader& up, Mamba2Steps& steps, GpuLayer& layer) {
    const std::int64_t heads = layer.shape.heads;
    up.move(steps.gates.dt_bias, heads, layer.owned);
    up.move(steps.gates.a_log, heads, layer.owned);
    up.move(steps.level_scale, heads * layer.shape.levels, layer.owned);
    up.move(steps.skip, steps.skip_count, layer.owned);
    up.move(steps.norm, steps.inner, layer.owned);
}

void move_steps(const Uploader& up, GatedDeltaSteps& steps, GpuLayer& layer) {
    const std::int64_t heads = layer.shape.heads;
    up.move(steps.gates.dt_bias, heads, layer.owned);
    up.move(steps.gates.a_log, heads, layer.owned);
    up.move(steps.level_scale, heads * layer.shape.levels, layer.owned);
    up.move(steps.norm, layer.shape.value_dim, layer.owned);
}

GpuLayer upload_layer(const Uploader& up, const LayerParts& parts, std::int64_t hidden) {
    const TokenMixer& mixer = *parts.mixer;
    GpuLayer layer;
    layer.shape = mixer.shape();
    layer.mixer_norm = up.vector(parts.mixer_norm.data(), hidden);
    layer.in_proj = up.linear(mixer.in_proj());
    layer.out_proj = up.linear(mixer.out_proj());
    layer.conv_first = mixer.conv_first();
    layer.convolution = mixer.convolution();
    up.move(layer.convolution.weight, mixer.conv_channels() * mixer.conv_width(), layer.owned);
    up.move(layer.convolution.bias, mixer.conv_channels(), layer.owned);
    layer.steps = mixer.steps();
    std::visit([&](auto& steps) { layer.gates_first = steps.gates_first; }, layer.steps);
    std::visit([&](auto& steps) { move_steps(up, steps, layer); }, layer.steps);
    if (parts.mlp == nullptr) return layer;
    layer.mlp_norm = up.vector(parts.mlp_norm.data(), hidden);
    layer.gate_up = up.linear(parts.mlp->gate_up());
    layer.down = up.linear(parts.mlp->down());
    return layer;
}

}  // namespace

GpuModel::GpuModel(const Model& model, Operand operand, cudaStream_t stream)
    : operand_(operand), hidden_(model.hidden_size()), vocab_(model.vocab_size()), norm_eps_(model.norm_eps()) {
    const Uploader up(operand, stream, uploads_);
    embeddings_ = up.matrix(model.embeddings());
    for (const LayerParts& parts : model.layers()) layers_.push_back(upload_layer(up, parts, hidden_));
    final_norm_ = up.vector(model.final_norm(), hidden_);
    if (model.lm_head().data != model.embeddings().data) lm_head_ = up.matrix(model.lm_head());
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
}

void GpuModel::refresh(const FlatPlaces& places, const float* flat, cudaStream_t stream) {
    for (const Upload& upload : uploads_) {
        const std::optional<std::int64_t> place = places.find(upload.host);
        if (place) to_operand(upload.operand, flat + *place, upload.device, upload.count, stream);
    }
}

std::int64_t gpu_weight_bytes(const Model& model, Operand operand) {
    // Vectors are fp32 whatever the operand, but there are few of them.
    return model.parameter_count() * (operand == Operand::kBf16 ? 2 : 4);
}

}  // namespace fenwick::cuda
