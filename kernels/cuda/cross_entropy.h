// The loss of each row on the GPU: logits of a few blocks of rows by one tile of the vocabulary at a time, with a
// running maximum and sum (kernels/cross_entropy.h).
#pragma once

#include "core/fenwick.h"
#include "kernels/cuda/matmul.h"

namespace fenwick::cuda {

inline constexpr std::int64_t kVocabTile = 2048;             ///< most vocabulary columns of one product
inline constexpr std::int64_t kLossRows = 4 * kBlockTokens;  ///< most rows of one product

struct CrossEntropyCall {
    Operand operand = Operand::kBf16;
    const void* h = nullptr;                ///< [rows, hidden], contiguous, memory for whole blocks
    const void* lm_head = nullptr;          ///< [vocab, hidden]
    const std::int32_t* targets = nullptr;  ///< [rows], in [0, vocab)
    float* nll = nullptr;                   ///< [rows], nats
    std::int64_t rows = 0;
    std::int64_t hidden = 0;
    std::int64_t vocab = 0;
    std::uint8_t* most_likely = nullptr;  ///< [rows] as kernels/cross_entropy.h's; null: not asked for
};

/// Bytes of device workspace (256-byte aligned), whatever the rows.
[[nodiscard]] std::size_t cross_entropy_workspace_bytes(std::int64_t vocab);

/// Logits are fp32. A NaN or an infinity in any logit makes that row's loss NaN. `matmul_workspace` as Matmul's.
void cross_entropy(const CrossEntropyCall& call, Matmul& matmul, void* workspace, void* matmul_workspace,
                   cudaStream_t stream);

}  // namespace fenwick::cuda
