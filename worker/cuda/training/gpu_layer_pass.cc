#include "worker/cuda/training/gpu_layer_pass.h"

#include <algorithm>
#include <variant>

#include "core/fenwick.h"
#include "kernels/cuda/backward/activations.h"
#include "kernels/cuda/backward/bias.h"
#include "kernels/cuda/backward/norm.h"
#include "kernels/cuda/backward/read_out.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/norm.h"

namespace fenwick::cuda {
namespace {

std::int64_t element_bytes(Operand operand) {
    return operand == Operand::kBf16 ? 2 : 4;
}

void copy(const void* from, void* to, std::int64_t bytes, cudaStream_t stream) {
    if (bytes == 0) return;
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
}

void copy_columns(const void* from, std::int64_t from_bytes, void* to, std::int64_t to_bytes, std::int64_t width,
                  std::int64_t rows, cudaStream_t stream) {
    FENWICK_CUDA_CHECK(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_bytes), from,
                                         static_cast<std::size_t>(from_bytes), static_cast<std::size_t>(width),
                                         static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream));
}

const float* rows_from(const float* rows, std::int64_t stride, std::int64_t first) {
    return rows == nullptr ? nullptr : rows + first * stride;
}

float* rows_from(float* rows, std::int64_t stride, std::int64_t first) {
    return rows == nullptr ? nullptr : rows + first * stride;
}

const void* rows_from(const void* rows, std::int64_t stride, std::int64_t first, Operand operand) {
    return static_cast<const unsigned char*>(rows) + first * stride * element_bytes(operand);
}

MixerInputs inputs_of(const MixerInputs& all, const GpuRun& run, Operand operand) {
    MixerInputs inputs = all;
    inputs.q = rows_from(all.q, all.q_stride, run.first_row, operand);
    inputs.k = rows_from(all.k, all.k_stride, run.first_row, operand);
    inputs.v = rows_from(all.v, all.v_stride, run.first_row, operand);
    inputs.log_decay = rows_from(all.log_decay, all.decay_stride, run.first_row);
    inputs.beta = rows_from(all.beta, all.beta_stride, run.first_row);
    inputs.lambda = rows_from(all.lambda, all.lambda_stride, run.first_row);
    inputs.rows = run.rows;
    return inputs;
}

MixerGradients gradients_of(const MixerGradients& all, const GpuRun& run) {
    MixerGradients gradients = all;
    gradients.q = rows_from(all.q, all.q_stride, run.first_row);
    gradients.k = rows_from(all.k, all.k_stride, run.first_row);
    gradients.v = rows_from(all.v, all.v_stride, run.first_row);
    gradients.log_decay = rows_from(all.log_decay, all.decay_stride, run.first_row);
    gradients.beta = rows_from(all.beta, all.beta_stride, run.first_row);
    gradients.lambda = rows_from(all.lambda, all.lambda_stride, run.first_row);
    return gradients;
}

}  // namespace

void GpuLayerPass::forward(const GpuLayer& layer, std::int32_t index) {
    const LayerWork all = work(memory_.pass, batch_.rows());
    (void)mix(layer, index, memory_.pass.x);
    if (batch_.rows() == 0) return;
    ReadOut out = read_out_call(all, layer);
    out.o = memory_.pass.o;
    read_out(operand_, out, stream_);
    add_product(all, layer.out_proj, memory_.pass.o, layer.out_proj.inputs, 0, batch_.rows());
    if (layer.has_mlp()) run_mlp(all, layer);
}

void GpuLayerPass::backward(const GpuLayer& layer, const LayerGradients& to, std::int32_t index, const float* x) {
    Mixed mixed = mix(layer, index, x);
    const std::int64_t rows = batch_.rows();
    for (std::int64_t first = 0; first < rows; first += kTileRows) {
        read_out_backward_tile(layer, to, x, first, std::min(kTileRows, rows - first));
    }
    const MixerGradients gradients =
        std::visit([&](const auto& steps) { return input_gradients(layer, steps); }, layer.steps);
    const std::int64_t values = layer.shape.heads * layer.shape.value_dim;
    for (std::size_t i = 0; i < batch_.runs.size(); ++i) {
        const GpuRun& run = batch_.runs[i];
        mixed.runs[i].backward(inputs_of(mixed.inputs, run, operand_),
                               rows_from(memory_.pass.o, values, run.first_row, operand_), gradients_of(gradients, run),
                               batch_.runs.size() == 1);
    }
    if (rows > 0) std::visit([&](const auto& steps) { gates_backward(layer, steps, to, mixed); }, layer.steps);
    convolution_backward(layer, to, index, mixed);
    for (std::int64_t first = 0; first < rows; first += kTileRows) {
        projection_backward_tile(layer, to, x, first, std::min(kTileRows, rows - first));
    }
}

GpuLayerPass::Mixed GpuLayerPass::mix(const GpuLayer& layer, std::int32_t index, const float* x) {
    const std::int64_t rows = batch_.rows();
    const LayerWork all = work(memory_.pass, rows);
    Mixed mixed;
    if (rows > 0) {
        rms_norm(operand_, x, layer.mixer_norm.data(), model_.norm_eps(), memory_.pass.normed, rows, model_.hidden(),
                 stream_);
        project_columns(all, layer, 0, layer.gates_first);
        project_gates(all, layer);
        copy(memory_.pass.gates, memory_.raw_gates, rows * gate_stride(layer.gate_columns()) * 4, stream_);
        prepare_gates(all, layer);
        if (batch_.packed) {
            const LogDecays decays = log_decays(all, layer);
            cut_log_decays(memory_.positions, decays.data, decays.stride, rows, layer.shape.heads, stream_);
        }
    }
    for (const GpuRun& run : batch_.runs) {
        std::shared_ptr<SummaryBuffer>& halo = mixed.halos.emplace_back();
        if (run.shard == nullptr || layer.convolution.width <= 1) continue;
        halo = exchange_.halo(index, *run.shard, convolution_rows(layer, run));
    }
    convolve(layer, mixed);
    if (rows > 0) mixed.inputs = mixer_inputs(all, layer);
    const std::int64_t values = layer.shape.heads * layer.shape.value_dim;
    const std::int64_t floats = summary_floats(layer.shape);
    mixed.runs.reserve(batch_.runs.size());
    for (const GpuRun& run : batch_.runs) {
        const std::int64_t place = run.first_place * floats;
        const RunMemory memory{memory_.pass.summaries + place, memory_.d_summaries + place,
                               memory_.pass.node_scratch + place, memory_.d_node_scratch + place,
                               memory_.pass.mixer_workspace};
        mixed.runs.emplace_back(layer.shape, operand_, run, exchange_, index, memory, stream_);
        mixed.runs.back().forward(inputs_of(mixed.inputs, run, operand_),
                                  OperandRows(memory_.pass.o, values, operand_).row(run.first_row));
    }
    return mixed;
}

void GpuLayerPass::convolve(const GpuLayer& layer, Mixed& mixed) {
    const LayerWork all = work(memory_.pass, batch_.rows());
    for (std::size_t i = 0; i < batch_.runs.size(); ++i) {
        const GpuRun& run = batch_.runs[i];
        if (run.rows == 0) continue;
        const PassMemory memory = memory_from(all, layer, run.first_row);
        ConvolutionCall call = convolution_call(work(memory, run.rows), layer);
        call.halo = mixed.halos[i] == nullptr ? nullptr : mixed.halos[i]->data();
        call.positions = batch_.packed ? memory_.positions + run.first_row : nullptr;
        causal_convolution(operand_, call, stream_);
    }
}

ConvolutionRows GpuLayerPass::convolution_rows(const GpuLayer& layer, const GpuRun& run) const {
    const OperandRows projected(memory_.pass.projected, layer.gates_first, operand_);
    return {projected.at(run.first_row, layer.conv_first), projected.stride(), layer.convolution.channels,
            layer.convolution.width - 1};
}

void GpuLayerPass::read_out_backward_tile(const GpuLayer& layer, const LayerGradients& to, const float* x,
                                          std::int64_t first, std::int64_t rows) {
    const std::int64_t hidden = model_.hidden();
    const std::int64_t values = layer.out_proj.inputs;
    const std::int64_t element = element_bytes(operand_);
    PassMemory memory = memory_from(work(memory_.pass, batch_.rows()), layer, first);
    float* d = memory_.d + first * hidden;
    copy(memory.o, memory_.tile_y, rows * values * element, stream_);
    ReadOut out = read_out_call(work(memory, rows), layer);
    out.o = memory_.tile_y;
    read_out(operand_, out, stream_);
    if (layer.has_mlp()) {
        copy(x + first * hidden, memory_.tile_x, rows * hidden * 4, stream_);
        PassMemory with_tile = memory;
        with_tile.x = memory_.tile_x;
        add_product(work(with_tile, rows), layer.out_proj, memory_.tile_y, values, 0, rows);
        mlp_backward_tile(layer, to, d, rows);
    }
    to_operand(operand_, d, memory_.tile_d, rows * hidden, stream_);
    add_weight_gradient(memory_.tile_d, hidden, hidden, memory_.tile_y, values, to.out_proj, to.out_bias, rows);
    multiply_back(memory_.tile_d, hidden, hidden, layer.out_proj.weight.data(), values, operand_, memory_.tile_d_y,
                  false, rows);
    ReadOutBackward back;
    back.forward = out;
    back.forward.o = memory.o;
    back.dy = memory_.tile_d_y;
    back.d_o = memory_.tile_d_y;
    back.d_weight = to.norm;
    if (out.x != nullptr) {
        back.d_x = memory_.d_convolved + first * layer.convolution.channels;
        back.d_x_stride = layer.convolution.channels;
        back.d_skip = to.skip;
    }
    if (out.gate != nullptr) {
        back.d_gate = memory_.tile_d_gate;
        back.d_gate_stride = values;
    }
    cuda::read_out_backward(operand_, back, memory_.row_workspace, stream_);
    // The mixer's output and the gate's columns are no longer needed: their gradients take their places.
    copy(memory_.tile_d_y, memory.o, rows * values * element, stream_);
    if (out.gate == nullptr) return;
    copy_columns(memory_.tile_d_gate, values * element, const_cast<void*>(out.gate), out.gate_stride * element,
                 values * element, rows, stream_);
}

void GpuLayerPass::mlp_backward_tile(const GpuLayer& layer, const LayerGradients& to, float* d, std::int64_t rows) {
    const std::int64_t hidden = model_.hidden();
    const std::int64_t inner = layer.down.inputs;
    const OperandRows wide(memory_.pass.wide, 2 * inner, operand_);
    rms_norm(operand_, memory_.tile_x, layer.mlp_norm.data(), model_.norm_eps(), memory_.tile_normed, rows, hidden,
             stream_);
    MatmulCall call;
    call.operand = call.output = operand_;
    call.x = memory_.tile_normed;
    call.x_stride = call.k = hidden;
    call.weight = layer.gate_up.weight.data();
    call.y = wide.column(0);
    call.y_stride = call.n = 2 * inner;
    call.rows = rows;
    matmul_.multiply(call, memory_.pass.matmul_workspace, stream_);
    to_operand(operand_, d, memory_.tile_d, rows * hidden, stream_);
    multiply_back(memory_.tile_d, hidden, hidden, layer.down.weight.data(), inner, operand_, memory_.tile_inner, false,
                  rows);
    SwigluBackward activation;
    activation.gate = activation.d_gate = wide.column(0);
    activation.up = activation.d_up = wide.column(inner);
    activation.dy = activation.y = memory_.tile_inner;
    activation.stride = activation.d_stride = 2 * inner;
    activation.y_stride = inner;
    activation.rows = rows;
    activation.columns = inner;
    swiglu_backward(operand_, activation, stream_);
    add_weight_gradient(memory_.tile_d, hidden, hidden, memory_.tile_inner, inner, to.down, nullptr, rows);
    add_weight_gradient(wide.column(0), 2 * inner, 2 * inner, memory_.tile_normed, hidden, to.gate_up, nullptr, rows);
    multiply_back(wide.column(0), 2 * inner, 2 * inner, layer.gate_up.weight.data(), hidden, Operand::kFp32,
                  memory_.tile_d_normed, false, rows);
    RmsNormBackward norm;
    norm.x = memory_.tile_x;
    norm.weight = layer.mlp_norm.data();
    norm.eps = model_.norm_eps();
    norm.dy = memory_.tile_d_normed;
    norm.dx = d;
    norm.accumulate = true;
    norm.d_weight = to.mlp_norm;
    norm.rows = rows;
    norm.channels = hidden;
    rms_norm_backward(norm, memory_.row_workspace, stream_);
}

void GpuLayerPass::projection_backward_tile(const GpuLayer& layer, const LayerGradients& to, const float* x,
                                            std::int64_t first, std::int64_t rows) {
    const std::int64_t hidden = model_.hidden();
    const PassMemory memory = memory_from(work(memory_.pass, batch_.rows()), layer, first);
    const OperandRows projected(memory.projected, layer.gates_first, operand_);
    const OperandRows gates(memory_.pass.gates, gate_stride(layer.gate_columns()), operand_);
    const std::int64_t conv_end = layer.conv_first + layer.convolution.channels;
    bool accumulate = false;
    const auto columns = [&](void* dy, std::int64_t stride, std::int64_t from, std::int64_t count) {
        if (count == 0) return;
        add_weight_gradient(dy, stride, count, memory.normed, hidden, to.in_proj + from * hidden,
                            to.in_bias == nullptr ? nullptr : to.in_bias + from, rows);
        multiply_back(dy, stride, count, layer.in_proj.rows_from(from, operand_), hidden, Operand::kFp32,
                      memory_.tile_d_normed, accumulate, rows);
        accumulate = true;
    };
    columns(projected.column(0), projected.stride(), 0, layer.conv_first);
    columns(memory.convolved, layer.convolution.channels, layer.conv_first, layer.convolution.channels);
    columns(projected.column(conv_end), projected.stride(), conv_end, layer.gates_first - conv_end);
    columns(gates.row(first), gates.stride(), layer.gates_first, layer.gate_columns());
    RmsNormBackward norm;
    norm.x = x + first * hidden;
    norm.weight = layer.mixer_norm.data();
    norm.eps = model_.norm_eps();
    norm.dy = memory_.tile_d_normed;
    norm.dx = memory_.d + first * hidden;
    norm.accumulate = true;
    norm.d_weight = to.mixer_norm;
    norm.rows = rows;
    norm.channels = hidden;
    rms_norm_backward(norm, memory_.row_workspace, stream_);
}

void GpuLayerPass::multiply_back(const void* dy, std::int64_t dy_stride, std::int64_t outputs, const void* weight,
                                 std::int64_t inputs, Operand output, void* y, bool accumulate, std::int64_t rows) {
    MatmulCall call;
    call.operand = operand_;
    call.output = output;
    call.x = dy;
    call.x_stride = dy_stride;
    call.k = outputs;
    call.weight = weight;
    call.weight_by_inputs = true;
    call.y = y;
    call.y_stride = call.n = inputs;
    call.accumulate = accumulate;
    call.rows = rows;
    matmul_.multiply(call, memory_.pass.matmul_workspace, stream_);
}

void GpuLayerPass::add_weight_gradient(void* dy, std::int64_t dy_stride, std::int64_t outputs, void* x,
                                       std::int64_t inputs, float* d_weight, float* d_bias, std::int64_t rows) {
    WeightGradientCall call;
    call.operand = operand_;
    call.dy = dy;
    call.dy_stride = dy_stride;
    call.n = outputs;
    call.x = x;
    call.x_stride = call.k = inputs;
    call.d_weight = d_weight;
    call.rows = rows;
    matmul_.add_weight_gradient(call, memory_.pass.matmul_workspace, stream_);
    if (d_bias == nullptr) return;
    add_bias_backward(operand_, dy, dy_stride, d_bias, rows, outputs, memory_.row_workspace, stream_);
}

}  // namespace fenwick::cuda
