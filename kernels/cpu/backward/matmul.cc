#include "kernels/backward/matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/cpu/backward/column_sums.h"
#include "kernels/matmul.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

// Panels of a weight's gradient, one task each: small enough that every thread has some.
constexpr std::int64_t kWeightRows = 256;
constexpr std::int64_t kWeightColumns = 512;
constexpr std::int64_t kBiasBlock = 256;

void add_bias_gradient(MatrixView<const float> dy, float* d_bias, int threads) {
    parallel_tasks((dy.cols + kBiasBlock - 1) / kBiasBlock, threads, [&](std::int64_t block, int) {
        const std::int64_t first = block * kBiasBlock;
        const std::int64_t count = std::min(kBiasBlock, dy.cols - first);
        std::array<float, kBiasBlock> high{};
        std::array<float, kBiasBlock> low{};
        for (std::int64_t r = 0; r < dy.rows; ++r) {
            const float* row = dy.row(r) + first;
            for (std::int64_t c = 0; c < count; ++c) add_exactly(row[c], high[c], low[c]);
        }
        for (std::int64_t c = 0; c < count; ++c) d_bias[first + c] += high[c] + low[c];
    });
}

}  // namespace

void matmul_rows_backward_input(MatrixView<const float> dy, MatrixView<const float> weight, MatrixView<float> dx,
                                bool accumulate, int threads) {
    if (dy.rows != dx.rows || dx.cols != weight.cols || dy.cols != weight.rows) {
        throw InternalError(
            fmt::format("matmul_rows_backward_input: dy [{}, {}], weight [{}, {}] and dx [{}, {}] do "
                        "not fit",
                        dy.rows, dy.cols, weight.rows, weight.cols, dx.rows, dx.cols));
    }
    initialise_blas();
    if (dx.rows == 0 || dx.cols == 0) return;
    const std::int64_t width = panel_width(dx.cols, kColumnPanel);
    const std::int64_t panels = (dx.cols + width - 1) / width;
    const std::int64_t tiles = (dx.rows + kRowTile - 1) / kRowTile;
    parallel_tasks(tiles * panels, threads, [&](std::int64_t task, int) {
        const std::int64_t first_row = task / panels * kRowTile;
        const std::int64_t first_col = task % panels * width;
        const std::int64_t rows = std::min(kRowTile, dx.rows - first_row);
        const std::int64_t cols = std::min(width, dx.cols - first_col);
        gemm_nn(rows, cols, dy.cols, 1.0F, dy.row(first_row), dy.stride, weight.data + first_col, weight.stride,
                accumulate ? 1.0F : 0.0F, dx.row(first_row) + first_col, dx.stride);
    });
}

void matmul_rows_backward_weight(MatrixView<const float> dy, MatrixView<const float> x, MatrixView<float> d_weight,
                                 float* d_bias, int threads) {
    if (dy.rows != x.rows || d_weight.rows != dy.cols || d_weight.cols != x.cols) {
        throw InternalError(
            fmt::format("matmul_rows_backward_weight: dy [{}, {}], x [{}, {}] and d_weight [{}, {}] do "
                        "not fit",
                        dy.rows, dy.cols, x.rows, x.cols, d_weight.rows, d_weight.cols));
    }
    initialise_blas();
    if (dy.rows == 0 || dy.cols == 0) return;
    if (d_bias != nullptr) add_bias_gradient(dy, d_bias, threads);
    if (x.cols == 0) return;
    const std::int64_t height = panel_width(d_weight.rows, kWeightRows);
    const std::int64_t width = panel_width(d_weight.cols, kWeightColumns);
    const std::int64_t down = (d_weight.rows + height - 1) / height;
    const std::int64_t across = (d_weight.cols + width - 1) / width;
    parallel_tasks(down * across, threads, [&](std::int64_t task, int) {
        const std::int64_t top = task / across * height;
        const std::int64_t left = task % across * width;
        const std::int64_t n = std::min(height, d_weight.rows - top);
        const std::int64_t k = std::min(width, d_weight.cols - left);
        for (std::int64_t first = 0; first < dy.rows; first += kRowTile) {
            gemm_tn(n, k, std::min(kRowTile, dy.rows - first), 1.0F, dy.row(first) + top, dy.stride,
                    x.row(first) + left, x.stride, 1.0F, d_weight.row(top) + left, d_weight.stride);
        }
    });
}

}  // namespace fenwick
