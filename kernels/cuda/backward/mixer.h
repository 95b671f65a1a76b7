// Gradients of the sequence mixers on the GPU: kernels/backward/mixer.h's two steps with device pointers.
//
// All gradients are fp32, those of bf16 rows too: they are sums over levels, blocks and both steps, which a rounding
// between the steps would spoil; the caller rounds once, when it hands them on.
//
// Head shapes are those of kernels/cuda/mixer.h. The matrix units take bf16 operands, d_k 64 or 128, d_v a multiple of
// 8 and at most 64 levels, where a thread block may have 227 KiB of shared memory (sm_90; documents of up to 2^24
// blocks, diagonal and matrix transitions: 2^16). All else - fp32, other shapes, smaller GPUs - runs in fp32 sums on
// the CUDA cores (plain.cu), many times slower.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// Device pointers to the gradients of a shard's rows, shaped as MixerInputs' rows; strides count elements. A log decay
/// of -inf gets 0.
struct MixerGradients {
    float* q = nullptr;          ///< [rows, key_heads * d_k]
    float* k = nullptr;          ///< [rows, key_heads * d_k]
    float* v = nullptr;          ///< [rows, heads * d_v]
    float* log_decay = nullptr;  ///< [rows, heads]; diagonal: [rows, heads * d_k]
    float* beta = nullptr;       ///< matrix: [rows, heads]; else null
    float* lambda = nullptr;     ///< log-linear: [rows, heads * levels]; else null. Levels past the last: with the last
    std::int64_t q_stride = 0;
    std::int64_t k_stride = 0;
    std::int64_t v_stride = 0;
    std::int64_t decay_stride = 0;
    std::int64_t beta_stride = 0;
    std::int64_t lambda_stride = 0;
};

/// Bytes of device workspace that each of the two calls below needs (256-byte aligned) for a shard of `rows` rows that
/// starts at block `first_block` of its document; at least mixer_workspace_bytes. Both get the same memory, and between
/// them nobody writes to it: the second uses what the first has formed.
[[nodiscard]] std::size_t mixer_backward_workspace_bytes(const MixerShape& shape, Operand operand, std::int64_t rows,
                                                         std::int64_t first_block);

/// Of mixer_outputs with the same arguments: d_out [rows, heads * d_v] of the operand type, rows `d_out_stride`
/// elements apart. What `gradients` held does not count; they are whole after the second call. d_entering (a host list
/// of device pointers, one packed layer summary for each entering node) and d_block_summaries (as many as
/// `nodes.blocks` has to have) are added to, laid out as kernels/backward/summary.h says; of linear diagonal and matrix
/// models on the matrix units dS alone: what comes after a block depends on its summary only by the state that leaves
/// it, whose gradient dS is. `after_outputs`: mixer_outputs was called for the same inputs with the same workspace,
/// which still holds what it left there: the same bits, of linear matrix models with less work. The same bits in every
/// run. Throws as mixer_outputs does.
void mixer_outputs_backward(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                            std::int64_t first_block, std::span<const EnteringNode> entering, const ShardNodes& nodes,
                            const void* d_out, std::int64_t d_out_stride, const MixerGradients& gradients,
                            std::span<float* const> d_entering, float* d_block_summaries, bool after_outputs,
                            void* workspace, cudaStream_t stream);

/// Of mixer_block_summaries for a shard's first `blocks` whole blocks: d_summaries [blocks][summary_floats(shape)].
/// Call it after mixer_outputs_backward with the same arguments, with no blocks too. Of block 0 of a document, and of
/// linear diagonal and matrix models on the matrix units, dA is not read.
void mixer_block_summaries_backward(const MixerShape& shape, Operand operand, const MixerInputs& inputs,
                                    std::int64_t first_block, const void* d_out, std::int64_t d_out_stride,
                                    std::int64_t blocks, const float* d_summaries, const MixerGradients& gradients,
                                    void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
