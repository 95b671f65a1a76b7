// Sums in a warpgroup's registers on their way to a bf16 tile of tile.cuh.
#pragma once

#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda {

/// Rounds a warpgroup's 64 rows and kCount * 2 columns to bf16 and writes them as rows row(, + 8) of a tile, from its
/// 16-byte piece `first` on: `row` the thread's.
template <int kCount>
__device__ __forceinline__ void store_tile(const float (&x)[kCount], void* tile, int row, int lane, int first = 0) {
    static_assert(kCount % 16 == 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < kCount / 16; ++m) {
            std::uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * (4 * m + i) + 2 * half;
                w[i] = pack_bf16(x[at], x[at + 1]);
            }
            transpose_quad(w, lane);
            char* to = static_cast<char*>(tile) + tile_offset(row + 8 * half, first + 4 * m + lane % 4);
            *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

}  // namespace fenwick::cuda
