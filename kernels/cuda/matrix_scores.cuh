// The scores of a chunk for prepare (matrix_prepare.cu): K K^T and Q K^T, their decays, and what the read-out takes of
// them. Functions of one of four warps, which has 16 rows.
#pragma once

#include "kernels/cuda/matrix_inverse.cuh"
#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::matrix {

inline constexpr int kPrepareThreads = 128;
inline constexpr int kLambdas = 7;  // levels inside a chunk

/// What a tile needs of its tokens; two of them, for this tile and the next.
struct Gates {
    alignas(16) float2 cumulative[kC];  // G / ln 2 = x + y
    alignas(8) float beta[kC];
    float log_decay[kC];  // as it arrives
    float decay;          // exp(G_C)
    float lambda[kC][kLambdas];
};

// The warp's 16 rows of a panel into its tile, up to the diagonal block.
__device__ __forceinline__ void store_rows(const unsigned char* panel, int warp, bf16* tile) {
    __syncwarp();
    const int lane = lane_now();
    const int piece = lane % 8;
    if (piece / 2 <= warp) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * warp + 4 * i + lane / 8;
            *reinterpret_cast<uint4*>(tile + row * kC + piece * 8) =
                *reinterpret_cast<const uint4*>(panel + row * 128 + ((piece ^ (row % 8)) * 16));
        }
    }
    __syncwarp();
}

// P of the warp's rows, as the operand `p`, into the warp's rows of a panel.
__device__ __forceinline__ void stage_operand(const std::uint32_t (&p)[4][4], unsigned char* panel, int warp) {
    const int lane = lane_now();
#pragma unroll
    for (int block = 0; block < 4; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = panel_at(16 * warp + lane / 4 + (i % 2) * 8, 16 * block + (i / 2) * 8 + 2 * (lane % 4));
            *reinterpret_cast<std::uint32_t*>(panel + at) = p[block][i];
        }
    }
}

__device__ __forceinline__ int chunk_level(int i, int j) {
    return 32 - __clz(i ^ j);
}

// P M and lambda * (P M) of the warp's rows: P as an operand, M from its tile.
__device__ __forceinline__ void weigh_scores(Solve& s, const float (&lambda)[kC][kLambdas],
                                             const std::uint32_t (&p)[4][4], int warp, bf16* plain, bf16* weighed) {
    const int lane = lane_now();
    float scores[32];
    clear(scores);
    products_begin(scores);
#pragma unroll
    for (int step = 0; step < 4; ++step)
        product_nn<64>(scores, p[step], shared_address(s.triangle[0]), step * 16 * 128, kPanelBytes);
    products_end(scores);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = 16 * warp + lane / 4 + 8 * r;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int j = 8 * n + 2 * (lane % 4);
            const int at = panel_at(i, j);
            const float p0 = scores[4 * n + 2 * r];  // zero right of the diagonal: sums of zeros
            const float p1 = scores[4 * n + 2 * r + 1];
            *reinterpret_cast<std::uint32_t*>(s.lower[0] + at) = pack(p0, p1);
            *reinterpret_cast<std::uint32_t*>(s.lower[1] + at) =
                pack(j <= i ? p0 * lambda[i][chunk_level(i, j)] : 0.0F,
                     j < i ? p1 * lambda[i][chunk_level(i, j + 1)] : 0.0F);
        }
    }
    store_rows(s.lower[0], warp, plain);
    store_rows(s.lower[1], warp, weighed);
}

// K K^T and Q K^T of the warp's 16 rows.
template <int kDk>
__device__ __forceinline__ void multiply_keys(float (&kk)[32], float (&qk)[32], std::uint32_t keys,
                                              std::uint32_t queries, int warp) {
    clear(kk);
    clear(qk);
    keep(kk);
    products_begin(qk);
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        const int at = (step / 4) * kPanelBytes + (step % 4) * 32;
        product_tiles(kk, keys, keys, at, warp);
        product_tiles(qk, queries, keys, at, warp);
    }
    products_end(kk);
    keep(qk);
}

// Heads of one key head have the same K K^T and Q K^T: the first one leaves them where K and Q were, every thread its
// own.
constexpr bool can_share(int key_dim) {
    return key_dim == 128;  // a tile of fp32 takes the room of [64, 128] bf16
}
__device__ __forceinline__ void leave_products(const float (&c)[32], unsigned char* at) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        reinterpret_cast<float4*>(at)[i * kPrepareThreads + static_cast<int>(threadIdx.x)] =
            make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
    }
}
__device__ __forceinline__ void take_products(float (&c)[32], const unsigned char* at) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 f = reinterpret_cast<const float4*>(at)[i * kPrepareThreads + static_cast<int>(threadIdx.x)];
        c[4 * i] = f.x;
        c[4 * i + 1] = f.y;
        c[4 * i + 2] = f.z;
        c[4 * i + 3] = f.w;
    }
}

// Decays and beta of the warp's 16 rows of K K^T and Q K^T: L split (the diagonal block as it is), P as an operand.
// Whether none of the tokens' transitions that this thread sees, I - beta k k^T, makes anything longer.
template <int kWarp>
__device__ __forceinline__ bool apply_decays(Solve& s, const Gates& gates, const float (&kk)[32], const float (&qk)[32],
                                             std::uint32_t (&p)[4][4]) {
    const int lane = lane_now();
    bool shrinks = true;
    float2 at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) at[r] = gates.cumulative[16 * kWarp + lane / 4 + 8 * r];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int block = n / 2;
        if (block > kWarp) {
            p[block][n % 2 * 2] = p[block][n % 2 * 2 + 1] = 0;
            continue;
        }
        const int column = 8 * n + 2 * (lane % 4);
        const float4 from = *reinterpret_cast<const float4*>(gates.cumulative + column);
        const float2 beta = *reinterpret_cast<const float2*>(gates.beta + column);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane / 4 + 8 * r;  // of the block
            const float d0 = exp2_of((at[r].x - from.x) + (at[r].y - from.y));
            const float d1 = exp2_of((at[r].x - from.z) + (at[r].y - from.w));
            const float k0 = kk[4 * n + 2 * r] * beta.x;
            const float k1 = kk[4 * n + 2 * r + 1] * beta.y;
            float l0 = k0 * d0;
            float l1 = k1 * d1;
            float p0 = qk[4 * n + 2 * r] * beta.x * d0;
            float p1 = qk[4 * n + 2 * r + 1] * beta.y * d1;
            if (block == kWarp) {  // the exponents right of the diagonal may be positive: nothing of them is used
                const int of_block = column - 16 * kWarp;
                if (of_block == row || of_block + 1 == row) {
                    const float length = of_block == row ? k0 : k1;
                    shrinks = shrinks && length >= 0.0F && length <= 2.0F;
                }
                if (of_block >= row) l0 = 0.0F;
                if (of_block + 1 >= row) l1 = 0.0F;
                if (of_block > row) p0 = 0.0F;
                if (of_block + 1 > row) p1 = 0.0F;
                *reinterpret_cast<float2*>(diagonal_block(s, kWarp) + row * kPitch + of_block) = make_float2(l0, l1);
            } else {
                store_split(s.lower[0], s.lower[1], panel_at(16 * kWarp + row, column), l0, l1);
            }
            p[block][n % 2 * 2 + r] = pack(p0, p1);
        }
    }
    return shrinks;
}

}  // namespace fenwick::cuda::matrix
