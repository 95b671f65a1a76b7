// One layer of a pass on the GPU: the steps of worker/token_mixer.h and worker/gated_mlp.h, in the order of
// worker/prefill.cc. Computation is launched on one stream, what is exchanged with
// other ranks on another (rank_exchange.h); nothing waits.
#pragma once

#include <cstdint>

#include "kernels/cuda/matmul.h"
#include "worker/cuda/gpu_model.h"
#include "worker/cuda/pass_memory.h"
#include "worker/cuda/rank_exchange.h"

namespace fenwick::cuda {

/// What a layer carries from pass to pass, on the device.
struct GpuCarry {
    NodeSummaries nodes;                ///< complete nodes of the prefix; the same on every rank
    DeviceBuffer<unsigned char> halos;  ///< rank 0: [2][width - 1, channels], operand type: this pass's, the next one's
    bool second = false;                ///< this pass's is the second

    [[nodiscard]] void* halo(bool next) {
        return halos.data() + (second != next ? static_cast<std::int64_t>(halos.bytes()) / 2 : 0);
    }
};

/// A rank's part of a pass: `rows` tokens, perhaps none, from block `first_block` of the document on.
struct GpuPass {
    const GpuModel& model;
    Matmul& matmul;
    const PassMemory& memory;
    RankExchange& exchange;
    cudaStream_t stream;
    std::int64_t rows;
    std::int64_t first_block;
};

/// Collective. memory.x [rows, hidden] goes through layer number `index`, in place; `carry` is moved on behind the
/// pass.
void run_layer(const GpuPass& pass, const GpuLayer& layer, std::int32_t index, GpuCarry& carry);

}  // namespace fenwick::cuda
