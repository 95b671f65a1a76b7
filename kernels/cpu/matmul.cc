#include "kernels/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "kernels/cpu/padded_tile.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

/// Fills or adds what the product is added to. Returns the beta of the product.
float prepare_tile(MatrixView<float> y, const float* bias, bool accumulate) {
    if (bias == nullptr) return accumulate ? 1.0F : 0.0F;
    for (std::int64_t r = 0; r < y.rows; ++r) {
        float* out = y.row(r);
        if (accumulate) {
            for (std::int64_t c = 0; c < y.cols; ++c) out[c] += bias[c];
        } else {
            std::copy_n(bias, y.cols, out);
        }
    }
    return 1.0F;
}

}  // namespace

void matmul_rows(MatrixView<const float> x, MatrixView<const float> weight, MatrixView<float> y, const float* bias,
                 bool accumulate, int threads, float* workspace) {
    if (x.rows != y.rows || x.cols != weight.cols || y.cols != weight.rows) {
        throw InternalError(fmt::format("matmul_rows: x [{}, {}], weight [{}, {}] and y [{}, {}] do not fit", x.rows,
                                        x.cols, weight.rows, weight.cols, y.rows, y.cols));
    }
    initialise_blas();
    const std::int64_t k = x.cols;
    const std::int64_t n = y.cols;
    if (x.rows == 0 || n == 0) return;

    const std::int64_t full_tiles = x.rows / kRowTile;
    const std::int64_t tail_rows = x.rows % kRowTile;
    const MatrixView<float> tail_x(workspace, kRowTile, k);
    const MatrixView<float> tail_y(workspace + kRowTile * k, kRowTile, n);
    if (tail_rows > 0) copy_padded(x.row_range(full_tiles * kRowTile, tail_rows), tail_x);

    const std::int64_t width = panel_width(n, kColumnPanel);
    const std::int64_t panels = (n + width - 1) / width;
    const std::int64_t tiles = full_tiles + (tail_rows > 0 ? 1 : 0);
    parallel_tasks(tiles * panels, threads, [&](std::int64_t task, int) {
        const std::int64_t tile = task / panels;
        const std::int64_t first_col = task % panels * width;
        const std::int64_t cols = std::min(width, n - first_col);
        const bool padded = tile == full_tiles;
        const MatrixView<const float> in =
            padded ? MatrixView<const float>(tail_x) : x.row_range(tile * kRowTile, kRowTile);
        const MatrixView<float> target =
            y.row_range(tile * kRowTile, padded ? tail_rows : kRowTile).col_range(first_col, cols);
        const MatrixView<float> out = padded ? tail_y.col_range(first_col, cols) : target;
        if (padded && accumulate) copy_padded(target, out);
        const float beta = prepare_tile(out, bias == nullptr ? nullptr : bias + first_col, accumulate);
        gemm_nt(kRowTile, cols, k, 1.0F, in.data, in.stride, weight.row(first_col), weight.stride, beta, out.data,
                out.stride);
        if (padded) {
            for (std::int64_t r = 0; r < tail_rows; ++r) std::copy_n(out.row(r), cols, target.row(r));
        }
    });
}

}  // namespace fenwick
