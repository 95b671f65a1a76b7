#include "worker/cuda/gpu_layer.h"

#include <vector>

#include "core/fenwick.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/read_out.h"
#include "worker/cuda/layer_steps.h"

namespace fenwick::cuda {
namespace {

void start_halo(const GpuPass& pass, const LayerWork& work, const GpuLayer& layer, std::int32_t index,
                GpuCarry& carry) {
    const OperandRows projected = projected_rows(work, layer);
    const std::int64_t element = pass.model.operand() == Operand::kBf16 ? 2 : 4;
    DeviceHalo halo;
    halo.own_rows = projected.column(layer.conv_first);
    halo.own_stride = projected.stride() * element;
    halo.row_bytes = layer.convolution.channels * element;
    halo.halo_out = pass.memory.halo;
    if (carry.halos.size() > 0) {
        halo.carried = carry.halo(false);
        halo.carried_out = carry.halo(true);
    }
    pass.exchange.start_halo(index, layer.convolution.width - 1, halo, pass.stream);
    carry.second = !carry.second;
}

}  // namespace

void run_layer(const GpuPass& pass, const GpuLayer& layer, std::int32_t index, GpuCarry& carry) {
    const Operand operand = pass.model.operand();
    const PassMemory& memory = pass.memory;
    const LayerWork work{pass.model, pass.matmul, pass.memory, pass.stream, pass.rows};
    const std::int64_t complete = pass.rows / kBlockTokens;
    const bool idle = pass.rows == 0;  // this rank has no tokens: it only takes part in the exchanges
    const bool with_halo = layer.convolution.width > 1;
    if (!idle) {
        rms_norm(operand, memory.x, layer.mixer_norm.data(), pass.model.norm_eps(), memory.normed, pass.rows,
                 pass.model.hidden(), pass.stream);
        project_columns(work, layer, layer.conv_first, layer.convolution.channels);
    }
    if (with_halo) start_halo(pass, work, layer, index, carry);
    MixerInputs inputs;
    if (!idle) {
        project_gates(work, layer);
        prepare_gates(work, layer);
        if (with_halo) pass.exchange.await_halo(pass.stream);
        causal_convolution(operand, convolution_call(work, layer), pass.stream);
        inputs = mixer_inputs(work, layer);
        pass.exchange.await_list(pass.stream);  // the last layer's summaries are no longer needed
        mixer_block_summaries(layer.shape, operand, inputs, pass.first_block, complete, memory.summaries,
                              memory.mixer_workspace, pass.stream);
    }
    const std::vector<EnteringNode> entering = pass.exchange.start_exchange(
        index, layer.shape, memory.summaries, memory.node_scratch, carry.nodes, pass.stream);
    if (idle) return;
    project_rest(work, layer);
    mixer_prepare_outputs(layer.shape, operand, inputs, pass.first_block, complete > 0, memory.mixer_workspace,
                          pass.stream);
    pass.exchange.await_entering(pass.stream);
    mixer_outputs(layer.shape, operand, inputs, pass.first_block, entering,
                  {memory.summaries, memory.node_scratch, complete}, memory.o, memory.mixer_workspace, pass.stream);
    ReadOut out = read_out_call(work, layer);
    out.o = memory.o;
    read_out(operand, out, pass.stream);
    add_product(work, layer.out_proj, memory.o, layer.out_proj.inputs, 0, pass.rows);
    if (layer.has_mlp()) run_mlp(work, layer);
}

}  // namespace fenwick::cuda
