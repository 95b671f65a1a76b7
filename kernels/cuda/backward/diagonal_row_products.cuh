// The products of diagonal_rows.cu: with states, and of the chunk's own pairs (diagonal.h), each by warps that have 16
// rows and 32 channels.
#pragma once

#include "kernels/cuda/backward/diagonal_row_channels.cuh"

namespace fenwick::cuda::backward {

/// acc += A B over a depth of 64 for one warp: A's rows (kTransposed: columns) [16 warp, + 16) from a tile, columns
/// [first, + kColumns) of B.
template <int kColumns, Rows kRows, bool kTransposed>
__device__ __forceinline__ void multiply_rows(float (&acc)[kColumns / 2], std::uint32_t a_tile, std::uint32_t b_tile,
                                              int first, int warp, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        std::uint32_t a[4];
        load_fragment<kTransposed>(a, a_tile, warp, step, lane);
        multiply<kColumns, kRows>(acc, a, b_tile, step, first, lane);
    }
}

/// The warp's 16 rows and 32 channels of a product with a state, scaled by its carry: to `sum` (`kReads`: with
/// lambda), and the sums of the pairs over rows and columns to shared memory.
template <bool kReads, int kKeyDim>
__device__ __forceinline__ void add_state(const float (&r)[16], float (&sum)[16], DiagonalShared<kKeyDim>& shared,
                                          DiagonalState<kKeyDim>& state, std::uint32_t keys, bool more, int warp,
                                          int group, int lane) {
    const int row = 16 * warp + lane / 4;
    const float* carry = &state.carry[32 * group + 2 * (lane % 4)];
    const float lambda[2] = {kReads ? state.entry.lambda[row] : 1.0F, kReads ? state.entry.lambda[row + 8] : 1.0F};
    float by_column[8] = {};
    float dot[2] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        std::uint32_t key[4];  // q~ or k^
        load_a(key, keys + group / 2 * kPanelBytes, warp, 2 * (group % 2) + step, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i % 2;
            const int n = 2 * step + i / 2;
            const int at = 4 * n + 2 * half;
            const float2 f = *reinterpret_cast<const float2*>(carry + 8 * n);
            const float low = f.x * r[at];
            const float high = f.y * r[at + 1];
            const float low_pairs = low_bf16(key[i]) * low;
            const float high_pairs = high_bf16(key[i]) * high;
            dot[half] += low_pairs + high_pairs;
            sum[at] = fmaf(lambda[half], low, sum[at]);
            sum[at + 1] = fmaf(lambda[half], high, sum[at + 1]);
            by_column[2 * n] = fmaf(lambda[half], low_pairs, by_column[2 * n]);
            by_column[2 * n + 1] = fmaf(lambda[half], high_pairs, by_column[2 * n + 1]);
        }
    }
    if constexpr (kReads) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all = sum_quad(dot[half]);
            float& to = state.entry.rows[group][row + 8 * half];
            if (lane % 4 == 0) to = more ? to + all : all;
        }
    }
    const float all = sum_rows_of_eight(by_column, lane);
    const int column = lane / 8 * 8 + 2 * (lane % 4) + lane / 4 % 2;
    shared.columns[warp][state.sum][32 * group + column] += all;
}

/// A warp's 16 rows and 32 channels to result `which`.
template <class C>
__device__ __forceinline__ void store_result(const float (&r)[16], char* tiles, int which, int row, int channel) {
    float* to =
        reinterpret_cast<float*>(tiles + C::kResults + which * C::kResultBytes) + row * C::kResultStride + channel;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        *reinterpret_cast<float2*>(to + i % 2 * 8 * C::kResultStride + i / 2 * 8) = make_float2(r[2 * i], r[2 * i + 1]);
    }
}

/// All Y in one tile: below the diagonal X_ij, above it lambda_j X_ji. A warp has 16 rows and kOwn columns of X.
template <class C, bool kLinear, int kKeyDim>
__device__ __forceinline__ void store_pairs(const float (&x)[C::kOwn / 2], char* tiles, DiagonalShared<kKeyDim>& shared,
                                            int row, int first) {
    const auto put_pair = [&](int i, int j, float value) {
        *reinterpret_cast<__nv_bfloat16*>(tiles + C::kY + tile_offset(i, j / 8) + j % 8 * 2) =
            __float2bfloat16_rn(value);
    };
#pragma unroll
    for (int n = 0; n < C::kOwn / 2; ++n) {
        const int i = row + n / 2 % 2 * 8;
        const int j = first + n / 4 * 8 + n % 2;
        if (j == i) {
            shared.diagonal[i] = x[n];
            put_pair(i, i, 0.0F);
        } else if (j < i) {
            put_pair(i, j, x[n]);
            put_pair(j, i, kLinear ? x[n] : shared.own[32 - __clz(i ^ j)].lambda[i] * x[n]);
        }
    }
}

/// R = Y Z of one bit, a warp's 16 rows and 32 channels, to result 0, with lambda's gradient.
template <class C, int kBit, bool kLinear, int kKeyDim>
__device__ __forceinline__ void multiply_bit(char* tiles, std::uint32_t start, DiagonalShared<kKeyDim>& shared,
                                             int warp, int group, int lane) {
    const std::uint32_t z = start + C::kZ + group / 2 * kPanelBytes;
    float r[16] = {};
    const auto add = [&](int step) {
        std::uint32_t a[4];
        load_a(a, start + C::kY, warp, step, lane);
        if constexpr (kBit == 3) {  // the two squares of eight off the diagonal
            a[0] = 0;
            a[3] = 0;
        } else if constexpr (kBit < 3) {  // inside those on it
            const int apart = (lane / 4) ^ (2 * (lane % 4));
            const std::uint32_t mask = (apart >> kBit == 1 ? 0xFFFFU : 0U) | ((apart ^ 1) >> kBit == 1 ? ~0xFFFFU : 0U);
            a[0] &= mask;
            a[1] = 0;
            a[2] = 0;
            a[3] &= mask;
        }
        multiply<32, Rows::kDepth>(r, a, z, step, group % 2 * 32, lane);
    };
    if constexpr (kBit == 5) {
        const int other = warp < 2 ? 2 : 0;
        add(other);
        add(other + 1);
    } else {
        add(kBit == 4 ? warp ^ 1 : warp);
    }
    const int row = 16 * warp + lane / 4;
    if constexpr (!kLinear) {
        float dot[2] = {};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            std::uint32_t own[4];
            load_a(own, z, warp, 2 * (group % 2) + step, lane);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * (2 * step + i / 2) + 2 * (i % 2);
                dot[i % 2] = fmaf(low_bf16(own[i]), r[at], dot[i % 2]);
                dot[i % 2] = fmaf(high_bf16(own[i]), r[at + 1], dot[i % 2]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all = sum_quad(dot[half]);
            const bool right = ((row + 8 * half) >> kBit & 1) != 0;
            if (lane % 4 == 0) shared.own[kBit + 1].rows[group][row + 8 * half] = right ? all : 0.0F;
        }
    }
    store_result<C>(r, tiles, 0, row, 32 * group + 2 * (lane % 4));
}

/// The chunk's own pairs of one bit, whose Z is written; then the next bit's Z.
template <int kBit, int kKeyDim, DiagonalStep kStep>
__device__ __forceinline__ void add_bit(Channels<kKeyDim, kStep>& own, std::uint32_t start, int warp, int group,
                                        int lane) {
    __syncthreads();
    multiply_bit<DiagonalTiles<kKeyDim, kStep>, kBit, kStep == DiagonalStep::kLinear>(own.tiles, start, own.shared,
                                                                                      warp, group, lane);
    __syncthreads();
    own.template add_rows<kBit>();
    if constexpr (kBit + 1 < kChunkBits) own.template write_rows<kBit + 1>();
}

}  // namespace fenwick::cuda::backward
