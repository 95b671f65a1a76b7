#include "worker/cuda/layer_steps.h"

#include <algorithm>
#include <variant>

#include "kernels/cuda/activations.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/norm.h"

namespace fenwick::cuda {
namespace {

void multiply(const LayerWork& work, MatmulCall call) {
    call.operand = work.model.operand();
    work.matmul.multiply(call, work.memory.matmul_workspace, work.stream);
}

void prepare(const LayerWork& work, const GpuLayer& layer, const Mamba2Steps& steps) {
    mamba2_gates(steps.gates, work.memory.gates, gate_stride(layer.gate_columns()), work.memory.log_decay, work.rows,
                 layer.shape.heads, work.stream);
}

void prepare(const LayerWork& work, const GpuLayer& layer, const GatedDeltaSteps& steps) {
    const std::int64_t heads = layer.shape.heads;
    float* gates = work.memory.gates;
    delta_gates(steps.gates, gates, gates + heads, gate_stride(layer.gate_columns()), work.rows, heads, work.stream);
}

LogDecays decays_of(const LayerWork& work, const GpuLayer& layer, const Mamba2Steps& /*steps*/) {
    return {work.memory.log_decay, layer.shape.heads};
}

LogDecays decays_of(const LayerWork& work, const GpuLayer& layer, const GatedDeltaSteps& /*steps*/) {
    return {work.memory.gates, gate_stride(layer.gate_columns())};
}

void with_values(const LayerWork& work, const GpuLayer& layer, const Mamba2Steps& steps, ConvolutionCall& call) {
    call.v = work.memory.v;
    call.dt = work.memory.gates;
    call.dt_stride = gate_stride(layer.gate_columns());
    call.v_channels = steps.inner;
    call.v_head_dim = layer.shape.value_dim;
}

void with_values(const LayerWork& /*work*/, const GpuLayer& /*layer*/, const GatedDeltaSteps& /*steps*/,
                 ConvolutionCall& /*call*/) {}

/// lambda = softplus(scale dl), in place over the gates' columns from `first` on.
void add_levels(const LayerWork& work, const GpuLayer& layer, const float* scale, std::int64_t first,
                MixerInputs& inputs) {
    if (!layer.shape.log_linear()) return;
    inputs.lambda_stride = gate_stride(layer.gate_columns());
    float* levels = work.memory.gates + first;
    level_scales(scale, levels, inputs.lambda_stride, work.rows, layer.shape.heads * layer.shape.levels, work.stream);
    inputs.lambda = levels;
}

MixerInputs inputs_of(const LayerWork& work, const GpuLayer& layer, const Mamba2Steps& steps) {
    const std::int64_t heads = layer.shape.heads;
    const OperandRows convolved = convolved_rows(work, layer);
    MixerInputs inputs;
    inputs.k = convolved.column(steps.inner);
    inputs.q = convolved.column(steps.inner + layer.shape.key_heads * layer.shape.key_dim);
    inputs.v = work.memory.v;
    inputs.log_decay = work.memory.log_decay;
    inputs.q_stride = inputs.k_stride = convolved.stride();
    inputs.v_stride = steps.inner;
    inputs.decay_stride = heads;
    inputs.rows = work.rows;
    add_levels(work, layer, steps.level_scale, heads, inputs);
    return inputs;
}

MixerInputs inputs_of(const LayerWork& work, const GpuLayer& layer, const GatedDeltaSteps& steps) {
    const Operand operand = work.model.operand();
    const MixerShape& shape = layer.shape;
    const std::int64_t heads = shape.heads;
    const OperandRows convolved = convolved_rows(work, layer);
    void* q = convolved.column(0);
    void* k = convolved.column(steps.keys);
    l2_norm(operand, q, convolved.stride(), work.rows, shape.key_heads, shape.key_dim, steps.l2_eps, steps.query_scale,
            work.stream);
    l2_norm(operand, k, convolved.stride(), work.rows, shape.key_heads, shape.key_dim, steps.l2_eps, 1.0F, work.stream);
    MixerInputs inputs;
    inputs.q = q;
    inputs.k = k;
    inputs.v = convolved.column(2 * steps.keys);
    inputs.log_decay = work.memory.gates;
    inputs.beta = work.memory.gates + heads;
    inputs.q_stride = inputs.k_stride = inputs.v_stride = convolved.stride();
    inputs.decay_stride = inputs.beta_stride = gate_stride(layer.gate_columns());
    inputs.rows = work.rows;
    add_levels(work, layer, steps.level_scale, 2 * heads, inputs);
    return inputs;
}

ReadOut read_out_of(const LayerWork& work, const GpuLayer& layer, const Mamba2Steps& steps) {
    const OperandRows convolved = convolved_rows(work, layer);
    const OperandRows projected = projected_rows(work, layer);
    ReadOut call;
    call.x = convolved.column(0);
    call.x_stride = convolved.stride();
    call.skip = steps.skip;
    call.skip_channels = steps.inner / steps.skip_count;
    call.gate = projected.column(0);
    call.gate_stride = projected.stride();
    call.weight = steps.norm;
    call.group_size = steps.inner / layer.shape.key_heads;
    call.weight_period = steps.inner;
    call.eps = steps.norm_eps;
    call.norm_before_gate = steps.norm_before_gate;
    return call;
}

ReadOut read_out_of(const LayerWork& work, const GpuLayer& layer, const GatedDeltaSteps& steps) {
    const OperandRows projected = projected_rows(work, layer);
    ReadOut call;
    if (steps.use_gate) call.gate = projected.column(2 * steps.keys + steps.values);
    call.gate_stride = projected.stride();
    call.weight = steps.norm;
    call.group_size = call.weight_period = layer.shape.value_dim;
    call.eps = steps.norm_eps;
    call.norm_before_gate = true;
    return call;
}

}  // namespace

PassMemory memory_from(const LayerWork& work, const GpuLayer& layer, std::int64_t first) {
    const Operand operand = work.model.operand();
    const auto from = [&](void* rows, std::int64_t stride) { return OperandRows(rows, stride, operand).row(first); };
    const std::int64_t values = layer.shape.heads * layer.shape.value_dim;
    PassMemory memory = work.memory;
    memory.x += first * work.model.hidden();
    memory.normed = from(memory.normed, work.model.hidden());
    memory.projected = from(memory.projected, layer.gates_first);
    memory.gates += first * gate_stride(layer.gate_columns());
    memory.log_decay += first * layer.shape.heads;
    memory.convolved = from(memory.convolved, layer.convolution.channels);
    memory.v = from(memory.v, values);
    memory.o = from(memory.o, values);
    return memory;
}

OperandRows projected_rows(const LayerWork& work, const GpuLayer& layer) {
    return {work.memory.projected, layer.gates_first, work.model.operand()};
}

OperandRows convolved_rows(const LayerWork& work, const GpuLayer& layer) {
    return {work.memory.convolved, layer.convolution.channels, work.model.operand()};
}

void project_columns(const LayerWork& work, const GpuLayer& layer, std::int64_t first, std::int64_t columns) {
    if (columns == 0) return;
    const OperandRows projected = projected_rows(work, layer);
    const Operand operand = work.model.operand();
    MatmulCall call;
    call.x = work.memory.normed;
    call.rows = work.rows;
    call.k = call.x_stride = layer.in_proj.inputs;
    call.weight = layer.in_proj.rows_from(first, operand);
    call.output = operand;
    call.y = projected.column(first);
    call.y_stride = projected.stride();
    call.n = columns;
    multiply(work, call);
    if (layer.in_proj.bias.size() == 0) return;
    add_bias(operand, call.y, call.y_stride, layer.in_proj.bias.data() + first, work.rows, columns, work.stream);
}

void project_gates(const LayerWork& work, const GpuLayer& layer) {
    float* gates = work.memory.gates;
    const std::int64_t stride = gate_stride(layer.gate_columns());
    MatmulCall call;
    call.x = work.memory.normed;
    call.rows = work.rows;
    call.k = call.x_stride = layer.in_proj.inputs;
    call.weight = layer.in_proj.rows_from(layer.gates_first, work.model.operand());
    call.output = Operand::kFp32;
    call.y = gates;
    call.n = layer.gate_columns();
    call.y_stride = stride;
    multiply(work, call);
    if (layer.in_proj.bias.size() == 0) return;
    add_bias(Operand::kFp32, gates, stride, layer.in_proj.bias.data() + layer.gates_first, work.rows,
             layer.gate_columns(), work.stream);
}

void project_rest(const LayerWork& work, const GpuLayer& layer) {
    const std::int64_t conv_end = layer.conv_first + layer.convolution.channels;
    project_columns(work, layer, 0, layer.conv_first);
    project_columns(work, layer, conv_end, layer.gates_first - conv_end);
}

void prepare_gates(const LayerWork& work, const GpuLayer& layer) {
    std::visit([&](const auto& steps) { prepare(work, layer, steps); }, layer.steps);
}

LogDecays log_decays(const LayerWork& work, const GpuLayer& layer) {
    return std::visit([&](const auto& steps) { return decays_of(work, layer, steps); }, layer.steps);
}

ConvolutionCall convolution_call(const LayerWork& work, const GpuLayer& layer) {
    const OperandRows projected = projected_rows(work, layer);
    ConvolutionCall call;
    call.convolution = layer.convolution;
    call.halo = layer.convolution.width > 1 ? work.memory.halo : nullptr;
    call.x = projected.column(layer.conv_first);
    call.x_stride = projected.stride();
    call.y = work.memory.convolved;
    call.rows = work.rows;
    std::visit([&](const auto& steps) { with_values(work, layer, steps, call); }, layer.steps);
    return call;
}

MixerInputs mixer_inputs(const LayerWork& work, const GpuLayer& layer) {
    return std::visit([&](const auto& steps) { return inputs_of(work, layer, steps); }, layer.steps);
}

ReadOut read_out_call(const LayerWork& work, const GpuLayer& layer) {
    ReadOut call = std::visit([&](const auto& steps) { return read_out_of(work, layer, steps); }, layer.steps);
    call.rows = work.rows;
    call.channels = layer.out_proj.inputs;
    return call;
}

void add_product(const LayerWork& work, const GpuLinear& linear, const void* y, std::int64_t stride, std::int64_t first,
                 std::int64_t rows) {
    float* x = work.memory.x + first * work.model.hidden();
    MatmulCall call;
    call.x = y;
    call.x_stride = stride;
    call.weight = linear.weight.data();
    call.output = Operand::kFp32;
    call.y = x;
    call.y_stride = call.n = linear.outputs;
    call.k = linear.inputs;
    call.rows = rows;
    call.accumulate = true;
    multiply(work, call);
    if (linear.bias.size() == 0) return;
    add_bias(Operand::kFp32, x, linear.outputs, linear.bias.data(), rows, linear.outputs, work.stream);
}

void run_mlp(const LayerWork& work, const GpuLayer& layer) {
    const Operand operand = work.model.operand();
    const std::int64_t hidden = work.model.hidden();
    const std::int64_t inner = layer.down.inputs;
    const OperandRows normed(work.memory.normed, hidden, operand);
    const OperandRows wide(work.memory.wide, 2 * inner, operand);
    rms_norm(operand, work.memory.x, layer.mlp_norm.data(), work.model.norm_eps(), work.memory.normed, work.rows,
             hidden, work.stream);
    for (std::int64_t first = 0; first < work.rows; first += kMlpRows) {
        const std::int64_t rows = std::min(kMlpRows, work.rows - first);
        MatmulCall call;
        call.x = normed.row(first);
        call.x_stride = call.k = hidden;
        call.weight = layer.gate_up.weight.data();
        call.output = operand;
        call.y = wide.column(0);
        call.y_stride = call.n = 2 * inner;
        call.rows = rows;
        multiply(work, call);
        swiglu(operand, wide.column(0), wide.column(inner), 2 * inner, rows, inner, work.stream);
        add_product(work, layer.down, wide.column(0), 2 * inner, first, rows);
    }
}

}  // namespace fenwick::cuda
