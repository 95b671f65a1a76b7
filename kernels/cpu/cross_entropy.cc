#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/errors.h"
#include "kernels/cpu/padded_tile.h"
#include "kernels/cpu/running_sum.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

void require_shapes(MatrixView<const float> h, MatrixView<const float> lm_head) {
    if (h.cols == lm_head.cols && lm_head.rows > 0) return;
    throw InternalError(fmt::format("cross_entropy: rows [{}, {}] and lm_head [{}, {}] do not fit", h.rows, h.cols,
                                    lm_head.rows, lm_head.cols));
}

/// Losses of one tile: `in` has kRowTile rows, of which `rows` count.
void tile_losses(MatrixView<const float> in, std::int64_t rows, MatrixView<const float> lm_head,
                 const std::int32_t* targets, float* nll, std::uint8_t* most_likely, float* logits) {
    const std::int64_t width = panel_width(lm_head.rows, kVocabPanel);
    std::array<RunningSum, kRowTile> running;
    for (std::int64_t first = 0; first < lm_head.rows; first += width) {
        const std::int64_t count = std::min(width, lm_head.rows - first);
        gemm_nt(kRowTile, count, in.cols, 1.0F, in.data, in.stride, lm_head.row(first), lm_head.stride, 0.0F, logits,
                width);
        for (std::int64_t r = 0; r < rows; ++r) {
            const float* row = logits + r * width;
            add_panel(row, count, running[r]);
            const std::int64_t target = targets[r] - first;
            if (target >= 0 && target < count) running[r].target = row[target];
        }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        nll[r] = static_cast<float>(running[r].log_sum() - static_cast<double>(running[r].target));
        if (most_likely != nullptr) most_likely[r] = running[r].target >= running[r].maximum && !std::isnan(nll[r]);
    }
}

}  // namespace

void cross_entropy(MatrixView<const float> h, MatrixView<const float> lm_head, const std::int32_t* targets, float* nll,
                   int threads, float* workspace, std::uint8_t* most_likely) {
    require_shapes(h, lm_head);
    for (std::int64_t t = 0; t < h.rows; ++t) {
        if (targets[t] < 0 || targets[t] >= lm_head.rows) {
            throw InternalError(
                fmt::format("cross_entropy: target {} at row {} is outside [0, {})", targets[t], t, lm_head.rows));
        }
    }
    initialise_blas();
    const MatrixView<float> tail(workspace, kRowTile, h.cols);
    float* logits = workspace + kRowTile * h.cols;
    const std::int64_t tiles = (h.rows + kRowTile - 1) / kRowTile;
    parallel_tasks(tiles, threads, [&](std::int64_t tile, int thread) {
        const std::int64_t first = tile * kRowTile;
        const std::int64_t rows = std::min(kRowTile, h.rows - first);
        MatrixView<const float> in = h.row_range(first, rows);
        if (rows < kRowTile) {
            copy_padded(in, tail);
            in = tail;
        }
        tile_losses(in, rows, lm_head, targets + first, nll + first,
                    most_likely == nullptr ? nullptr : most_likely + first, logits + thread * kRowTile * kVocabPanel);
    });
}

void logits_rows(MatrixView<const float> h, MatrixView<const float> lm_head, const std::int64_t* row_ids,
                 std::int64_t count, MatrixView<float> logits, int threads, float* workspace) {
    require_shapes(h, lm_head);
    if (logits.rows != count || logits.cols != lm_head.rows) {
        throw InternalError(fmt::format("logits_rows: logits [{}, {}], but {} rows of {} are asked for", logits.rows,
                                        logits.cols, count, lm_head.rows));
    }
    const MatrixView<float> gathered(workspace, kRowTile, h.cols);
    for (std::int64_t first = 0; first < count; first += kRowTile) {
        const std::int64_t rows = std::min(kRowTile, count - first);
        for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t source = row_ids[first + r];
            if (source < 0 || source >= h.rows) {
                throw InternalError(fmt::format("logits_rows: row {} is outside [0, {})", source, h.rows));
            }
            std::copy_n(h.row(source), h.cols, gathered.row(r));
        }
        matmul_rows(gathered.row_range(0, rows), lm_head, logits.row_range(first, rows), nullptr, false, threads,
                    workspace + kRowTile * h.cols);
    }
}

}  // namespace fenwick
