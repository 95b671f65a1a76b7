// One chunk of the walk for a warp's 16 state columns (DESIGN section 3, "Chunk form"), in the transposed form
//
//     Z^T = (V^T - exp(G) * (X^T K^T)) M^T         O^T = exp(G) * (X^T Q^T) + Z^T P^T
//     X^T = exp(G_C) X^T + (b exp(G_C - G) * Z^T) K
//
// (M and P as in matrix_plan.h), which is the same as W and U without storing them: diag(b) Z = U - W X. Factors of a
// token scale columns.
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

/// Operands of so many steps of 16 state rows make a group of products; while one is multiplied the next is rounded.
inline constexpr int kGroup = 2;

/// X is about to be rounded while products run: without this wait, which never waits, ptxas takes X for unfinished
/// (what earlier products left it with came around the loop) and puts a real one between the groups.
template <int kDk>
__device__ __forceinline__ void settle(Columns<kDk>& x) {
    products_wait<0>();
    keep(x);
}

/// Issues y += X^T B^T for every tile B [64, d_k] (keys or queries) of a list, one group after the other; the last may
/// still run on return. `issue(step, a)` issues the products of one step of 16 state rows, whose operand is `a`.
template <int kDk, class Issue>
__device__ __forceinline__ void issue_reads(Columns<kDk>& x, const Issue& issue) {
    settle<kDk>(x);
    std::uint32_t a[2][kGroup][4];
#pragma unroll
    for (int group = 0; group < kDk / 16 / kGroup; ++group) {
        if (group >= 2) products_wait<1>();  // the group before the last has read its operands
#pragma unroll
        for (int i = 0; i < kGroup; ++i) pack_step(x, group * kGroup + i, a[group % 2][i]);
        products_fence();
#pragma unroll
        for (int i = 0; i < kGroup; ++i) issue(group * kGroup + i, a[group % 2][i]);
        products_commit();
    }
}

/// Nothing to do while products run.
struct Idle {
    __device__ __forceinline__ void operator()() const {}
};

/// y^T [16, 64] = X^T B^T for a tile B [64, d_k] (keys or queries). `meanwhile` is done while the products run.
template <int kDk, class Meanwhile = Idle>
__device__ __forceinline__ void read_state(Columns<kDk>& x, std::uint32_t tile, float (&y)[32],
                                           const Meanwhile& meanwhile = {}) {
    clear(y);
    keep(y);
    issue_reads<kDk>(x, [&](int step, const std::uint32_t(&a)[4]) { product_nt<64>(y, a, tile, step_offset(step)); });
    meanwhile();
    products_wait<0>();
    keep(y);
}
/// The same for keys (into `y`) and, after them, queries (into `o`): on return `y` is there, while `o`'s products, the
/// last group, may still run and read `a`.
template <int kDk, class Meanwhile>
__device__ __forceinline__ void read_state(Columns<kDk>& x, std::uint32_t keys, float (&y)[32], std::uint32_t queries,
                                           float (&o)[32], std::uint32_t (&a)[kDk / 16][4],
                                           const Meanwhile& meanwhile) {
    settle<kDk>(x);
    clear(y);
    clear(o);
    keep(y);
    keep(o);
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        pack_step(x, step, a[step]);
        if (step % 2 == 0) continue;
        products_fence();
        product_nt<64>(y, a[step - 1], keys, step_offset(step - 1));
        product_nt<64>(y, a[step], keys, step_offset(step));
    }
    products_commit();
    products_fence();
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) product_nt<64>(o, a[step], queries, step_offset(step));
    products_commit();
    meanwhile();
    products_wait<1>();
    keep(y);
}
/// The same with X as the sum of two bf16 numbers.
template <int kDk, class Meanwhile>
__device__ __forceinline__ void read_state_split(Columns<kDk>& x, std::uint32_t tile, float (&y)[32],
                                                 const Meanwhile& meanwhile) {
    settle<kDk>(x);
    clear(y);
    keep(y);
    std::uint32_t a[2][kGroup][4];
    std::uint32_t rest[2][kGroup][4];
#pragma unroll
    for (int group = 0; group < kDk / 16 / kGroup; ++group) {
        if (group >= 2) products_wait<1>();
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            pack_step(x, group * kGroup + i, a[group % 2][i]);
            pack_rest(x, group * kGroup + i, a[group % 2][i], rest[group % 2][i]);
        }
        products_fence();
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            product_nt<64>(y, rest[group % 2][i], tile, step_offset(group * kGroup + i));
            product_nt<64>(y, a[group % 2][i], tile, step_offset(group * kGroup + i));
        }
        products_commit();
    }
    meanwhile();
    products_wait<0>();
    keep(y);
}

/// u += r L^T for a lower triangular tile [64, 64] (M or P), inside a group of products.
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
/// The same of factor[token] * c; `factor` in shared memory.
__device__ __forceinline__ void pack_tokens(const float (&c)[32], const float* factor, std::uint32_t (&a)[4][4]) {
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = *reinterpret_cast<const float2*>(factor + 16 * step + 8 * (i / 2) + pair);
            a[step][i] = pack(c[8 * step + 2 * i] * f.x, c[8 * step + 2 * i + 1] * f.y);
        }
    }
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

template <int kDk>
__device__ __forceinline__ void scale_state(Columns<kDk>& x, float keep) {
#pragma unroll
    for (float& value : x) value *= keep;
}
/// X^T += u K, u [16, 64] as an operand, inside a group of products.
template <int kDk>
__device__ __forceinline__ void add_to_state(Columns<kDk>& x, const std::uint32_t (&u)[4][4], std::uint32_t keys) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        product_nn<kDk>(x, u[step], keys, step * 16 * 128, kPanelBytes);
    }
}
/// X^T = keep * X^T + u K.
template <int kDk>
__device__ __forceinline__ void write_state(Columns<kDk>& x, float keep, const std::uint32_t (&u)[4][4],
                                            std::uint32_t keys) {
    scale_state<kDk>(x, keep);
    products_begin(x);
    add_to_state<kDk>(x, u, keys);
    products_end(x);
}

/// One chunk of a state alone. `values`: the panel of V, of which the warp's 16 columns are taken; `decays`:
/// Prepared::decays; `see_values` gets Z^T while the last products run, `meanwhile` is done while the first do.
template <int kDk, class Meanwhile, class SeeValues>
__device__ __forceinline__ void step_state(Columns<kDk>& x, std::uint32_t keys, std::uint32_t values,
                                           std::uint32_t triangle, const float* decays, int warp,
                                           const Meanwhile& meanwhile, const SeeValues& see_values) {
    float y[32];
    read_state<kDk>(x, keys, y, meanwhile);
    scale_tokens(y, decays);
    subtract_from_values(y, values, static_cast<std::uint32_t>(32 * warp));
    std::uint32_t a[4][4];
    pack_tokens(y, a);
    clear(y);
    products_begin(y);
    add_triangle(a, triangle, y);
    products_commit();
    scale_state<kDk>(x, decays[kC - 1]);
    products_wait<0>();
    keep(y);
    pack_tokens(y, decays + kC, a);
    products_begin(x);
    add_to_state<kDk>(x, a, keys);
    products_commit();
    see_values(y);
    products_wait<0>();
    keep(x);
}
template <int kDk, class Meanwhile>
__device__ __forceinline__ void step_state(Columns<kDk>& x, std::uint32_t keys, std::uint32_t values,
                                           std::uint32_t triangle, const float* decays, int warp,
                                           const Meanwhile& meanwhile) {
    step_state<kDk>(x, keys, values, triangle, decays, warp, meanwhile, [](const float(&)[32]) {});
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
