// Sums over many rows, one set for each column: what the gradients of a layer's small parameters are.
//
// Rows are cut into slices that follow from their number alone; a block sums a slice, each sum kept as a pair as
// kernels/cpu/backward/column_sums.h does; a second kernel adds the slices in order. No atomics: the same bits in
// every run.
#pragma once

#include <algorithm>

#include "kernels/cuda/operand.h"

namespace fenwick::cuda {

inline constexpr int kSumColumns = 32;  // threads of a block along the columns
inline constexpr int kSumRows = 8;      // and along the rows
inline constexpr std::int64_t kMaxSlices = 256;
inline constexpr std::int64_t kLeastSliceRows = 64;

[[nodiscard]] constexpr std::int64_t slices_of(std::int64_t rows) {
    return std::min(kMaxSlices, (rows + kLeastSliceRows - 1) / kLeastSliceRows);
}

/// Bytes of workspace for sums of `columns` columns (all sums of all columns), whatever the rows; 256-byte aligned.
[[nodiscard]] constexpr std::size_t column_sums_bytes(std::int64_t columns) {
    return static_cast<std::size_t>((kMaxSlices * columns * 8 + 255) / 256 * 256);
}

/// Adds `term` to the sum (x, y): the sum and what its roundings lost.
__device__ inline void add_exactly(float term, float2& sum) {
    const float high = __fadd_rn(sum.x, term);
    const float added = __fadd_rn(high, -sum.x);
    const float lost = __fadd_rn(sum.y, __fadd_rn(__fadd_rn(sum.x, -__fadd_rn(high, -added)), __fadd_rn(term, -added)));
    sum.x = __fadd_rn(high, lost);
    sum.y = __fadd_rn(lost, -__fadd_rn(sum.x, -high));
}

/// A block's pairs of its row threads, added in order; the sum in the threads of row 0. `scratch`
/// [kSumRows][kSumColumns].
__device__ inline float2 add_row_threads(float2 sum, float2 (*scratch)[kSumColumns]) {
    __syncthreads();
    scratch[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0) return sum;
    for (int y = 1; y < kSumRows; ++y) {
        add_exactly(scratch[y][threadIdx.x].x, sum);
        sum.y += scratch[y][threadIdx.x].y;
    }
    return sum;
}

/// term(row, item, float[kSums]) sets the terms of the kSums sums of one item; partial [slices][items * kSums].
template <int kSums, class Term>
__global__ void column_sums_kernel(Term term, std::int64_t rows, std::int64_t slice_rows, std::int64_t items,
                                   float2* partial) {
    __shared__ float2 scratch[kSumRows][kSumColumns];
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
    const std::int64_t first = blockIdx.y * slice_rows;
    const std::int64_t last = min(first + slice_rows, rows);
    float2 sums[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) sums[s] = make_float2(0.0F, 0.0F);
    if (item < items) {
        for (std::int64_t row = first + threadIdx.y; row < last; row += kSumRows) {
            float terms[kSums];
            term(row, item, terms);
#pragma unroll
            for (int s = 0; s < kSums; ++s) add_exactly(terms[s], sums[s]);
        }
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
        const float2 sum = add_row_threads(sums[s], scratch);
        if (threadIdx.y == 0 && item < items) partial[(blockIdx.y * items + item) * kSums + s] = sum;
    }
}

/// Where sums go: out[j] += the sum of column first + j / inner * stride + j % inner, for j < count; with `group` > 1
/// of that column's `group` neighbours, which it is the first of: columns count by groups.
struct SumTarget {
    float* out = nullptr;
    std::int64_t count = 0;
    std::int64_t first = 0;
    std::int64_t inner = 1;
    std::int64_t stride = 1;
    std::int64_t group = 1;
};

template <int kNone = 0>
__global__ void add_slices_kernel(const float2* partial, std::int64_t slices, std::int64_t columns, SumTarget target) {
    __shared__ float2 scratch[kSumRows][kSumColumns];
    const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
    float2 sum = make_float2(0.0F, 0.0F);
    if (j < target.count) {
        const std::int64_t column = (target.first + j / target.inner * target.stride + j % target.inner) * target.group;
        for (std::int64_t s = threadIdx.y; s < slices; s += kSumRows) {
            for (std::int64_t g = 0; g < target.group; ++g) {
                const float2 part = partial[s * columns + column + g];
                add_exactly(part.x, sum);
                sum.y += part.y;
            }
        }
    }
    sum = add_row_threads(sum, scratch);
    if (threadIdx.y == 0 && j < target.count) target.out[j] += sum.x + sum.y;
}

/// Sums kSums * items columns over `rows` rows into `partial` (column_sums_bytes of workspace).
template <int kSums, class Term>
void sum_columns(const Term& term, std::int64_t rows, std::int64_t items, void* partial, cudaStream_t stream) {
    if (rows == 0 || items == 0) return;
    const std::int64_t slices = slices_of(rows);
    const std::int64_t slice_rows = (rows + slices - 1) / slices;
    const dim3 blocks(static_cast<unsigned>((items + kSumColumns - 1) / kSumColumns), static_cast<unsigned>(slices));
    column_sums_kernel<kSums, Term><<<blocks, dim3(kSumColumns, kSumRows), 0, stream>>>(term, rows, slice_rows, items,
                                                                                        static_cast<float2*>(partial));
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

/// Adds what sum_columns left for `columns` columns to a target.
inline void add_sums(const void* partial, std::int64_t rows, std::int64_t columns, const SumTarget& target,
                     cudaStream_t stream) {
    if (rows == 0 || target.count == 0) return;
    add_slices_kernel<0>
        <<<static_cast<unsigned>((target.count + kSumColumns - 1) / kSumColumns), dim3(kSumColumns, kSumRows), 0,
           stream>>>(static_cast<const float2*>(partial), slices_of(rows), columns, target);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
