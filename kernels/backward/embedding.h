// Gradient of the embedding table (kernels/embedding.h). Conventions: backward/matmul.h.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// d_table[ids[t], :] += dy[t, :] in the order of rows; d_table [vocab, hidden], dy [rows, hidden].
void embed_rows_backward(MatrixView<float> d_table, const std::int32_t* ids, MatrixView<const float> dy, int threads);

}  // namespace fenwick
