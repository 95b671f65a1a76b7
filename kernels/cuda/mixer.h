// The sequence mixers on the GPU: kernels/mixer.h's two steps with device pointers, the second one in two parts. The
// definition, the blocks and the tree are the same; operands are bf16 (or fp32, for checking), sums, states and decays
// fp32.
//
// Head shapes: d_k and d_v of 1 to 256 (scalar: d_v even), for every algebra and read-out. The matrix units take bf16
// operands with d_k 64 or 128 and d_v a multiple of 8 (matrix transitions: at most 32 levels). All else runs in fp32
// sums on the CUDA cores (the *_plain.cu files), many times slower: fp32 operands, other shapes such as d_k 192 and
// 256, and where thread blocks have too little shared memory, bf16 scalar transitions (below 227 KiB: sm_80, sm_86,
// sm_89) and bf16 matrix transitions with the log-linear read-out (sm_86, sm_89). A kernel that the GPU has too little
// shared memory for and that nothing stands in for throws UnavailableError.
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

/// Nodes of a shard's whole blocks, on the device; a node is a packed layer summary.
struct ShardNodes {
    const float* blocks = nullptr;  ///< [blocks][summary_floats(shape)]; the last block's may be left out
    /// All nodes of more than one block that lie whole in the first `above_blocks` blocks, by bit, then index, as
    /// cover_of_blocks leaves them (parallel/node_summaries.h); those are all of the shard's whole blocks but perhaps
    /// the last. Null: the mixer forms the nodes that it reads; the bits are the same.
    const float* above = nullptr;
    std::int64_t above_blocks = 0;
};

/// Bytes of device workspace that the calls below need (256-byte aligned) for a shard of `rows` rows that starts at
/// block `first_block` of its document.
[[nodiscard]] std::size_t mixer_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                std::int64_t first_block);

/// As kernels/mixer.h's: summaries of the first `blocks` whole blocks of a shard that starts at `first_block` of its
/// document, out[blocks][summary_floats(shape)] on the device. Of block 0 only S is sure to be there: nothing is older,
/// so nobody reads its A.
void mixer_block_summaries(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                           std::int64_t first_block, std::int64_t blocks, float* out, void* workspace,
                           cudaStream_t stream);

/// The part of the outputs that needs nothing from other shards, to be done while nodes are exchanged: always before
/// mixer_outputs. `after_summaries`: mixer_block_summaries was called for at least one block of the same inputs with
/// the same workspace, which still holds what it left there: the same bits, less work.
void mixer_prepare_outputs(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                           std::int64_t first_block, bool after_summaries, void* workspace, cudaStream_t stream);

/// As kernels/mixer.h's, from the workspace that mixer_prepare_outputs left for the same inputs. `entering` is a host
/// list whose summaries lie on the device; `out` [rows, heads * d_v] of the operand type, contiguous. Throws
/// InternalError for a list that does not enter `first_block` or a head shape that no kernel takes (the message prints
/// the whole request), UnavailableError when CUDA fails.
void mixer_outputs(const MixerShape& shape, Operand operand, const MixerInputs& inputs, std::int64_t first_block,
                   std::span<const EnteringNode> entering, const ShardNodes& nodes, void* out, void* workspace,
                   cudaStream_t stream);

}  // namespace fenwick::cuda
