#include "kernels/summary.h"

#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick {

std::int64_t transition_floats(const MixerShape& shape) {
    switch (shape.algebra) {
        case TransitionAlgebra::kScalar:
            return 1;
        case TransitionAlgebra::kDiagonal:
            return shape.key_dim;
        case TransitionAlgebra::kMatrix:
            return shape.key_dim * shape.key_dim;
    }
    return 0;
}

std::int64_t state_floats(const MixerShape& shape) {
    return shape.key_dim * shape.value_dim;
}

std::int64_t summary_floats(const MixerShape& shape) {
    return shape.heads * (transition_floats(shape) + state_floats(shape));
}

void carry_state(const MixerShape& shape, const float* node, const float* state, float* out) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        gemm_nn(dk, dv, dk, 1.0F, node, dk, state, dv, 0.0F, out, dv);
        return;
    }
    const bool diagonal = shape.algebra == TransitionAlgebra::kDiagonal;
    for (std::int64_t r = 0; r < dk; ++r) {
        const float decay = vexp(node[diagonal ? r : 0]);
        for (std::int64_t c = 0; c < dv; ++c) out[r * dv + c] = decay * state[r * dv + c];
    }
}

void combine_head(const MixerShape& shape, const float* left, const float* right, float* out) {
    const std::int64_t transition = transition_floats(shape);
    const std::int64_t dk = shape.key_dim;
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        gemm_nn(dk, dk, dk, 1.0F, right, dk, left, dk, 0.0F, out, dk);
    } else {
        for (std::int64_t i = 0; i < transition; ++i) out[i] = right[i] + left[i];
    }
    carry_state(shape, right, left + transition, out + transition);
    for (std::int64_t i = 0; i < state_floats(shape); ++i) out[transition + i] += right[transition + i];
}

void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out, int threads) {
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (std::int64_t h = 0; h < shape.heads; ++h) {
        combine_head(shape, left + h * one, right + h * one, out + h * one);
    }
}

}  // namespace fenwick
