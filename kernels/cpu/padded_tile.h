// The last, short tile of rows, brought to full shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"

namespace fenwick {

/// Copies `from` [rows, cols] to the first rows of `to` [kRowTile, cols] and clears the others.
inline void copy_padded(MatrixView<const float> from, MatrixView<float> to) {
    for (std::int64_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.row(r));
    for (std::int64_t r = from.rows; r < to.rows; ++r) std::fill_n(to.row(r), to.cols, 0.0F);
}

}  // namespace fenwick
