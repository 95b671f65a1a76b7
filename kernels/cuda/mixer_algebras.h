// What each algebra gives to the dispatcher (mixer.cu); arguments as in kernels/cuda/mixer.h.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// Everything one call needs.
struct MixerCall {
    MixerShape shape;
    Operand operand = Operand::kBf16;
    MixerInputs inputs;
    std::int64_t first_block = 0;
    std::span<const EnteringNode> entering;  ///< outputs: oldest first; checked by the dispatcher
    bool after_summaries = false;            ///< prepare_outputs: the workspace holds what the summaries left there
    void* workspace = nullptr;
    cudaStream_t stream = nullptr;
};

[[nodiscard]] std::size_t scalar_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                 std::int64_t first_block);
void scalar_block_summaries(const MixerCall& call, std::int64_t blocks, float* out);
void scalar_prepare_outputs(const MixerCall& call);
void scalar_outputs(const MixerCall& call, const ShardNodes& nodes, void* out);

[[nodiscard]] std::size_t matrix_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                 std::int64_t first_block);
void matrix_block_summaries(const MixerCall& call, std::int64_t blocks, float* out);
void matrix_prepare_outputs(const MixerCall& call);
void matrix_outputs(const MixerCall& call, const ShardNodes& nodes, void* out);

[[nodiscard]] std::size_t diagonal_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                   std::int64_t first_block);
void diagonal_block_summaries(const MixerCall& call, std::int64_t blocks, float* out);
void diagonal_prepare_outputs(const MixerCall& call);
void diagonal_outputs(const MixerCall& call, const ShardNodes& nodes, void* out);

}  // namespace fenwick::cuda
