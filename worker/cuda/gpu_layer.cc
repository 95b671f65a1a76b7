#include "worker/cuda/gpu_layer.h"

#include <algorithm>

#include "core/fenwick.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/read_out.h"

namespace fenwick::cuda {
namespace {

/// Columns [first, ...) of rows of the operand type.
class OperandRows {
public:
    OperandRows(void* data, std::int64_t stride, Operand operand)
        : data_(static_cast<unsigned char*>(data)), stride_(stride), element_(operand == Operand::kBf16 ? 2 : 4) {}
    [[nodiscard]] void* column(std::int64_t first) const { return data_ + first * element_; }
    [[nodiscard]] void* row(std::int64_t first) const { return data_ + first * stride_ * element_; }
    [[nodiscard]] std::int64_t stride() const { return stride_; }

private:
    unsigned char* data_;
    std::int64_t stride_;
    std::int64_t element_;
};

/// The rows of one layer under their names.
struct LayerRows {
    OperandRows projected;
    OperandRows convolved;
    float* gates;
    std::int64_t gate_stride;
};

LayerRows rows_of(const GpuPass& pass, const GpuLayer& layer) {
    const Operand operand = pass.model.operand();
    return {{pass.memory.projected, layer.gates_first, operand},
            {pass.memory.convolved, layer.convolution.channels, operand},
            pass.memory.gates,
            gate_stride(layer.gate_columns())};
}

void multiply(const GpuPass& pass, MatmulCall call) {
    call.operand = pass.model.operand();
    pass.matmul.multiply(call, pass.memory.matmul_workspace, pass.stream);
}

void project(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows) {
    const Operand operand = pass.model.operand();
    MatmulCall call;
    call.x = pass.memory.normed;
    call.rows = pass.rows;
    call.k = call.x_stride = layer.in_proj.inputs;
    call.weight = layer.in_proj.weight.data();
    call.output = operand;
    call.y = rows.projected.column(0);
    call.n = call.y_stride = layer.gates_first;
    multiply(pass, call);
    call.weight = OperandRows(const_cast<unsigned char*>(layer.in_proj.weight.data()), layer.in_proj.inputs, operand)
                      .row(layer.gates_first);
    call.output = Operand::kFp32;
    call.y = rows.gates;
    call.n = layer.gate_columns();
    call.y_stride = rows.gate_stride;
    multiply(pass, call);
    if (layer.in_proj.bias.size() == 0) return;
    const float* bias = layer.in_proj.bias.data();
    add_bias(operand, rows.projected.column(0), layer.gates_first, bias, pass.rows, layer.gates_first, pass.stream);
    add_bias(Operand::kFp32, rows.gates, rows.gate_stride, bias + layer.gates_first, pass.rows, layer.gate_columns(),
             pass.stream);
}

ConvolutionCall convolution_call(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry, const LayerRows& rows) {
    ConvolutionCall call;
    call.convolution = layer.convolution;
    call.halo = layer.convolution.width > 1 ? carry.halo(false) : nullptr;
    call.x = rows.projected.column(layer.conv_first);
    call.x_stride = rows.projected.stride();
    call.y = rows.convolved.column(0);
    call.rows = pass.rows;
    return call;
}

void convolve(const GpuPass& pass, const ConvolutionCall& call, GpuCarry& carry) {
    causal_convolution(pass.model.operand(), call, pass.stream);
    if (call.convolution.width == 1) return;
    next_halo(pass.model.operand(), call, carry.halo(true), pass.stream);
    carry.second = !carry.second;
}

MixerInputs mixer_inputs(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry, const LayerRows& rows,
                         const Mamba2Steps& steps) {
    const std::int64_t heads = layer.shape.heads;
    const std::int64_t keys = layer.shape.key_heads * layer.shape.key_dim;
    mamba2_gates(steps.gates, rows.gates, rows.gate_stride, pass.memory.log_decay, pass.rows, heads, pass.stream);
    ConvolutionCall call = convolution_call(pass, layer, carry, rows);
    call.v = pass.memory.v;
    call.dt = rows.gates;
    call.dt_stride = rows.gate_stride;
    call.v_channels = steps.inner;
    call.v_head_dim = layer.shape.value_dim;
    convolve(pass, call, carry);
    MixerInputs inputs;
    inputs.k = rows.convolved.column(steps.inner);
    inputs.q = rows.convolved.column(steps.inner + keys);
    inputs.v = pass.memory.v;
    inputs.log_decay = pass.memory.log_decay;
    inputs.q_stride = inputs.k_stride = rows.convolved.stride();
    inputs.v_stride = steps.inner;
    inputs.decay_stride = heads;
    inputs.rows = pass.rows;
    if (!layer.shape.log_linear()) return inputs;
    level_scales(steps.level_scale, rows.gates + heads, rows.gate_stride, pass.rows, heads * layer.shape.levels,
                 pass.stream);
    inputs.lambda = rows.gates + heads;
    inputs.lambda_stride = rows.gate_stride;
    return inputs;
}

MixerInputs mixer_inputs(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry, const LayerRows& rows,
                         const GatedDeltaSteps& steps) {
    const Operand operand = pass.model.operand();
    const MixerShape& shape = layer.shape;
    const std::int64_t heads = shape.heads;
    delta_gates(steps.gates, rows.gates, rows.gates + heads, rows.gate_stride, pass.rows, heads, pass.stream);
    convolve(pass, convolution_call(pass, layer, carry, rows), carry);
    void* q = rows.convolved.column(0);
    void* k = rows.convolved.column(steps.keys);
    l2_norm(operand, q, rows.convolved.stride(), pass.rows, shape.key_heads, shape.key_dim, steps.l2_eps,
            steps.query_scale, pass.stream);
    l2_norm(operand, k, rows.convolved.stride(), pass.rows, shape.key_heads, shape.key_dim, steps.l2_eps, 1.0F,
            pass.stream);
    MixerInputs inputs;
    inputs.q = q;
    inputs.k = k;
    inputs.v = rows.convolved.column(2 * steps.keys);
    inputs.log_decay = rows.gates;
    inputs.beta = rows.gates + heads;
    inputs.q_stride = inputs.k_stride = inputs.v_stride = rows.convolved.stride();
    inputs.decay_stride = inputs.beta_stride = rows.gate_stride;
    inputs.rows = pass.rows;
    if (!shape.log_linear()) return inputs;
    level_scales(steps.level_scale, rows.gates + 2 * heads, rows.gate_stride, pass.rows, heads * shape.levels,
                 pass.stream);
    inputs.lambda = rows.gates + 2 * heads;
    inputs.lambda_stride = rows.gate_stride;
    return inputs;
}

ReadOut read_out_call(const GpuLayer& layer, const LayerRows& rows, const Mamba2Steps& steps) {
    ReadOut call;
    call.x = rows.convolved.column(0);
    call.x_stride = rows.convolved.stride();
    call.skip = steps.skip;
    call.skip_channels = steps.inner / steps.skip_count;
    call.gate = rows.projected.column(0);
    call.gate_stride = rows.projected.stride();
    call.weight = steps.norm;
    call.group_size = steps.inner / layer.shape.key_heads;
    call.weight_period = steps.inner;
    call.eps = steps.norm_eps;
    call.norm_before_gate = steps.norm_before_gate;
    return call;
}

ReadOut read_out_call(const GpuLayer& layer, const LayerRows& rows, const GatedDeltaSteps& steps) {
    ReadOut call;
    if (steps.use_gate) call.gate = rows.projected.column(2 * steps.keys + steps.values);
    call.gate_stride = rows.projected.stride();
    call.weight = steps.norm;
    call.group_size = call.weight_period = layer.shape.value_dim;
    call.eps = steps.norm_eps;
    call.norm_before_gate = true;
    return call;
}

void mix(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry, const MixerInputs& inputs) {
    const Operand operand = pass.model.operand();
    const PassMemory& memory = pass.memory;
    const std::int64_t complete = pass.rows / kBlockTokens;
    mixer_block_summaries(layer.shape, operand, inputs, pass.first_block, complete, memory.summaries,
                          memory.mixer_workspace, pass.stream);
    mixer_outputs(layer.shape, operand, inputs, pass.first_block, carry.nodes.entering(pass.first_block),
                  memory.summaries, complete > 0, memory.o, memory.mixer_workspace, pass.stream);
    carry.nodes.append(pass.first_block, memory.summaries, complete, memory.node_scratch);
}

/// x += y weight^T (+ bias), y [rows, inputs] with rows of its own stride.
void add_product(const GpuPass& pass, const GpuLinear& linear, const void* y, std::int64_t stride, std::int64_t first,
                 std::int64_t rows) {
    float* x = pass.memory.x + first * pass.model.hidden();
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
    multiply(pass, call);
    if (linear.bias.size() == 0) return;
    add_bias(Operand::kFp32, x, linear.outputs, linear.bias.data(), rows, linear.outputs, pass.stream);
}

void run_mlp(const GpuPass& pass, const GpuLayer& layer) {
    const Operand operand = pass.model.operand();
    const std::int64_t hidden = pass.model.hidden();
    const std::int64_t inner = layer.down.inputs;
    const OperandRows normed(pass.memory.normed, hidden, operand);
    const OperandRows wide(pass.memory.wide, 2 * inner, operand);
    rms_norm(operand, pass.memory.x, layer.mlp_norm.data(), pass.model.norm_eps(), pass.memory.normed, pass.rows,
             hidden, pass.stream);
    for (std::int64_t first = 0; first < pass.rows; first += kMlpRows) {
        const std::int64_t rows = std::min(kMlpRows, pass.rows - first);
        MatmulCall call;
        call.x = normed.row(first);
        call.x_stride = call.k = hidden;
        call.weight = layer.gate_up.weight.data();
        call.output = operand;
        call.y = wide.column(0);
        call.y_stride = call.n = 2 * inner;
        call.rows = rows;
        multiply(pass, call);
        swiglu(operand, wide.column(0), wide.column(inner), 2 * inner, rows, inner, pass.stream);
        add_product(pass, layer.down, wide.column(0), 2 * inner, first, rows);
    }
}

}  // namespace

void run_layer(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry) {
    const LayerRows rows = rows_of(pass, layer);
    rms_norm(pass.model.operand(), pass.memory.x, layer.mixer_norm.data(), pass.model.norm_eps(), pass.memory.normed,
             pass.rows, pass.model.hidden(), pass.stream);
    project(pass, layer, rows);
    const MixerInputs inputs =
        std::visit([&](const auto& steps) { return mixer_inputs(pass, layer, carry, rows, steps); }, layer.steps);
    mix(pass, layer, carry, inputs);
    ReadOut out = std::visit([&](const auto& steps) { return read_out_call(layer, rows, steps); }, layer.steps);
    out.o = pass.memory.o;
    out.rows = pass.rows;
    out.channels = layer.out_proj.inputs;
    read_out(pass.model.operand(), out, pass.stream);
    add_product(pass, layer.out_proj, pass.memory.o, layer.out_proj.inputs, 0, pass.rows);
    if (layer.has_mlp()) run_mlp(pass, layer);
}

}  // namespace fenwick::cuda
