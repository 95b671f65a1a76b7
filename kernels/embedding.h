// Rows of the embedding table.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// out[t, :] = table[ids[t], :], with table [vocab, hidden], ids [out.rows], out [rows, hidden].
/// Ids are checked where documents are read; one outside [0, vocab) here is a fault of ours: InternalError names it.
void embed_rows(MatrixView<const float> table, const std::int32_t* ids, MatrixView<float> out, int threads);

}  // namespace fenwick
