// Steps that the diagonal algebra's walks share. States are transposed in registers, 16 value columns a warp, as
// kernels/cuda/matrix_step.cuh describes: S^T = S^T Diag(decay) + V^T K^, O^T = S^T Q~^T + V^T P^T.
#pragma once

#include "kernels/cuda/diagonal_plan.h"
#include "kernels/cuda/matrix_step.cuh"

namespace fenwick::cuda::diagonal {

using matrix::bf16;
using matrix::Columns;
using matrix::kC;
using matrix::kPanelBytes;

inline constexpr int kWalkThreads = 128;

/// Copies kBytes that are contiguous on both sides (a prepared tile).
template <int kBytes>
__device__ __forceinline__ void load_tile(void* to, const void* from) {
    const int t = static_cast<int>(threadIdx.x);
    const std::uint32_t at = matrix::shared_address(to);
#pragma unroll
    for (int i = 0; i < kBytes / 16; i += kWalkThreads) {
        if (kBytes / 16 - i >= kWalkThreads || t < kBytes / 16 - i) {
            matrix::copy_16(at + static_cast<std::uint32_t>((i + t) * 16),
                            static_cast<const char*>(from) + (i + t) * 16, true);
        }
    }
}

/// A chunk's prepared keys or queries [64, d_k] into panels.
template <int kDk>
__device__ __forceinline__ void load_rows(void* to, const bf16* from) {
    matrix::load_panels<kDk / 8, kWalkThreads>(matrix::shared_address(to), from, kDk, kC, kDk);
}

/// The warp's 16 columns of V^T as an operand.
__device__ __forceinline__ void load_values(std::uint32_t (&a)[4][4], const void* values, int warp) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        matrix::load_a_transposed(a[step], matrix::shared_address(values), 16 * step,
                                  static_cast<std::uint32_t>(32 * warp));
    }
}

/// X^T = X^T Diag(decay); `decay` [d_k] in shared memory.
template <int kDk>
__device__ __forceinline__ void decay_state(Columns<kDk>& x, const float* decay) {
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n) {
        const float2 f = *reinterpret_cast<const float2*>(decay + 8 * n + pair);
        x[4 * n] *= f.x;
        x[4 * n + 1] *= f.y;
        x[4 * n + 2] *= f.x;
        x[4 * n + 3] *= f.y;
    }
}

/// The warp's 16 columns of o^T into the panel (no other warp touches them), then out as rows.
__device__ __forceinline__ void store_outputs(const float (&o)[32], void* panel, int warp, bf16* to,
                                              std::int64_t stride, int rows, int columns) {
    auto* bytes = static_cast<unsigned char*>(panel);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / 4;  // of eight tokens
    __syncwarp();              // its lanes have read values where they write now
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned char* mine = bytes + row * 128 + ((2 * warp + half) ^ row) * 16 + (lane % 4) * 4;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            *reinterpret_cast<std::uint32_t*>(mine + n * 1024) =
                matrix::transposed(matrix::pack(o[4 * n + 2 * half], o[4 * n + 2 * half + 1]));
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int token = 16 * i + lane / 2;
        const int piece = 2 * warp + lane % 2;
        if (token < rows && piece * 8 < columns) {
            *reinterpret_cast<uint4*>(to + token * stride + piece * 8) =
                *reinterpret_cast<const uint4*>(bytes + ((token * 128 + piece * 16) ^ ((token % 8) * 16)));
        }
    }
}

/// Rounds a state to a matrix operand.
template <int kDk>
__device__ __forceinline__ void store_operand(const Columns<kDk>& x, uint4* to) {
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        std::uint32_t a[4];
        matrix::pack_step(x, step, a);
        to[step * kWalkThreads + threadIdx.x] = make_uint4(a[0], a[1], a[2], a[3]);
    }
}

/// Rows of a chunk that the document has.
__device__ __forceinline__ int rows_from(std::int64_t rows, std::int64_t first) {
    const std::int64_t left = rows - first;
    return static_cast<int>(left < kC ? (left < 0 ? 0 : left) : kC);
}

}  // namespace fenwick::cuda::diagonal
