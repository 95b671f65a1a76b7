// Products, losses and look-ups in double, as plainly as they can be written: what the kernels are checked against.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace fenwick::reference {

/// y [rows, n] = x [rows, k] weight^T (+ bias [n] unless empty), weight [n, k].
[[nodiscard]] std::vector<double> matmul(MatrixView<const double> x, MatrixView<const double> weight,
                                         const std::vector<double>& bias);

/// nll[t] = logsumexp(h_t W^T) - (h_t W^T)[targets[t]] in nats.
[[nodiscard]] std::vector<double> cross_entropy(MatrixView<const double> h, MatrixView<const double> lm_head,
                                                const std::int32_t* targets);

/// Rows of the table [vocab, hidden] for `ids`.
[[nodiscard]] std::vector<double> embed_rows(MatrixView<const double> table, const std::vector<std::int32_t>& ids);

}  // namespace fenwick::reference
