// The mixers by definition, in double: DESIGN section 3. Plain and slow; what everything else is held against.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixer_shape.h"

namespace fenwick::reference {

/// One document's inputs, row-major, as kernels/mixer.h names and shapes them.
struct MixerInputs {
    std::int64_t tokens = 0;
    std::vector<double> q;          ///< [tokens, key_heads * key_dim]
    std::vector<double> k;          ///< [tokens, key_heads * key_dim]
    std::vector<double> v;          ///< [tokens, heads * value_dim]
    std::vector<double> log_decay;  ///< [tokens, heads], diagonal: [tokens, heads * key_dim]; -inf allowed
    std::vector<double> beta;       ///< [tokens, heads], matrix algebra
    std::vector<double> lambda;     ///< [tokens, heads * levels], log-linear
};

/// The dense definition: O = (P * M) V, with P[t, s] = w_s q_t^T A_t ... A_(s+1) k_s and M[t, s] = lambda_t of the
/// pair's level. O(tokens^2 d_k). Returns [tokens, heads * value_dim]. Rows depend on earlier rows alone, so the first
/// rows of a long document are the result for every shorter one.
[[nodiscard]] std::vector<double> mixer_dense(const MixerShape& shape, const MixerInputs& inputs, int threads = 1);

/// The same by states, token by token: one state for each bucket of the prefix. O(tokens log(tokens) d_k d_v).
[[nodiscard]] std::vector<double> mixer_recurrent(const MixerShape& shape, const MixerInputs& inputs, int threads = 1);

}  // namespace fenwick::reference
