// The loss of rows with its gradient on the GPU (kernels/backward/cross_entropy.h), by tiles of rows and vocabulary.
// Conventions: backward/activations.h.
#pragma once

#include "kernels/backward/cross_entropy.h"
#include "kernels/cuda/cross_entropy.h"

namespace fenwick::cuda {

struct CrossEntropyBackward {
    CrossEntropyCall forward;  ///< targets may be kNoTarget: loss 0, no part in any gradient. nll is written. Rows of
                               ///< h behind `rows`, to the end of their block, are set to 0
    CrossEntropyOptions options;
    float* d_h = nullptr;        ///< [rows, hidden] fp32, contiguous, memory for whole blocks; overwritten
    float* d_lm_head = nullptr;  ///< [vocab, hidden] fp32, contiguous; added to
};

[[nodiscard]] std::size_t cross_entropy_backward_workspace_bytes(Operand operand, std::int64_t vocab);

/// Gradients of logits are rounded to the operand type before they are multiplied. A row with a NaN or an infinite
/// logit has a NaN loss and makes gradients NaN.
void cross_entropy_with_gradient(const CrossEntropyBackward& call, Matmul& matmul, void* workspace,
                                 void* matmul_workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
