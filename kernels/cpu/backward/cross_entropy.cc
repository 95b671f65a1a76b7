#include "kernels/backward/cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/backward/matmul.h"
#include "kernels/cpu/padded_tile.h"
#include "kernels/cpu/running_sum.h"
#include "kernels/cross_entropy.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

constexpr std::int64_t kChunkRows = 8 * kRowTile;  // rows whose logits of one panel are held at a time

/// What a row's gradient needs: d logit = exp(logit - maximum) * factor, less `scale` at the target.
struct RowScale {
    float maximum;
    float factor;
};

/// Rows that are worked on together, one tile of kRowTile rows a task. Logits lie as [kChunkRows, width].
struct Chunk {
    MatrixView<const float> h;
    MatrixView<const float> lm_head;
    const std::int32_t* targets;
    const CrossEntropyOptions& options;
    float* nll;
    MatrixView<float> padded_tail;  // [kRowTile, hidden]
    float* logits;
    float* row_scales;   // [kChunkRows, 2]
    std::int64_t width;  // of a vocabulary panel

    [[nodiscard]] std::int64_t tile_rows(std::int64_t tile) const {
        return std::min(kRowTile, h.rows - tile * kRowTile);
    }
    [[nodiscard]] float* logits_row(std::int64_t r) const { return logits + r * width; }

    void form_logits(std::int64_t tile, std::int64_t first, std::int64_t count) const {
        const bool whole = tile_rows(tile) == kRowTile;
        const MatrixView<const float> in =
            whole ? h.row_range(tile * kRowTile, kRowTile) : MatrixView<const float>(padded_tail);
        gemm_nt(kRowTile, count, h.cols, 1.0F, in.data, in.stride, lm_head.row(first), lm_head.stride, 0.0F,
                logits_row(tile * kRowTile), width);
    }

    /// Losses and scales of a tile's rows. The logits of the last panel stay.
    void form_losses(std::int64_t tile) const {
        const std::int64_t rows = tile_rows(tile);
        const std::int64_t first_row = tile * kRowTile;
        if (rows < kRowTile) copy_padded(h.row_range(first_row, rows), padded_tail);
        std::array<RunningSum, kRowTile> running;
        for (std::int64_t first = 0; first < lm_head.rows; first += width) {
            const std::int64_t count = std::min(width, lm_head.rows - first);
            form_logits(tile, first, count);
            for (std::int64_t r = 0; r < rows; ++r) {
                const float* row = logits_row(first_row + r);
                add_panel(row, count, running[r]);
                const std::int64_t target = targets[first_row + r] - first;
                if (target >= 0 && target < count) running[r].target = row[target];
            }
        }
        for (std::int64_t r = 0; r < rows; ++r) {
            const bool scored = targets[first_row + r] != kNoTarget;
            const double log_sum = running[r].log_sum();
            nll[first_row + r] = scored ? static_cast<float>(log_sum - static_cast<double>(running[r].target)) : 0.0F;
            const double outer =
                static_cast<double>(options.scale) * (1.0 + 2.0 * static_cast<double>(options.z_loss) * log_sum);
            float* scales = row_scales + 2 * (first_row + r);
            scales[0] = running[r].maximum;
            scales[1] = static_cast<float>(outer / running[r].sum);
        }
    }

    /// Logits of a panel become their gradients.
    void form_gradients(std::int64_t tile, std::int64_t first, std::int64_t count) const {
        for (std::int64_t r = tile * kRowTile; r < tile * kRowTile + tile_rows(tile); ++r) {
            float* row = logits_row(r);
            if (targets[r] == kNoTarget) {
                std::fill_n(row, count, 0.0F);
                continue;
            }
            const float maximum = row_scales[2 * r];
            const float factor = row_scales[2 * r + 1];
            for (std::int64_t c = 0; c < count; ++c) row[c] = vexp(row[c] - maximum) * factor;
            const std::int64_t target = targets[r] - first;
            if (target >= 0 && target < count) row[target] -= options.scale;
        }
    }
};

void require_shapes(MatrixView<const float> h, MatrixView<const float> lm_head, const std::int32_t* targets,
                    MatrixView<const float> d_h, MatrixView<const float> d_lm_head) {
    if (h.cols != lm_head.cols || lm_head.rows <= 0 || d_h.rows != h.rows || d_h.cols != h.cols ||
        d_lm_head.rows != lm_head.rows || d_lm_head.cols != lm_head.cols) {
        throw InternalError(fmt::format(
            "cross_entropy_with_gradient: rows [{}, {}], lm_head [{}, {}] and gradients [{}, {}], [{}, {}] do not fit",
            h.rows, h.cols, lm_head.rows, lm_head.cols, d_h.rows, d_h.cols, d_lm_head.rows, d_lm_head.cols));
    }
    for (std::int64_t t = 0; t < h.rows; ++t) {
        if (targets[t] != kNoTarget && (targets[t] < 0 || targets[t] >= lm_head.rows)) {
            throw InternalError(fmt::format("cross_entropy_with_gradient: target {} at row {} is outside [0, {})",
                                            targets[t], t, lm_head.rows));
        }
    }
}

}  // namespace

std::int64_t cross_entropy_backward_workspace_floats(std::int64_t rows, std::int64_t hidden, std::int64_t vocab,
                                                     int /*threads*/) {
    const std::int64_t held = std::min(kChunkRows, (rows + kRowTile - 1) / kRowTile * kRowTile);
    return kRowTile * hidden + held * (panel_width(vocab, kVocabPanel) + 2);
}

void cross_entropy_with_gradient(MatrixView<const float> h, MatrixView<const float> lm_head,
                                 const std::int32_t* targets, const CrossEntropyOptions& options, float* nll,
                                 MatrixView<float> d_h, MatrixView<float> d_lm_head, int threads, float* workspace) {
    require_shapes(h, lm_head, targets, d_h, d_lm_head);
    initialise_blas();
    const std::int64_t width = panel_width(lm_head.rows, kVocabPanel);
    const std::int64_t held = std::min(kChunkRows, (h.rows + kRowTile - 1) / kRowTile * kRowTile);
    for (std::int64_t first_row = 0; first_row < h.rows; first_row += kChunkRows) {
        const std::int64_t rows = std::min(kChunkRows, h.rows - first_row);
        const std::int64_t tiles = (rows + kRowTile - 1) / kRowTile;
        float* logits = workspace + kRowTile * h.cols;
        const Chunk chunk{h.row_range(first_row, rows),  lm_head, targets + first_row,   options, nll + first_row,
                          {workspace, kRowTile, h.cols}, logits,  logits + held * width, width};
        parallel_tasks(tiles, threads, [&](std::int64_t tile, int) { chunk.form_losses(tile); });
        // From the last panel, whose logits are still there, to the first.
        const std::int64_t last = (lm_head.rows - 1) / width * width;
        for (std::int64_t first = last; first >= 0; first -= width) {
            const std::int64_t count = std::min(width, lm_head.rows - first);
            parallel_tasks(tiles, threads, [&](std::int64_t tile, int) {
                if (first != last) chunk.form_logits(tile, first, count);
                chunk.form_gradients(tile, first, count);
            });
            const MatrixView<const float> d_logits(logits, rows, count, width);
            matmul_rows_backward_input(d_logits, lm_head.row_range(first, count), d_h.row_range(first_row, rows),
                                       first != last, threads);
            matmul_rows_backward_weight(d_logits, chunk.h, d_lm_head.row_range(first, count), nullptr, threads);
        }
    }
}

}  // namespace fenwick
