// The products of matrices that combine's and carry's gradients are made of, for matrix transitions: 64 x 64 elements a
// thread block, 4 x 4 a thread, fp32 throughout, each element one chain in the order of the inner index.
#pragma once

#include "kernels/cuda/backward/combine.cuh"
#include "kernels/cuda/vanished.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kProductTile = 64;
inline constexpr int kProductThreads = 256;

[[nodiscard]] inline unsigned product_tiles(std::int64_t rows, std::int64_t columns) {
    return static_cast<unsigned>((rows + kProductTile - 1) / kProductTile *
                                 ((columns + kProductTile - 1) / kProductTile));
}
/// Thread blocks for a head's S, and for its A.
[[nodiscard]] inline unsigned state_tiles(const HeadSizes& sizes) {
    return product_tiles(sizes.dk, sizes.dv);
}
[[nodiscard]] inline unsigned transition_tiles(const HeadSizes& sizes) {
    return product_tiles(sizes.dk, sizes.dk);
}

#if defined(__CUDACC__)

/// One thread block's elements of a matrix [rows, columns].
class ProductTile {
public:
    __device__ ProductTile(unsigned tile, int rows, int columns)
        : rows_(rows),
          columns_(columns),
          first_row_(static_cast<int>(tile) / tiles(columns) * kProductTile),
          first_column_(static_cast<int>(tile) % tiles(columns) * kProductTile) {}

    /// += L R over `depth`: L [rows, depth], or given as its transpose [depth, rows]; R [depth, columns], or as its
    /// transpose [columns, depth]; all without gaps. Steps of the depth at which L has vanished are passed over. All
    /// threads.
    template <bool kLeftTransposed, bool kRightTransposed>
    __device__ void add(const float* left, const float* right, int depth) {
        constexpr int kStep = 32;
        constexpr int kEach = kProductTile * kStep / kProductThreads;
        alignas(16) __shared__ float l[kStep][kProductTile + 4];
        alignas(16) __shared__ float r[kStep][kProductTile + 4];
        const int t = static_cast<int>(threadIdx.x);
        for (int first = 0; first < depth; first += kStep) {
            // Neighbouring threads read neighbouring floats. All are on their way before the last step's are given up.
            float next_l[kEach];
            float next_r[kEach];
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                const int i = t + e * kProductThreads;
                const int l_inner = first + (kLeftTransposed ? i / kProductTile : i % kStep);
                const int row = first_row_ + (kLeftTransposed ? i % kProductTile : i / kStep);
                const int r_inner = first + (kRightTransposed ? i % kStep : i / kProductTile);
                const int column = first_column_ + (kRightTransposed ? i / kStep : i % kProductTile);
                const bool l_there = row < rows_ && l_inner < depth;
                const bool r_there = column < columns_ && r_inner < depth;
                next_l[e] = l_there ? left[kLeftTransposed ? l_inner * rows_ + row : row * depth + l_inner] : 0.0F;
                next_r[e] =
                    r_there ? right[kRightTransposed ? column * depth + r_inner : r_inner * columns_ + column] : 0.0F;
            }
            __syncthreads();
            ProductsSeen seen;
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                seen.see_a(next_l[e]);
                seen.see_x(next_r[e]);
                const int i = t + e * kProductThreads;
                (kLeftTransposed ? l[i / kProductTile][i % kProductTile] : l[i % kStep][i / kStep]) = next_l[e];
                (kRightTransposed ? r[i % kStep][i / kStep] : r[i / kProductTile][i % kProductTile]) = next_r[e];
            }
            if (__syncthreads_or(seen.count() ? 1 : 0) == 0) continue;
            const int steps = min(kStep, depth - first);
#pragma unroll 8
            for (int i = 0; i < steps; ++i) {
                const float4 a = *reinterpret_cast<const float4*>(&l[i][t / 16 * 4]);
                const float4 b = *reinterpret_cast<const float4*>(&r[i][t % 16 * 4]);
                const float rows[4] = {a.x, a.y, a.z, a.w};
                const float columns[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (int m = 0; m < 4; ++m) {
#pragma unroll
                    for (int n = 0; n < 4; ++n) sum_[m][n] = fmaf(rows[m], columns[n], sum_[m][n]);
                }
            }
        }
    }

    /// to[place] = value(place, sum) for this thread's elements of the matrix. `value` may read `to`: all values are
    /// formed before the first is stored, so that no read waits for another.
    template <class Value>
    __device__ void store(float* to, const Value& value) const {
        float x[4][4];
        each([&](int m, int n, int place) { x[m][n] = value(place, sum_[m][n]); });
        each([&](int m, int n, int place) { to[place] = x[m][n]; });
    }
    /// to += the sums.
    __device__ void add_to(float* to) const {
        store(to, [&](int i, float sum) { return to[i] + sum; });
    }
    /// to += from, whatever the sums are.
    __device__ void add_copy(const float* from, float* to) const {
        store(to, [&](int i, float) { return to[i] + from[i]; });
    }
    __device__ void clear() {
#pragma unroll
        for (auto& row : sum_) {
#pragma unroll
            for (float& x : row) x = 0.0F;
        }
    }

private:
    template <class Body>
    __device__ void each(const Body& body) const {
        const int t = static_cast<int>(threadIdx.x);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int row = first_row_ + t / 16 * 4 + m;
                const int column = first_column_ + t % 16 * 4 + n;
                if (row < rows_ && column < columns_) body(m, n, row * columns_ + column);
            }
        }
    }
    __device__ static int tiles(int columns) {
        return (columns + kProductTile - 1) / kProductTile;
    }

    int rows_, columns_, first_row_, first_column_;
    float sum_[4][4] = {};
};

/// A thread block's part of combine's gradient for one head, all pointers to its (A, S): `tile` of S, then of A.
/// `older`: there is something older than the left node, so that its A counts.
__device__ inline void combine_matrix_backward(const HeadSizes& sizes, unsigned tile, unsigned state_tiles,
                                               const float* left, const float* right, const float* d_out, float* d_left,
                                               float* d_right, bool older) {
    const std::int64_t at = sizes.transition;
    if (tile < state_tiles) {
        ProductTile product(tile, sizes.dk, sizes.dv);
        product.add<true, false>(right, d_out + at, sizes.dk);
        product.add_copy(d_out + at, d_right + at);
        product.add_to(d_left + at);
        return;
    }
    ProductTile product(tile - state_tiles, sizes.dk, sizes.dk);
    product.add<false, true>(d_out + at, left + at, sizes.dv);
    if (older) product.add<false, true>(d_out, left, sizes.dk);
    product.add_to(d_right);
    if (!older) return;
    product.clear();
    product.add<true, false>(right, d_out, sizes.dk);
    product.add_to(d_left);
}

#endif

}  // namespace fenwick::cuda::backward
