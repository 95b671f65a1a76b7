#include "core/cuda/check.h"
#include "kernels/cuda/backward/state_tiles.h"
#include "kernels/cuda/tile.cuh"

namespace fenwick::cuda::backward {
namespace {

// One thread: eight neighbouring value columns of a row.
__global__ void tiles_kernel(const float* from, std::int64_t head_stride, __nv_bfloat16* to, std::int64_t columns,
                             int tiles, int dk, int dv) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int piece = static_cast<int>(i % 8);
    const int row = static_cast<int>(i / 8 % dk);
    const std::int64_t column = i / 8 / dk;
    if (column >= columns) return;
    const int first = static_cast<int>(column % tiles) * 64 + piece * 8;
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        x[j] = first + j < dv ? from[column / tiles * head_stride + static_cast<std::int64_t>(row) * dv + first + j]
                              : 0.0F;
    }
    char* place = reinterpret_cast<char*>(to + column * dk * 64) + tile_offset(row, piece);
    *reinterpret_cast<uint4*>(place) =
        make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

}  // namespace

void launch_state_tiles(const float* from, std::int64_t head_stride, __nv_bfloat16* to, std::int64_t columns, int tiles,
                        int key_dim, int value_dim, cudaStream_t stream) {
    constexpr unsigned kThreads = 256;
    const std::int64_t pieces = columns * key_dim * 8;
    tiles_kernel<<<static_cast<unsigned>((pieces + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        from, head_stride, to, columns, tiles, key_dim, value_dim);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
