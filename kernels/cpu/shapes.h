// What the row-wise kernels ask of their views.
#pragma once

#include <fmt/format.h>

#include "core/errors.h"
#include "core/tensor.h"

namespace fenwick {

inline void require_same_shape(const char* kernel, MatrixView<const float> a, MatrixView<const float> b) {
    if (a.rows == b.rows && a.cols == b.cols) return;
    throw InternalError(
        fmt::format("{}: views of [{}, {}] and [{}, {}] differ", kernel, a.rows, a.cols, b.rows, b.cols));
}

}  // namespace fenwick
