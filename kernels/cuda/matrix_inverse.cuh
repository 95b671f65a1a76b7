// M = (I + L)^-1 for a strictly lower triangular L [64, 64], by blocks of 16: those on the diagonal by substitution in
// fp32; a row of blocks from the diagonal to the left by M[i][j] = -(sum over j < k <= i of M[i][k] L[k][j]) M[j][j] on
// the matrix units, each operand split into two bf16 numbers. Four warps, one for each row of blocks.
#pragma once

#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::matrix {

inline constexpr int kPitch = 20;  // floats of a row of a diagonal block

// Panels: K (and Q behind it) first; then L and the diagonal blocks of M in panels 0 (high) and 1 (rest), the diagonal
// blocks of L and after them T in panel 2, P or the rest of T in panel 3; at last P T in panel 0 and lambda * (P T) in
// panel 1.
struct Shared {
    alignas(1024) unsigned char panels[4][kPanelBytes];
    float2 cumulative[kC];  // G = x + y
    float beta[kC];
};
__device__ __forceinline__ int panel_at(int row, int column) {
    return (row * 128 + column * 2) ^ ((row % 8) * 16);
}

/// A diagonal block of L, fp32 [16][kPitch].
__device__ __forceinline__ float* diagonal_block(Shared& s, int block) {
    return reinterpret_cast<float*>(s.panels[2]) + block * 16 * kPitch;
}

/// Two neighbours in a row, split.
__device__ __forceinline__ void store_split(unsigned char* high, unsigned char* rest, int row, int column, float x,
                                            float y) {
    const std::uint32_t h = pack(x, y);
    const int at = panel_at(row, column);
    *reinterpret_cast<std::uint32_t*>(high + at) = h;
    if (rest != nullptr) *reinterpret_cast<std::uint32_t*>(rest + at) = pack(x - low_of(h), y - high_of(h));
}

// The inverse of the warp's diagonal block, a column a lane (lanes from 16 on repeat the first 16), into panels 0
// and 1.
__device__ __forceinline__ void invert_diagonal(Shared& s, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
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
    if (lane >= 16) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int at = panel_at(16 * warp + i, 16 * warp + column);
        const bf16 high = __float2bfloat16_rn(x[i]);
        *reinterpret_cast<bf16*>(s.panels[0] + at) = high;
        *reinterpret_cast<bf16*>(s.panels[1] + at) = __float2bfloat16_rn(x[i] - __bfloat162float(high));
    }
}

// c [16, 16] += a B for the 16x16 block B at (row, column) of panels 0 and 1.
__device__ __forceinline__ void multiply_block(float (&c)[8], const std::uint32_t (&a)[4],
                                               const std::uint32_t (&rest)[4], std::uint32_t panels, int row,
                                               int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
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

// The warp's 16 rows of T into panel 2, what bf16 loses of them into `rest` (may be null).
__device__ __forceinline__ void solve_rows(Shared& s, int warp, unsigned char* rest) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t panels = shared_address(s.panels[0]);
    std::uint32_t m[4][4];  // the row of blocks of M: high parts
    std::uint32_t r[4][4];  // and rests
    const auto store = [&](int block, const float(&c)[8]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * warp + lane / 4 + (i % 2) * 8;
            const int column = 16 * block + 2 * (lane % 4) + (i / 2) * 8;
            const float2 beta = *reinterpret_cast<const float2*>(s.beta + column);
            store_split(s.panels[2], rest, row, column, c[2 * i] * beta.x, c[2 * i + 1] * beta.y);
        }
    };
#pragma unroll
    for (int d = 0; d < 4; ++d) {  // block column warp - d; index by distance so that registers are constant
        const int block = warp - d;
        float c[8] = {};
        if (block < 0) {
            store(d, c);  // right of the diagonal: block columns warp + 1 .. 3, in some order
            continue;
        }
        if (d == 0) {
            const std::uint32_t at =
                swizzled(panels + static_cast<std::uint32_t>((lane % 8 + (lane / 8 % 2) * 8) * 128 + (lane / 16) * 16 +
                                                             32 * warp)) +
                static_cast<std::uint32_t>(16 * warp * 128);
            ldmatrix(m[0], at);
            ldmatrix(r[0], at + kPanelBytes);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                c[2 * i] = low_of(m[0][i]) + low_of(r[0][i]);
                c[2 * i + 1] = high_of(m[0][i]) + high_of(r[0][i]);
            }
        } else {
            float sum[8] = {};
#pragma unroll
            for (int k = 0; k < d; ++k) multiply_block(sum, m[k], r[k], panels, 16 * (warp - k), 16 * block);
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
        store(block, c);
    }
}

}  // namespace fenwick::cuda::matrix
