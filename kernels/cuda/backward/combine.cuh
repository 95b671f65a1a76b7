// What combine's and carry's gradients are made of, where A is a log decay (combine_matrix.cuh: a matrix);
// kernels/backward/summary.h has the formulas.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/mixer_shape.h"

namespace fenwick::cuda::backward {

/// The sizes of one head's (A, S).
struct HeadSizes {
    TransitionAlgebra algebra;
    int heads, dk, dv;
    std::int64_t transition;  ///< floats of A
    std::int64_t state;       ///< floats of S
};

[[nodiscard]] inline HeadSizes head_sizes(const MixerShape& shape) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t transition = shape.algebra == TransitionAlgebra::kMatrix     ? dk * dk
                                    : shape.algebra == TransitionAlgebra::kDiagonal ? dk
                                                                                    : 1;
    return {shape.algebra, static_cast<int>(shape.heads), static_cast<int>(dk), static_cast<int>(shape.value_dim),
            transition,    dk * shape.value_dim};
}

#if defined(__CUDACC__)

__device__ inline float node_decay(const HeadSizes& sizes, const float* a, int row) {
    return expf(fmaxf(a[sizes.algebra == TransitionAlgebra::kDiagonal ? row : 0], -1000.0F));
}

/// What the log decay `part` (of sizes.transition) gets of d [d_k, d_v] against A x: exp(a) <d, x> over its rows. All
/// threads of the block; the same bits in each. `block_sum`: the sum of a value over the block's threads.
template <class BlockSum>
__device__ inline float decay_gradient(const HeadSizes& sizes, const float* a, const float* d, const float* x, int part,
                                       const BlockSum& block_sum) {
    const bool diagonal = sizes.algebra == TransitionAlgebra::kDiagonal;
    const std::int64_t first = diagonal ? static_cast<std::int64_t>(part) * sizes.dv : 0;
    const std::int64_t count = diagonal ? sizes.dv : sizes.state;
    float sum = 0.0F;
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum = fmaf(d[first + i], x[first + i], sum);
    return node_decay(sizes, a, part) * block_sum(sum);
}

#endif

}  // namespace fenwick::cuda::backward
