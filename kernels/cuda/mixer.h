// The sequence mixers on the GPU: kernels/mixer.h's two steps with device pointers. The definition, the blocks and the
// tree are the same; operands are bf16 (or fp32, for checking), sums, states and decays fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mixer.h"

namespace fenwick::cuda {

enum class Operand { kBf16, kFp32 };

/// Device pointers to the rows of a shard; strides count elements from row to row. q, k, v are of the operand type.
struct MixerInputs {
    const void* q = nullptr;           ///< [rows, key_heads * d_k]
    const void* k = nullptr;           ///< [rows, key_heads * d_k]
    const void* v = nullptr;           ///< [rows, heads * d_v]
    const float* log_decay = nullptr;  ///< [rows, heads]; diagonal: [rows, heads * d_k]; <= 0, -inf allowed
    const float* beta = nullptr;       ///< matrix: [rows, heads]; else null
    const float* lambda = nullptr;     ///< log-linear: [rows, heads * levels]; else null
    std::int64_t q_stride = 0;
    std::int64_t k_stride = 0;
    std::int64_t v_stride = 0;
    std::int64_t decay_stride = 0;
    std::int64_t beta_stride = 0;
    std::int64_t lambda_stride = 0;
    std::int64_t rows = 0;
};

/// Bytes of device workspace that the two calls below need (256-byte aligned) for a shard of `rows` rows that starts at
/// block `first_block` of its document.
[[nodiscard]] std::size_t mixer_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                std::int64_t first_block);

/// As kernels/mixer.h's: summaries of the first `blocks` whole blocks of a shard that starts at `first_block` of its
/// document, out[blocks][summary_floats(shape)] on the device. Of block 0 only S is sure to be there: nothing is older,
/// so nobody reads its A.
void mixer_block_summaries(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                           std::int64_t first_block, std::int64_t blocks, float* out, void* workspace,
                           cudaStream_t stream);

/// As kernels/mixer.h's. `entering` is a host list whose summaries lie on the device; `out` [rows, heads * d_v] of the
/// operand type, contiguous. `after_summaries`: mixer_block_summaries was called for at least one block of the same
/// inputs with the same workspace, which still holds what it left there: the same bits, less work. Throws InternalError
/// for a list that does not enter `first_block` or a head shape that no kernel takes (the message prints the whole
/// request), UnavailableError when CUDA fails.
void mixer_outputs(const MixerShape& shape, Operand operand, const MixerInputs& inputs, std::int64_t first_block,
                   std::span<const EnteringNode> entering, const float* block_summaries, bool after_summaries,
                   void* out, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
