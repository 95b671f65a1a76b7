// Logits of a few blocks of rows by one tile of the vocabulary, and what is kept of them: shared by the loss and its
// gradient.
#pragma once

#include "kernels/cuda/cross_entropy.h"

namespace fenwick::cuda {

/// What has been seen of one row's logits.
struct RunningSum {
    double sum;  // of exp(logit - maximum)
    float maximum;
    float target;
};

/// Columns of a tile: even tiles, so that no sliver is left.
[[nodiscard]] std::int64_t vocab_tile_width(std::int64_t vocab);

/// Rows [row, row + rows) of the call by columns [first, first + count) of the vocabulary; logits [rows, width] fp32.
struct LogitsTile {
    std::int64_t row = 0;
    std::int64_t rows = 0;  ///< at most kLossRows
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t width = 0;
    float* logits = nullptr;
};

void form_logits(const CrossEntropyCall& call, const LogitsTile& tile, Matmul& matmul, void* matmul_workspace,
                 cudaStream_t stream);

/// Adds the tile's logits to running[0, rows); the last tile of the vocabulary writes the losses, 0 where a target is
/// negative.
void add_logits(const CrossEntropyCall& call, const LogitsTile& tile, RunningSum* running, cudaStream_t stream);

}  // namespace fenwick::cuda
