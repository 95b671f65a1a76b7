#include "worker/cuda/gpu_layer.h"

#include <algorithm>
#include <vector>

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

/// Columns [first, first + columns) of what the convolution and the read-out take.
void project_columns(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows, std::int64_t first,
                     std::int64_t columns) {
    if (columns == 0) return;
    const Operand operand = pass.model.operand();
    MatmulCall call;
    call.x = pass.memory.normed;
    call.rows = pass.rows;
    call.k = call.x_stride = layer.in_proj.inputs;
    call.weight = layer.in_proj.rows_from(first, operand);
    call.output = operand;
    call.y = rows.projected.column(first);
    call.y_stride = rows.projected.stride();
    call.n = columns;
    multiply(pass, call);
    if (layer.in_proj.bias.size() == 0) return;
    add_bias(operand, call.y, call.y_stride, layer.in_proj.bias.data() + first, pass.rows, columns, pass.stream);
}

void project_gates(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows) {
    MatmulCall call;
    call.x = pass.memory.normed;
    call.rows = pass.rows;
    call.k = call.x_stride = layer.in_proj.inputs;
    call.weight = layer.in_proj.rows_from(layer.gates_first, pass.model.operand());
    call.output = Operand::kFp32;
    call.y = rows.gates;
    call.n = layer.gate_columns();
    call.y_stride = rows.gate_stride;
    multiply(pass, call);
    if (layer.in_proj.bias.size() == 0) return;
    add_bias(Operand::kFp32, rows.gates, rows.gate_stride, layer.in_proj.bias.data() + layer.gates_first, pass.rows,
             layer.gate_columns(), pass.stream);
}

/// The columns that only the read-out needs: what is left while the nodes are exchanged.
void project_rest(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows) {
    const std::int64_t conv_end = layer.conv_first + layer.convolution.channels;
    project_columns(pass, layer, rows, 0, layer.conv_first);
    project_columns(pass, layer, rows, conv_end, layer.gates_first - conv_end);
}

void start_halo(const GpuPass& pass, const GpuLayer& layer, std::int32_t index, GpuCarry& carry,
                const LayerRows& rows) {
    const std::int64_t element = pass.model.operand() == Operand::kBf16 ? 2 : 4;
    DeviceHalo halo;
    halo.own_rows = rows.projected.column(layer.conv_first);
    halo.own_stride = rows.projected.stride() * element;
    halo.row_bytes = layer.convolution.channels * element;
    halo.halo_out = pass.memory.halo;
    if (carry.halos.size() > 0) {
        halo.carried = carry.halo(false);
        halo.carried_out = carry.halo(true);
    }
    pass.exchange.start_halo(index, layer.convolution.width - 1, halo, pass.stream);
    carry.second = !carry.second;
}

ConvolutionCall convolution_call(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows) {
    ConvolutionCall call;
    call.convolution = layer.convolution;
    call.halo = layer.convolution.width > 1 ? pass.memory.halo : nullptr;
    call.x = rows.projected.column(layer.conv_first);
    call.x_stride = rows.projected.stride();
    call.y = rows.convolved.column(0);
    call.rows = pass.rows;
    return call;
}

void prepare_gates(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows, const Mamba2Steps& steps) {
    mamba2_gates(steps.gates, rows.gates, rows.gate_stride, pass.memory.log_decay, pass.rows, layer.shape.heads,
                 pass.stream);
}

void prepare_gates(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows, const GatedDeltaSteps& steps) {
    const std::int64_t heads = layer.shape.heads;
    delta_gates(steps.gates, rows.gates, rows.gates + heads, rows.gate_stride, pass.rows, heads, pass.stream);
}

MixerInputs mixer_inputs(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows, const Mamba2Steps& steps) {
    const std::int64_t heads = layer.shape.heads;
    const std::int64_t keys = layer.shape.key_heads * layer.shape.key_dim;
    ConvolutionCall call = convolution_call(pass, layer, rows);
    call.v = pass.memory.v;
    call.dt = rows.gates;
    call.dt_stride = rows.gate_stride;
    call.v_channels = steps.inner;
    call.v_head_dim = layer.shape.value_dim;
    causal_convolution(pass.model.operand(), call, pass.stream);
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

MixerInputs mixer_inputs(const GpuPass& pass, const GpuLayer& layer, const LayerRows& rows,
                         const GatedDeltaSteps& steps) {
    const Operand operand = pass.model.operand();
    const MixerShape& shape = layer.shape;
    const std::int64_t heads = shape.heads;
    causal_convolution(operand, convolution_call(pass, layer, rows), pass.stream);
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

void run_layer(const GpuPass& pass, const GpuLayer& layer, std::int32_t index, GpuCarry& carry) {
    const Operand operand = pass.model.operand();
    const PassMemory& memory = pass.memory;
    const LayerRows rows = rows_of(pass, layer);
    const std::int64_t complete = pass.rows / kBlockTokens;
    const bool idle = pass.rows == 0;  // this rank has no tokens: it only takes part in the exchanges
    const bool with_halo = layer.convolution.width > 1;
    if (!idle) {
        rms_norm(operand, memory.x, layer.mixer_norm.data(), pass.model.norm_eps(), memory.normed, pass.rows,
                 pass.model.hidden(), pass.stream);
        project_columns(pass, layer, rows, layer.conv_first, layer.convolution.channels);
    }
    if (with_halo) start_halo(pass, layer, index, carry, rows);
    MixerInputs inputs;
    if (!idle) {
        project_gates(pass, layer, rows);
        std::visit([&](const auto& steps) { prepare_gates(pass, layer, rows, steps); }, layer.steps);
        if (with_halo) pass.exchange.await_halo(pass.stream);
        inputs = std::visit([&](const auto& steps) { return mixer_inputs(pass, layer, rows, steps); }, layer.steps);
        pass.exchange.await_list(pass.stream);  // the last layer's summaries are no longer needed
        mixer_block_summaries(layer.shape, operand, inputs, pass.first_block, complete, memory.summaries,
                              memory.mixer_workspace, pass.stream);
    }
    const std::vector<EnteringNode> entering = pass.exchange.start_exchange(
        index, layer.shape, memory.summaries, memory.node_scratch, carry.nodes, pass.stream);
    if (idle) return;
    project_rest(pass, layer, rows);
    pass.exchange.await_entering(pass.stream);
    mixer_outputs(layer.shape, operand, inputs, pass.first_block, entering, memory.summaries, complete > 0, memory.o,
                  memory.mixer_workspace, pass.stream);
    ReadOut out = std::visit([&](const auto& steps) { return read_out_call(layer, rows, steps); }, layer.steps);
    out.o = memory.o;
    out.rows = pass.rows;
    out.channels = layer.out_proj.inputs;
    read_out(operand, out, pass.stream);
    add_product(pass, layer.out_proj, memory.o, layer.out_proj.inputs, 0, pass.rows);
    if (layer.has_mlp()) run_mlp(pass, layer);
}

}  // namespace fenwick::cuda
