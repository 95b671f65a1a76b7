// One chunk of the walk for a warp's 16 state columns (DESIGN section 3, "Chunk form"), in the transposed form
//
//     U'^T = (V^T - exp(G) * (X^T K^T)) T^T        O^T = exp(G) * (X^T Q^T) + U'^T P^T        P = (Q K^T) * D
//     X^T  = exp(G_C) X^T + (exp(G_C - G) * U'^T) K
//
// which is the same as W and U without storing them: T (V - exp(G) K X) = U - W X. Factors of a token scale columns.
#pragma once

#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::matrix {

/// X^T of 16 columns: d_k / 2 accumulators a lane.
template <int kDk>
using Columns = float[kDk / 2];

/// Bytes from a tile's start to its columns [16 step, 16 step + 16).
__device__ __forceinline__ constexpr int step_offset(int step) {
    return (step / 4) * kPanelBytes + (step % 4) * 32;
}

/// y^T [16, 64] = X^T M^T for a tile M [64, d_k] (keys or queries). Products are issued kGroup steps at a time: the
/// operands of a group are registers.
template <int kDk, int kGroup>
__device__ __forceinline__ void read_state(const Columns<kDk>& x, std::uint32_t tile, float (&y)[32]) {
    clear(y);
#pragma unroll
    for (int first = 0; first < kDk / 16; first += kGroup) {
        std::uint32_t a[kGroup][4];
#pragma unroll
        for (int step = 0; step < kGroup; ++step) pack_step(x, first + step, a[step]);
        products_begin(y);
#pragma unroll
        for (int step = 0; step < kGroup; ++step) product_nt<64>(y, a[step], tile, step_offset(first + step));
        products_end(y);
    }
}
/// The same with X as the sum of two bf16 numbers.
template <int kDk, int kGroup>
__device__ __forceinline__ void read_state_split(const Columns<kDk>& x, std::uint32_t tile, float (&y)[32]) {
    clear(y);
#pragma unroll
    for (int first = 0; first < kDk / 16; first += kGroup) {
        std::uint32_t a[kGroup][4];
        std::uint32_t rest[kGroup][4];
#pragma unroll
        for (int step = 0; step < kGroup; ++step) {
            pack_step(x, first + step, a[step]);
            pack_rest(x, first + step, a[step], rest[step]);
        }
        products_begin(y);
#pragma unroll
        for (int step = 0; step < kGroup; ++step) {
            product_nt<64>(y, rest[step], tile, step_offset(first + step));
            product_nt<64>(y, a[step], tile, step_offset(first + step));
        }
        products_end(y);
    }
}

/// u += r M^T for a lower triangular tile M [64, 64] (T or P), inside a group of products.
__device__ __forceinline__ void add_triangle(const std::uint32_t (&r)[4][4], std::uint32_t tile, float (&u)[32]) {
#pragma unroll
    for (int step = 0; step < 4; ++step) product_nt<64>(u, r[step], tile, 32 * step);
}

/// c[., token] *= factor[token]; `factor` in shared memory.
__device__ __forceinline__ void scale_tokens(float (&c)[32], const float* factor) {
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float2 f = *reinterpret_cast<const float2*>(factor + 8 * n + pair);
        c[4 * n] *= f.x;
        c[4 * n + 1] *= f.y;
        c[4 * n + 2] *= f.x;
        c[4 * n + 3] *= f.y;
    }
}

__device__ __forceinline__ void pack_tokens(const float (&c)[32], std::uint32_t (&a)[4][4]) {
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_step(c, step, a[step]);
}

/// r = V^T - r for the 16 columns that start at byte `column_bytes` of the panel of V.
__device__ __forceinline__ void subtract_from_values(float (&r)[32], std::uint32_t values, std::uint32_t column_bytes) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        std::uint32_t v[4];
        load_a_transposed(v, values, 16 * step, column_bytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r[8 * step + 2 * i] = low_of(v[i]) - r[8 * step + 2 * i];
            r[8 * step + 2 * i + 1] = high_of(v[i]) - r[8 * step + 2 * i + 1];
        }
    }
}

__device__ __forceinline__ void negate(float (&r)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) r[i] = -r[i];
}

/// X^T = keep * X^T + u K, u [16, 64] as an operand.
template <int kDk>
__device__ __forceinline__ void write_state(Columns<kDk>& x, float keep, const std::uint32_t (&u)[4][4],
                                            std::uint32_t keys) {
#pragma unroll
    for (float& value : x) value *= keep;
    products_begin(x);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        product_nn<kDk>(x, u[step], keys, step * 16 * 128, kPanelBytes);
    }
    products_end(x);
}

/// State columns [first, first + 16) of `from` [d_k][stride] into X^T; columns from `columns` on become zero.
template <int kDk>
__device__ __forceinline__ void load_columns(Columns<kDk>& x, const float* from, int stride, int first, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kDk / 2; ++i) {
        const int column = first + lane / 4 + (i % 4 / 2) * 8;
        const int row = (i / 4) * 8 + 2 * (lane % 4) + i % 2;
        x[i] = column < columns ? from[row * stride + column] : 0.0F;
    }
}
template <int kDk>
__device__ __forceinline__ void store_columns(const Columns<kDk>& x, float* to, int stride, int first, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kDk / 2; ++i) {
        const int column = first + lane / 4 + (i % 4 / 2) * 8;
        const int row = (i / 4) * 8 + 2 * (lane % 4) + i % 2;
        if (column < columns) to[row * stride + column] = x[i];
    }
}

}  // namespace fenwick::cuda::matrix
