// Gradient of the embedding table (kernels/embedding.h). Conventions: backward/matmul.h.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// d_table[ids[t], :] += dy[t, :]; d_table [vocab, hidden], dy [rows, hidden]. Rows of an id are summed in order, in
/// double, by runs of 4096 rows, and each run's sum is added to the table. Throws InternalError for an id outside
/// [0, vocab).
void embed_rows_backward(MatrixView<float> d_table, const std::int32_t* ids, MatrixView<const float> dy, int threads);

}  // namespace fenwick
