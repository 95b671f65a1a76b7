// The matrix algebra's combine for many pairs at once, fp32 throughout: a thread block forms 128 x 64 elements of a
// node's [A | S] of one head, 8 x 8 a thread. Every element is the chain that summary.h fixes.
#include "core/cuda/check.h"
#include "kernels/cuda/summary_matrix.h"
#include "kernels/cuda/vanished.cuh"

namespace fenwick::cuda {
namespace {

constexpr int kRows = 128;
constexpr int kColumns = 64;
constexpr int kDepth = 16;
constexpr int kThreads = 128;
constexpr int kPad = 4;
constexpr int kEach = 8;  // rows and columns of a thread

struct Sizes {
    int dk, dv, heads, row_tiles, column_tiles;
};

/// What a thread sees of `rows` rows of `columns` numbers, rows `stride` apart: `see` gets each, four at a time where
/// they lie so.
template <class See>
__device__ __forceinline__ void look_at(const float* from, int rows, int columns, int stride, const See& see) {
    const int tid = static_cast<int>(threadIdx.x);
    if ((columns | stride) % 4 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
        const int pieces = columns / 4;
#pragma unroll 8
        for (int i = tid; i < rows * pieces; i += kThreads) {
            const float4 f = *reinterpret_cast<const float4*>(from + static_cast<std::int64_t>(i / pieces) * stride +
                                                              i % pieces * 4);
            see(f.x);
            see(f.y);
            see(f.z);
            see(f.w);
        }
        return;
    }
    for (int i = tid; i < rows * columns; i += kThreads) {
        see(from[static_cast<std::int64_t>(i / columns) * stride + i % columns]);
    }
}

/// Whether products of A's rows with columns of X count, for the whole thread block. A that has not vanished shows that
/// in its first rows.
__device__ __forceinline__ bool products_count(const float* a, int rows, int dk, const float* x, int x_columns,
                                               int x_stride) {
    constexpr int kFirstRows = 16;
    ProductsSeen seen;
    look_at(a, min(rows, kFirstRows), dk, dk, [&](float each) { seen.see_a(each); });
    if (__syncthreads_or(seen.count() ? 1 : 0) != 0) return true;
    look_at(a, rows, dk, dk, [&](float each) { seen.see_a(each); });
    look_at(x, dk, x_columns, x_stride, [&](float each) { seen.see_x(each); });
    return __syncthreads_or(seen.count() ? 1 : 0) != 0;
}

__global__ void __launch_bounds__(kThreads)
    combine_pairs(const float* left, const float* right, float* out, std::int64_t pair_stride, Sizes sizes) {
    __shared__ float a[kDepth][kRows + kPad];
    __shared__ float x[kDepth][kColumns + kPad];
    const int dk = sizes.dk;
    const std::int64_t head_floats = static_cast<std::int64_t>(dk) * (dk + sizes.dv);
    std::int64_t work = blockIdx.x;
    const int column_tile = static_cast<int>(work % sizes.column_tiles);
    work /= sizes.column_tiles;
    const int first_row = static_cast<int>(work % sizes.row_tiles) * kRows;
    work /= sizes.row_tiles;
    const std::int64_t head = work % sizes.heads * head_floats;
    const std::int64_t pair = work / sizes.heads;
    const int transition_tiles = (dk + kColumns - 1) / kColumns;
    const bool state = column_tile >= transition_tiles;
    const int columns = state ? sizes.dv : dk;
    const int first_column = (state ? column_tile - transition_tiles : column_tile) * kColumns;
    const float* a_r = right + pair * pair_stride + head;
    const std::int64_t part = head + (state ? static_cast<std::int64_t>(dk) * dk : 0);
    const float* x_l = left + pair * pair_stride + part;
    const int tid = static_cast<int>(threadIdx.x);
    const int mine_row = tid / 8 * kEach;
    const int mine_column = tid % 8 * kEach;

    constexpr int kLoadsA = kRows * kDepth / kThreads;
    constexpr int kLoadsX = kColumns * kDepth / kThreads;
    float next_a[kLoadsA];
    float next_x[kLoadsX];
    const auto fetch = [&](int first) {  // into registers, while the last step is being multiplied
#pragma unroll
        for (int e = 0; e < kLoadsA; ++e) {
            const int i = tid + e * kThreads;
            const int row = first_row + i / kDepth;
            const int inner = first + i % kDepth;
            next_a[e] = row < dk && inner < dk ? a_r[static_cast<std::int64_t>(row) * dk + inner] : 0.0F;
        }
#pragma unroll
        for (int e = 0; e < kLoadsX; ++e) {
            const int i = tid + e * kThreads;
            const int inner = first + i / kColumns;
            const int column = first_column + i % kColumns;
            next_x[e] =
                inner < dk && column < columns ? x_l[static_cast<std::int64_t>(inner) * columns + column] : 0.0F;
        }
    };
    float sum[kEach][kEach] = {};
    const bool count = products_count(a_r + static_cast<std::int64_t>(first_row) * dk, min(kRows, dk - first_row), dk,
                                      x_l + first_column, min(kColumns, columns - first_column), columns);
    const int depth_end = count ? dk : 0;
    if (count) fetch(0);
    for (int first = 0; first < depth_end; first += kDepth) {
#pragma unroll
        for (int e = 0; e < kLoadsA; ++e) {
            const int i = tid + e * kThreads;
            a[i % kDepth][i / kDepth] = next_a[e];
        }
#pragma unroll
        for (int e = 0; e < kLoadsX; ++e) {
            const int i = tid + e * kThreads;
            x[i / kColumns][i % kColumns] = next_x[e];
        }
        __syncthreads();
        if (first + kDepth < dk) fetch(first + kDepth);
        const int depth = min(kDepth, dk - first);
#pragma unroll 4
        for (int i = 0; i < depth; ++i) {
            float rows[kEach];
            float values[kEach];
#pragma unroll
            for (int m = 0; m < kEach; m += 4) {
                *reinterpret_cast<float4*>(rows + m) = *reinterpret_cast<const float4*>(&a[i][mine_row + m]);
                *reinterpret_cast<float4*>(values + m) = *reinterpret_cast<const float4*>(&x[i][mine_column + m]);
            }
#pragma unroll
            for (int m = 0; m < kEach; ++m) {
#pragma unroll
                for (int n = 0; n < kEach; ++n) sum[m][n] = fmaf(rows[m], values[n], sum[m][n]);
            }
        }
        __syncthreads();
    }
    const float* s_r = right + pair * pair_stride + part;
    // A node follows the last one; children lie `pair_stride` apart.
    float* to = out + pair * (sizes.heads * head_floats) + part;
#pragma unroll
    for (int m = 0; m < kEach; ++m) {
#pragma unroll
        for (int n = 0; n < kEach; ++n) {
            const int row = first_row + mine_row + m;
            const int column = first_column + mine_column + n;
            if (row >= dk || column >= columns) continue;
            const std::int64_t at = static_cast<std::int64_t>(row) * columns + column;
            to[at] = state ? s_r[at] + sum[m][n] : sum[m][n];
        }
    }
}

int tiles_of(std::int64_t size, int tile) {
    return static_cast<int>((size + tile - 1) / tile);
}

}  // namespace

void combine_matrix_pairs(const MixerShape& shape, const float* left, const float* right, std::int64_t pairs,
                          std::int64_t pair_stride, float* out, cudaStream_t stream) {
    const Sizes sizes{static_cast<int>(shape.key_dim), static_cast<int>(shape.value_dim), static_cast<int>(shape.heads),
                      tiles_of(shape.key_dim, kRows),
                      tiles_of(shape.key_dim, kColumns) + tiles_of(shape.value_dim, kColumns)};
    const std::int64_t blocks = pairs * shape.heads * sizes.row_tiles * sizes.column_tiles;
    if (blocks == 0) return;
    combine_pairs<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(left, right, out, pair_stride, sizes);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
