// Two sums over each group of neighbouring channels of each row: what the gradient of a norm needs before any of its
// elements can be formed. A warp takes a small group, a block a large one: a function of the group's size alone.
#pragma once

#include "kernels/cuda/operand.h"

namespace fenwick::cuda {

inline constexpr std::int64_t kWideMoments = 1024;  // channels from which on a group takes a block
inline constexpr int kMomentWarps = 8;
inline constexpr int kMomentThreads = 256;

/// source.add(row, channel, squares, dot) adds the kCount channels from `channel` on to the two sums;
/// moments[row * groups + group] = (squares, dot).
template <int kCount, bool kWide, class Source>
__global__ void row_moments_kernel(Source source, std::int64_t rows, int groups, int size, float2* moments) {
    __shared__ float scratch[2][32];
    const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * (kWide ? 1 : kMomentWarps) + threadIdx.y;
    if (task >= rows * groups) return;  // whole warps, and only where nobody waits for them
    const std::int64_t row = task / groups;
    const int first = static_cast<int>(task % groups) * size;
    const int step = static_cast<int>(blockDim.x) * kCount;
    float squares = 0.0F;
    float dot = 0.0F;
    for (int c = static_cast<int>(threadIdx.x) * kCount; c < size; c += step) source.add(row, first + c, squares, dot);
    if constexpr (kWide) {
        squares = block_sum(squares, scratch[0]);
        dot = block_sum(dot, scratch[1]);
    } else {
        for (int offset = 16; offset > 0; offset /= 2) {
            squares += __shfl_xor_sync(0xFFFFFFFFU, squares, offset);
            dot += __shfl_xor_sync(0xFFFFFFFFU, dot, offset);
        }
    }
    if (threadIdx.x == 0) moments[task] = make_float2(squares, dot);
}

/// `source` reads kCount channels at a time, which divides `size`.
template <int kCount, class Source>
void row_moments(const Source& source, std::int64_t rows, std::int64_t groups, std::int64_t size, float2* moments,
                 cudaStream_t stream) {
    const std::int64_t tasks = rows * groups;
    if (tasks == 0) return;
    if (size >= kWideMoments) {
        row_moments_kernel<kCount, true, Source><<<static_cast<unsigned>(tasks), dim3(kMomentThreads, 1), 0, stream>>>(
            source, rows, static_cast<int>(groups), static_cast<int>(size), moments);
    } else {
        const auto blocks = static_cast<unsigned>((tasks + kMomentWarps - 1) / kMomentWarps);
        row_moments_kernel<kCount, false, Source><<<blocks, dim3(32, kMomentWarps), 0, stream>>>(
            source, rows, static_cast<int>(groups), static_cast<int>(size), moments);
    }
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

/// Bytes of workspace for the moments of `rows` rows of `groups` groups; 256-byte aligned.
[[nodiscard]] constexpr std::size_t row_moments_bytes(std::int64_t rows, std::int64_t groups) {
    return static_cast<std::size_t>((rows * groups * 8 + 255) / 256 * 256);
}

/// element(row, channel) for every kCount channels of every row.
template <int kCount, class Element>
__global__ void row_elements_kernel(Element element, std::int64_t columns) {
    const auto step = static_cast<std::int64_t>(blockDim.x) * kCount;
    for (std::int64_t c = static_cast<std::int64_t>(threadIdx.x) * kCount; c < columns; c += step) {
        element(static_cast<std::int64_t>(blockIdx.x), c);
    }
}

template <int kCount, class Element>
void for_row_elements(const Element& element, std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    row_elements_kernel<kCount, Element><<<static_cast<unsigned>(rows), 128, 0, stream>>>(element, columns);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
