// Rows of the embedding table on the GPU.
#pragma once

#include "kernels/cuda/mixer.h"

namespace fenwick::cuda {

/// out[t, :] = table[ids[t], :]: table [vocab, hidden] of the operand type, ids [rows] in [0, vocab) (checked where
/// documents are read), out [rows, hidden] fp32.
void embed_rows(Operand operand, const void* table, const std::int32_t* ids, float* out, std::int64_t rows,
                std::int64_t hidden, cudaStream_t stream);

}  // namespace fenwick::cuda
