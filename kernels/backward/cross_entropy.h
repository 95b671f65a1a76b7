// The loss of rows under a language-model head, with its gradient in the same walk over vocabulary panels, without ever
// holding rows x vocabulary logits. Conventions: backward/matmul.h.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

inline constexpr std::int32_t kNoTarget = -1;  ///< a row that is not scored

struct CrossEntropyOptions {
    float scale = 1.0F;   ///< of every gradient: 1 / labels of the whole step
    float z_loss = 0.0F;  ///< the objective of a row is nll + z_loss * logsumexp^2
};

/// Floats of workspace; rows as in `h`.
[[nodiscard]] std::int64_t cross_entropy_backward_workspace_floats(std::int64_t rows, std::int64_t hidden,
                                                                   std::int64_t vocab, int threads);

/// nll[t] as kernels/cross_entropy.h's; 0 where targets[t] is kNoTarget, and such a row has no part in any gradient.
/// d_h [rows, hidden] overwritten, d_lm_head [vocab, hidden] added to: both of scale * (sum over rows of nll +
/// z_loss * logsumexp^2). A row whose logits have a NaN or an infinity has a NaN loss and makes d_lm_head NaN; h has to
/// be finite in rows without a target, too. Throws InternalError for a target outside [0, vocab) that is not kNoTarget,
/// UnavailableError from initialise_blas().
void cross_entropy_with_gradient(MatrixView<const float> h, MatrixView<const float> lm_head,
                                 const std::int32_t* targets, const CrossEntropyOptions& options, float* nll,
                                 MatrixView<float> d_h, MatrixView<float> d_lm_head, int threads, float* workspace);

}  // namespace fenwick
