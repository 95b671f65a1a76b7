// fp32 states as the bf16 tiles that products read.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace fenwick::cuda::backward {

/// States [columns / tiles heads][d_k, d_v] whose heads lie `head_stride` floats apart, to [columns][d_k, 64] as
/// tile.cuh lays them: 64 value columns each, zeros past d_v.
void launch_state_tiles(const float* from, std::int64_t head_stride, __nv_bfloat16* to, std::int64_t columns, int tiles,
                        int key_dim, int value_dim, cudaStream_t stream);

}  // namespace fenwick::cuda::backward
