// Gradient of the embedding table on the GPU (kernels/backward/embedding.h). Conventions: backward/activations.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

[[nodiscard]] std::size_t embed_rows_backward_workspace_bytes(std::int64_t rows, std::int64_t vocab);

/// d_table[ids[t], :] += dy[t, :]: d_table [vocab, hidden] fp32, ids [rows] in [0, vocab), dy [rows, hidden] fp32,
/// contiguous. Rows are sorted by id; an id's rows are added in an order that follows from their places alone, as pairs
/// that keep what they round off. Throws InternalError for 2^31 rows or more.
void embed_rows_backward(float* d_table, const std::int32_t* ids, const float* dy, std::int64_t rows,
                         std::int64_t vocab, std::int64_t hidden, void* workspace, cudaStream_t stream);

}  // namespace fenwick::cuda
