// Products of a rank's rows with a weight matrix, in tiles of a fixed shape (DESIGN section 4).
//
// The fixed-tile rule: a row's value must not depend on how many rows the caller owns, on the number of threads or on
// memory alignment. So every BLAS call has kRowTile rows and a panel of columns whose width follows from n alone; it
// runs on one thread; parallelism is over tiles. The last rows are computed in a zero-padded copy of full shape.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "kernels/gemm.h"

namespace fenwick {

inline constexpr std::int64_t kRowTile = 256;       ///< rows of every BLAS call; divides kBlockTokens
inline constexpr std::int64_t kColumnPanel = 1024;  ///< most columns of one BLAS call

/// Width of the column panels that `columns` is cut into, none wider than `limit` (a multiple of 16): even ones, so
/// that no sliver is left, rounded up to 16 floats. A function of its arguments alone.
[[nodiscard]] constexpr std::int64_t panel_width(std::int64_t columns, std::int64_t limit) {
    const std::int64_t panels = (columns + limit - 1) / limit;
    if (panels <= 1) return columns;
    return ((columns + panels - 1) / panels + 15) / 16 * 16;
}

/// Floats of workspace that matmul_rows needs for weights [n, k]; whatever the rows and threads.
[[nodiscard]] constexpr std::int64_t matmul_workspace_floats(std::int64_t k, std::int64_t n) {
    return kRowTile * (k + n);
}

/// y [rows, n] = x [rows, k] weight^T (+ bias [n]) (+ y when `accumulate`); weight [n, k], the layout of nn.Linear.
/// `bias` may be null. `y` must not overlap `x`, `weight` or `workspace` (matmul_workspace_floats(k, n) floats).
/// Row r goes through tile r / kRowTile at place r % kRowTile: callers start at a multiple of kRowTile of the document.
/// Throws InternalError when the shapes disagree, UnavailableError from initialise_blas().
void matmul_rows(MatrixView<const float> x, MatrixView<const float> weight, MatrixView<float> y, const float* bias,
                 bool accumulate, int threads, float* workspace);

}  // namespace fenwick
