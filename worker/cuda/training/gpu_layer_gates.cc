// The families' part of gpu_layer_pass.h: where the mixer's gradients lie, and back through gates and convolution.
#include <algorithm>

#include "kernels/cuda/backward/convolution.h"
#include "kernels/cuda/backward/gates.h"
#include "kernels/cuda/backward/norm.h"
#include "worker/cuda/training/gpu_layer_pass.h"

namespace fenwick::cuda {

MixerGradients GpuLayerPass::input_gradients(const GpuLayer& layer, const Mamba2Steps& steps) const {
    const MixerShape& shape = layer.shape;
    const std::int64_t channels = layer.convolution.channels;
    MixerGradients gradients;
    gradients.k = memory_.d_convolved + steps.inner;
    gradients.q = memory_.d_convolved + steps.inner + shape.key_heads * shape.key_dim;
    gradients.v = memory_.d_v;
    gradients.log_decay = memory_.d_log_decay;
    gradients.q_stride = gradients.k_stride = channels;
    gradients.v_stride = steps.inner;
    gradients.decay_stride = shape.heads;
    if (!shape.log_linear()) return gradients;
    gradients.lambda = memory_.d_gates + shape.heads;
    gradients.lambda_stride = gate_stride(layer.gate_columns());
    return gradients;
}

MixerGradients GpuLayerPass::input_gradients(const GpuLayer& layer, const GatedDeltaSteps& steps) const {
    const MixerShape& shape = layer.shape;
    const std::int64_t stride = gate_stride(layer.gate_columns());
    MixerGradients gradients;
    gradients.q = memory_.d_convolved;
    gradients.k = memory_.d_convolved + steps.keys;
    gradients.v = memory_.d_convolved + 2 * steps.keys;
    gradients.log_decay = memory_.d_gates;
    gradients.beta = memory_.d_gates + shape.heads;
    gradients.q_stride = gradients.k_stride = gradients.v_stride = layer.convolution.channels;
    gradients.decay_stride = gradients.beta_stride = stride;
    if (!shape.log_linear()) return gradients;
    gradients.lambda = memory_.d_gates + 2 * shape.heads;
    gradients.lambda_stride = stride;
    return gradients;
}

// The gates' gradients, of the operand type, take the gates' own places: the mixer needs those no longer.

void GpuLayerPass::gates_backward(const GpuLayer& layer, const Mamba2Steps& steps, const LayerGradients& to,
                                  Mixed& /*mixed*/) {
    const std::int64_t rows = batch_.rows();
    const std::int64_t heads = layer.shape.heads;
    const std::int64_t stride = gate_stride(layer.gate_columns());
    ScaleHeadsBackward value;
    value.x = memory_.pass.convolved;
    value.factor = memory_.pass.gates;
    value.d_v = memory_.d_v;
    value.d_x = memory_.d_convolved;
    value.accumulate = true;  // to the skip's share
    value.d_factor = memory_.d_gates;
    value.x_stride = value.d_x_stride = layer.convolution.channels;
    value.factor_stride = value.d_factor_stride = stride;
    value.d_v_stride = steps.inner;
    value.rows = rows;
    value.heads = heads;
    value.head_dim = layer.shape.value_dim;
    scale_heads_backward(operand_, value, stream_);
    const OperandRows out(memory_.pass.gates, stride, operand_);
    mamba2_gates_backward(operand_, steps.gates, {memory_.raw_gates, stride}, {memory_.d_gates, stride},
                          {memory_.d_log_decay, heads}, {out.column(0), stride}, to.dt_bias, to.a_log, rows, heads,
                          memory_.row_workspace, stream_);
    if (!layer.shape.log_linear()) return;
    level_scales_backward(operand_, steps.level_scale, {memory_.raw_gates + heads, stride},
                          {memory_.d_gates + heads, stride}, {out.column(heads), stride}, to.level_scale, rows,
                          heads * layer.shape.levels, memory_.row_workspace, stream_);
}

void GpuLayerPass::gates_backward(const GpuLayer& layer, const GatedDeltaSteps& steps, const LayerGradients& to,
                                  Mixed& mixed) {
    const std::int64_t rows = batch_.rows();
    const std::int64_t heads = layer.shape.heads;
    const std::int64_t stride = gate_stride(layer.gate_columns());
    convolve(layer, mixed);  // q and k before their norm
    const OperandRows convolved(memory_.pass.convolved, layer.convolution.channels, operand_);
    L2NormBackward norm;
    norm.x_stride = norm.dy_stride = layer.convolution.channels;
    norm.rows = rows;
    norm.heads = layer.shape.key_heads;
    norm.head_dim = layer.shape.key_dim;
    norm.eps = steps.l2_eps;
    norm.scale = steps.query_scale;
    norm.x = convolved.column(0);
    norm.dy = norm.dx = memory_.d_convolved;
    l2_norm_backward(operand_, norm, memory_.row_workspace, stream_);
    norm.scale = 1.0F;
    norm.x = convolved.column(steps.keys);
    norm.dy = norm.dx = memory_.d_convolved + steps.keys;
    l2_norm_backward(operand_, norm, memory_.row_workspace, stream_);
    const OperandRows out(memory_.pass.gates, stride, operand_);
    delta_gates_backward(operand_, steps.gates, {memory_.raw_gates, stride}, {memory_.raw_gates + heads, stride},
                         {memory_.d_gates, stride}, {memory_.d_gates + heads, stride}, {out.column(0), stride},
                         {out.column(heads), stride}, to.dt_bias, to.a_log, rows, heads, memory_.row_workspace,
                         stream_);
    if (!layer.shape.log_linear()) return;
    level_scales_backward(operand_, steps.level_scale, {memory_.raw_gates + 2 * heads, stride},
                          {memory_.d_gates + 2 * heads, stride}, {out.column(2 * heads), stride}, to.level_scale, rows,
                          heads * layer.shape.levels, memory_.row_workspace, stream_);
}

void GpuLayerPass::convolution_backward(const GpuLayer& layer, const LayerGradients& to, std::int32_t index,
                                        const Mixed& mixed) {
    const std::int64_t channels = layer.convolution.channels;
    const std::int64_t halo_rows = layer.convolution.width - 1;
    const OperandRows d_input(memory_.pass.convolved, channels, operand_);
    for (std::size_t i = 0; i < batch_.runs.size(); ++i) {
        const GpuRun& run = batch_.runs[i];
        const ConvolutionRows input = convolution_rows(layer, run);
        std::shared_ptr<SummaryBuffer> d_halo;
        if (run.shard != nullptr && halo_rows > 0) d_halo = exchange_.lend(halo_rows * channels);
        if (run.rows > 0) {
            ConvolutionBackward call;
            call.convolution = layer.convolution;
            call.halo = mixed.halos[i] == nullptr ? nullptr : mixed.halos[i]->data();
            call.x = input.rows;
            call.x_stride = input.stride;
            call.positions = batch_.packed ? memory_.positions + run.first_row : nullptr;
            call.dy = memory_.d_convolved + run.first_row * channels;
            call.dy_stride = channels;
            call.dx = d_input.row(run.first_row);
            call.dx_stride = channels;
            call.d_halo = d_halo == nullptr ? nullptr : d_halo->data();
            call.d_weight = to.conv_weight == nullptr ? memory_.unused : to.conv_weight;
            call.d_bias = to.conv_bias;
            call.rows = run.rows;
            causal_convolution_backward(operand_, call, memory_.row_workspace, stream_);
        }
        if (d_halo == nullptr) continue;
        exchange_.halo_backward(index, *run.shard, input, d_halo->data(), d_input.row(run.first_row), channels);
    }
}

}  // namespace fenwick::cuda
