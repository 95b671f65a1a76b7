#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/summary.h"
#include "kernels/cuda/summary_matrix.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostPairs = 65535;  // of a grid's second dimension

/// transition: 1 (scalar) or d_k (diagonal). One thread for each element of a head's (A, S), `parts` thread blocks a
/// head; a pair for each blockIdx.y, children `pair_stride` apart.
__global__ void combine_decays(const float* left, const float* right, float* out, std::int64_t transition,
                               std::int64_t value_dim, std::int64_t head_floats, unsigned parts,
                               std::int64_t pair_stride, std::int64_t out_stride) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (i >= head_floats) return;
    const std::int64_t head = blockIdx.x / parts * head_floats;
    const float* l = left + blockIdx.y * pair_stride + head;
    const float* r = right + blockIdx.y * pair_stride + head;
    float* o = out + blockIdx.y * out_stride + head;
    if (i < transition) {
        o[i] = r[i] + l[i];
        return;
    }
    const std::int64_t row = transition == 1 ? 0 : (i - transition) / value_dim;
    const float decay = expf(fmaxf(r[row], -1000.0F));
    o[i] = fmaf(decay, l[i], r[i]);
}

void combine_decay_pairs(const MixerShape& shape, const float* left, const float* right, std::int64_t pairs,
                         std::int64_t pair_stride, float* out, cudaStream_t stream) {
    const std::int64_t head_floats = transition_floats(shape) + state_floats(shape);
    const std::int64_t out_stride = summary_floats(shape);
    const auto parts = static_cast<unsigned>((head_floats + kThreads - 1) / kThreads);
    for (std::int64_t first = 0; first < pairs; first += kMostPairs) {
        const dim3 blocks(parts * static_cast<unsigned>(shape.heads),
                          static_cast<unsigned>(std::min(kMostPairs, pairs - first)));
        combine_decays<<<blocks, kThreads, 0, stream>>>(left + first * pair_stride, right + first * pair_stride,
                                                        out + first * out_stride, transition_floats(shape),
                                                        shape.value_dim, head_floats, parts, pair_stride, out_stride);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    }
}

}  // namespace

void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out,
                       cudaStream_t stream) {
    const auto combine = shape.algebra == TransitionAlgebra::kMatrix ? combine_matrix_pairs : combine_decay_pairs;
    combine(shape, left, right, 1, 0, out, stream);
}

void combine_sibling_summaries(const MixerShape& shape, const float* children, std::int64_t pairs, float* out,
                               cudaStream_t stream) {
    const std::int64_t floats = summary_floats(shape);
    const auto combine = shape.algebra == TransitionAlgebra::kMatrix ? combine_matrix_pairs : combine_decay_pairs;
    combine(shape, children, children + floats, pairs, 2 * floats, out, stream);
}

}  // namespace fenwick::cuda
