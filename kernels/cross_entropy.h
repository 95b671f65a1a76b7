// The loss of each row under a language-model head, without ever holding rows x vocabulary logits.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/matmul.h"

namespace fenwick {

inline constexpr std::int64_t kVocabPanel = 512;  ///< most vocabulary columns of one BLAS call

/// Floats of workspace: one padded tile of rows, and one tile of logits a thread.
[[nodiscard]] constexpr std::int64_t cross_entropy_workspace_floats(std::int64_t hidden, int threads) {
    return kRowTile * hidden + (threads > 1 ? threads : 1) * kRowTile * kVocabPanel;
}

/// nll[t] = logsumexp(h_t W^T) - (h_t W^T)[targets[t]] in nats, for h [rows, hidden], W = lm_head [vocab, hidden],
/// targets [rows], nll [rows]. Tiles follow the fixed-tile rule of matmul.h: kRowTile rows by panels of the vocabulary,
/// with a running maximum and sum. `most_likely` [rows], where given: 1 if no other logit is above the target's, else 0
/// (0 as well where the loss is NaN). A NaN or an infinity in any logit makes that row's loss NaN.
/// Throws InternalError for shapes that disagree or a target outside [0, vocab), UnavailableError from
/// initialise_blas().
void cross_entropy(MatrixView<const float> h, MatrixView<const float> lm_head, const std::int32_t* targets, float* nll,
                   int threads, float* workspace, std::uint8_t* most_likely = nullptr);

/// Floats of workspace that logits_rows needs.
[[nodiscard]] constexpr std::int64_t logits_workspace_floats(std::int64_t hidden, std::int64_t vocab) {
    return kRowTile * hidden + matmul_workspace_floats(hidden, vocab);
}

/// logits[i, :] = h[row_ids[i], :] W^T for `count` chosen rows; logits [count, vocab]. For generation and tests.
/// Throws InternalError for shapes that disagree or a row outside h, UnavailableError from initialise_blas().
void logits_rows(MatrixView<const float> h, MatrixView<const float> lm_head, const std::int64_t* row_ids,
                 std::int64_t count, MatrixView<float> logits, int threads, float* workspace);

}  // namespace fenwick
