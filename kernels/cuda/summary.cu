#include "core/cuda/check.h"
#include "kernels/cuda/summary.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kTileRows = 8;  // rows of threads: each computes kTile / kTileRows elements of a column

/// transition: 1 (scalar) or d_k (diagonal). One thread for each element of a head's (A, S), `parts` thread blocks a
/// head.
__global__ void combine_decays(const float* left, const float* right, float* out, std::int64_t transition,
                               std::int64_t value_dim, std::int64_t head_floats, unsigned parts) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (i >= head_floats) return;
    const std::int64_t head = blockIdx.x / parts * head_floats;
    if (i < transition) {
        out[head + i] = right[head + i] + left[head + i];
        return;
    }
    const std::int64_t row = transition == 1 ? 0 : (i - transition) / value_dim;
    const float decay = expf(fmaxf(right[head + row], -1000.0F));
    out[head + i] = fmaf(decay, left[head + i], right[head + i]);
}

/// X = A_r X_l for X = A_l and X = S_l (plus S_r): thread blocks by head, A or S, tile of rows, tile of columns.
__global__ void combine_matrices(const float* left, const float* right, float* out, std::int64_t key_dim,
                                 std::int64_t value_dim, unsigned row_tiles, unsigned column_tiles) {
    __shared__ float a[kTile][kTile + 1];
    __shared__ float x[kTile][kTile + 1];
    const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x % column_tiles) * kTile;
    const unsigned work = blockIdx.x / column_tiles;
    const std::int64_t first_row = static_cast<std::int64_t>(work % row_tiles) * kTile;
    const bool state = work / row_tiles % 2 == 1;
    const std::int64_t columns = state ? value_dim : key_dim;
    const std::int64_t column = first_column + threadIdx.x;
    if (first_column >= columns) return;
    const std::int64_t head = work / row_tiles / 2 * (key_dim * key_dim + key_dim * value_dim);
    const std::int64_t part = head + (state ? key_dim * key_dim : 0);
    float sums[kTile / kTileRows] = {};
    for (std::int64_t k = 0; k < key_dim; k += kTile) {
        for (int r = threadIdx.y; r < kTile; r += kTileRows) {
            const std::int64_t a_row = first_row + r;
            const std::int64_t a_column = k + threadIdx.x;
            a[r][threadIdx.x] = a_row < key_dim && a_column < key_dim ? right[head + a_row * key_dim + a_column] : 0.0F;
            x[r][threadIdx.x] = k + r < key_dim && column < columns ? left[part + (k + r) * columns + column] : 0.0F;
        }
        __syncthreads();
        const int depth = static_cast<int>(min(static_cast<std::int64_t>(kTile), key_dim - k));
        for (int i = 0; i < depth; ++i) {
#pragma unroll
            for (int j = 0; j < kTile / kTileRows; ++j) {
                sums[j] = fmaf(a[threadIdx.y + j * kTileRows][i], x[i][threadIdx.x], sums[j]);
            }
        }
        __syncthreads();
    }
    if (column >= columns) return;
#pragma unroll
    for (int j = 0; j < kTile / kTileRows; ++j) {
        const std::int64_t row = first_row + threadIdx.y + j * kTileRows;
        if (row >= key_dim) continue;
        const std::int64_t at = part + row * columns + column;
        out[at] = state ? right[at] + sums[j] : sums[j];
    }
}

unsigned tiles(std::int64_t size) {
    return static_cast<unsigned>((size + kTile - 1) / kTile);
}

}  // namespace

void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out,
                       cudaStream_t stream) {
    const auto heads = static_cast<unsigned>(shape.heads);
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        const unsigned row_tiles = tiles(shape.key_dim);
        const unsigned column_tiles = tiles(shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim);
        combine_matrices<<<2 * heads * row_tiles * column_tiles, dim3(kTile, kTileRows), 0, stream>>>(
            left, right, out, shape.key_dim, shape.value_dim, row_tiles, column_tiles);
    } else {
        const std::int64_t head_floats = transition_floats(shape) + state_floats(shape);
        const auto parts = static_cast<unsigned>((head_floats + kThreads - 1) / kThreads);
        combine_decays<<<heads * parts, kThreads, 0, stream>>>(left, right, out, transition_floats(shape),
                                                               shape.value_dim, head_floats, parts);
    }
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
