// M = (I + L)^-1 for a strictly lower triangular L [64, 64], by blocks of 16: those on the diagonal by substitution in
// fp32; a row of blocks from the diagonal to the left by M[i][j] = -(sum over j < k <= i of M[i][k] L[k][j]) M[j][j] on
// the matrix units, each operand split into two bf16 numbers. Four warps, one for each row of blocks; a warp's number
// is a template argument, so that it runs no instruction for the blocks right of its diagonal.
#pragma once

#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::matrix {

inline constexpr int kPitch = 20;  // floats of a row of a diagonal block

/// Of one chunk and head. A warp's rows of `triangle` are its own once its diagonal block is inverted.
struct Solve {
    alignas(1024) unsigned char lower[2][kPanelBytes];     // L and the diagonal blocks of M: high parts, rests
    alignas(1024) unsigned char triangle[2][kPanelBytes];  // the diagonal blocks of L, fp32; then M: high part, rest
};
__device__ __forceinline__ int panel_at(int row, int column) {
    return (row * 128 + column * 2) ^ ((row % 8) * 16);
}

/// A diagonal block of L, fp32 [16][kPitch].
__device__ __forceinline__ float* diagonal_block(Solve& s, int block) {
    return reinterpret_cast<float*>(s.triangle[0]) + block * 16 * kPitch;
}

/// Two neighbours in a row, split.
__device__ __forceinline__ void store_split(unsigned char* high, unsigned char* rest, int at, float x, float y) {
    const std::uint32_t h = pack(x, y);
    *reinterpret_cast<std::uint32_t*>(high + at) = h;
    *reinterpret_cast<std::uint32_t*>(rest + at) = pack(x - low_of(h), y - high_of(h));
}

// The inverse of the warp's diagonal block, a column a lane: the first 16 lanes write the high parts, the others, which
// compute the same, the rests.
__device__ __forceinline__ void invert_diagonal(Solve& s, int warp) {
    const int lane = lane_now();
    const int column = lane % 16;
    const float* l = diagonal_block(s, warp);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        float sum = i == column ? 1.0F : 0.0F;
#pragma unroll
        for (int m = 0; m < (i + 3) / 4; ++m) {
            const float4 f = *reinterpret_cast<const float4*>(l + i * kPitch + 4 * m);
            const float row[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (4 * m + e < i) sum = fmaf(-row[e], x[4 * m + e], sum);
            }
        }
        x[i] = sum;
    }
    unsigned char* panel = s.lower[lane / 16];
    const float less = lane < 16 ? 0.0F : 1.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float high = __bfloat162float(__float2bfloat16_rn(x[i]));
        *reinterpret_cast<bf16*>(panel + panel_at(16 * warp + i, 16 * warp + column)) =
            __float2bfloat16_rn(fmaf(-less, high, x[i]));
    }
}

// c [16, 16] += a B for the 16x16 block B at (row, column) of two panels, high part and rest.
__device__ __forceinline__ void multiply_block(float (&c)[8], const std::uint32_t (&a)[4],
                                               const std::uint32_t (&rest)[4], std::uint32_t panels, int row,
                                               int column) {
    const int lane = lane_now();
    const std::uint32_t at =
        swizzled(panels + static_cast<std::uint32_t>((lane % 16) * 128 + (lane / 16) * 16 + column * 2)) +
        static_cast<std::uint32_t>(row * 128);
    std::uint32_t high[4];
    std::uint32_t low[4];
    ldmatrix_transposed(high, at);
    ldmatrix_transposed(low, at + kPanelBytes);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        mma(c[4 * n], c[4 * n + 1], c[4 * n + 2], c[4 * n + 3], rest, high[2 * n], high[2 * n + 1]);
        mma(c[4 * n], c[4 * n + 1], c[4 * n + 2], c[4 * n + 3], a, low[2 * n], low[2 * n + 1]);
        mma(c[4 * n], c[4 * n + 1], c[4 * n + 2], c[4 * n + 3], a, high[2 * n], high[2 * n + 1]);
    }
}

// The warp's 16 rows of M, split.
template <int kWarp>
__device__ __forceinline__ void solve_rows(Solve& s) {
    const int lane = lane_now();
    const std::uint32_t panels = shared_address(s.lower[0]);
    std::uint32_t m[4][4];  // the row of blocks of M by distance from the diagonal: high parts
    std::uint32_t r[4][4];  // and rests
#pragma unroll
    for (int d = 0; d < 4; ++d) {
        const int block = d <= kWarp ? kWarp - d : d;  // right of the diagonal: zeros
        float c[8] = {};
        if (d == 0) {
            const std::uint32_t at =
                swizzled(panels + static_cast<std::uint32_t>((lane % 8 + (lane / 8 % 2) * 8) * 128 + (lane / 16) * 16 +
                                                             32 * kWarp)) +
                static_cast<std::uint32_t>(16 * kWarp * 128);
            ldmatrix(m[0], at);
            ldmatrix(r[0], at + kPanelBytes);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                c[2 * i] = low_of(m[0][i]) + low_of(r[0][i]);
                c[2 * i + 1] = high_of(m[0][i]) + high_of(r[0][i]);
            }
        } else if (d <= kWarp) {
            float sum[8] = {};
#pragma unroll
            for (int k = 0; k < d; ++k) multiply_block(sum, m[k], r[k], panels, 16 * (kWarp - k), 16 * block);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] = -sum[i];
            std::uint32_t high[4];
            std::uint32_t low[4];
            pack_step(sum, 0, high);
            pack_rest(sum, 0, high, low);
            multiply_block(c, high, low, panels, 16 * block, 16 * block);
            pack_step(c, 0, m[d]);
            pack_rest(c, 0, m[d], r[d]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * kWarp + lane / 4 + (i % 2) * 8;
            const int column = 16 * block + 2 * (lane % 4) + (i / 2) * 8;
            const int at = panel_at(row, column);
            if (d <= kWarp) {
                store_split(s.triangle[0], s.triangle[1], at, c[2 * i], c[2 * i + 1]);
            } else {
                *reinterpret_cast<std::uint32_t*>(s.triangle[0] + at) = 0;
                *reinterpret_cast<std::uint32_t*>(s.triangle[1] + at) = 0;
            }
        }
    }
}

}  // namespace fenwick::cuda::matrix
