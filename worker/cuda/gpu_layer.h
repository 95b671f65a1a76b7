// One layer of a pass on the GPU: the steps of worker/token_mixer.h and worker/gated_mlp.h, in the order of
// worker/prefill.cc. Everything is launched on one stream; nothing waits.
#pragma once

#include "kernels/cuda/matmul.h"
#include "worker/cuda/device_nodes.h"
#include "worker/cuda/gpu_model.h"
#include "worker/cuda/pass_memory.h"

namespace fenwick::cuda {

/// What a layer carries from pass to pass, on the device.
struct GpuCarry {
    DeviceNodes nodes;
    DeviceBuffer<unsigned char> halos;  ///< [2][width - 1, channels], operand type: this pass's and the next one's
    bool second = false;                ///< this pass's is the second

    [[nodiscard]] void* halo(bool next) {
        return halos.data() + (second != next ? static_cast<std::int64_t>(halos.bytes()) / 2 : 0);
    }
};

/// A pass: `rows` tokens from block `first_block` of the document on.
struct GpuPass {
    const GpuModel& model;
    Matmul& matmul;
    const PassMemory& memory;
    cudaStream_t stream;
    std::int64_t rows;
    std::int64_t first_block;
};

/// memory.x [rows, hidden] goes through the layer, in place; `carry` is moved on behind the pass.
void run_layer(const GpuPass& pass, const GpuLayer& layer, GpuCarry& carry);

}  // namespace fenwick::cuda
