#include "kernels/backward/summary.h"

#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/gemm.h"
#include "kernels/summary.h"
#include "kernels/vector_math.h"

namespace fenwick {
namespace {

constexpr float kNoMemory = -std::numeric_limits<float>::infinity();  ///< the log decay that lets nothing pass

}  // namespace

void carry_state_backward(const MixerShape& shape, const float* node, const float* state, const float* d_out,
                          float* d_node, float* d_state) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        gemm_nt(dk, dk, dv, 1.0F, d_out, dv, state, dv, 1.0F, d_node, dk);
        gemm_tn(dk, dv, dk, 1.0F, node, dk, d_out, dv, 1.0F, d_state, dv);
        return;
    }
    // One decay for all elements, or one for each row.
    const bool diagonal = shape.algebra == TransitionAlgebra::kDiagonal;
    const std::int64_t parts = diagonal ? dk : 1;
    const std::int64_t size = diagonal ? dv : dk * dv;
    for (std::int64_t i = 0; i < parts; ++i) {
        if (node[i] == kNoMemory) continue;
        const float decay = vexp(node[i]);
        const float* dy = d_out + i * size;
        d_node[i] += decay * dot_product(dy, state + i * size, size);
        for (std::int64_t c = 0; c < size; ++c) d_state[i * size + c] += decay * dy[c];
    }
}

void combine_head_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                           float* d_left, float* d_right) {
    const std::int64_t transition = transition_floats(shape);
    const std::int64_t dk = shape.key_dim;
    const float* d_state = d_out + transition;
    carry_state_backward(shape, right, left + transition, d_state, d_right, d_left + transition);
    for (std::int64_t i = 0; i < state_floats(shape); ++i) d_right[transition + i] += d_state[i];
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        gemm_nt(dk, dk, dk, 1.0F, d_out, dk, left, dk, 1.0F, d_right, dk);
        gemm_tn(dk, dk, dk, 1.0F, right, dk, d_out, dk, 1.0F, d_left, dk);
        return;
    }
    for (std::int64_t i = 0; i < transition; ++i) {
        if (left[i] != kNoMemory) d_left[i] += d_out[i];
        if (right[i] != kNoMemory) d_right[i] += d_out[i];
    }
}

void combine_summaries_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                                float* d_left, float* d_right, int threads) {
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (std::int64_t h = 0; h < shape.heads; ++h) {
        const std::int64_t at = h * one;
        combine_head_backward(shape, left + at, right + at, d_out + at, d_left + at, d_right + at);
    }
}

}  // namespace fenwick
