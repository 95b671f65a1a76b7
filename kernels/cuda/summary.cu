#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/summary.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostPairs = 65535;  // of a grid's third dimension

/// transition: 1 (scalar) or d_k (diagonal). One thread for each element of a head's (A, S); a pair for each
/// blockIdx.z, children `pair_stride` apart.
__global__ void combine_decays(const float* left, const float* right, float* out, std::int64_t transition,
                               std::int64_t value_dim, std::int64_t head_floats, std::int64_t pair_stride,
                               std::int64_t out_stride) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= head_floats) return;
    const std::int64_t head = blockIdx.y * head_floats;
    const float* l = left + blockIdx.z * pair_stride + head;
    const float* r = right + blockIdx.z * pair_stride + head;
    float* o = out + blockIdx.z * out_stride + head;
    if (i < transition) {
        o[i] = r[i] + l[i];
        return;
    }
    const std::int64_t row = transition == 1 ? 0 : (i - transition) / value_dim;
    const float decay = expf(fmaxf(r[row], -1000.0F));
    o[i] = fmaf(decay, l[i], r[i]);
}

void launch_decays(const MixerShape& shape, const float* left, const float* right, std::int64_t pairs, float* out,
                   std::int64_t pair_stride, cudaStream_t stream) {
    const std::int64_t head_floats = transition_floats(shape) + state_floats(shape);
    const std::int64_t out_stride = summary_floats(shape);
    for (std::int64_t first = 0; first < pairs; first += kMostPairs) {
        const dim3 blocks(static_cast<unsigned>((head_floats + kThreads - 1) / kThreads),
                          static_cast<unsigned>(shape.heads),
                          static_cast<unsigned>(std::min(kMostPairs, pairs - first)));
        combine_decays<<<blocks, kThreads, 0, stream>>>(left + first * pair_stride, right + first * pair_stride,
                                                        out + first * out_stride, transition_floats(shape),
                                                        shape.value_dim, head_floats, pair_stride, out_stride);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    }
}

}  // namespace

// The matrix algebra's nodes are formed by the one kernel that also forms a shard's nodes inside the mixer: the pairs
// are given to it as blocks of a shard of their own.

void combine_summaries(const MixerShape& shape, const float* left, const float* right, float* out,
                       cudaStream_t stream) {
    if (shape.algebra != TransitionAlgebra::kMatrix) {
        return launch_decays(shape, left, right, 1, out, summary_floats(shape), stream);
    }
    // Block 2 was carried in, block 3 is the shard's: their parent is node (1, 1).
    matrix::Nodes nodes;
    nodes.first_block = 3;
    nodes.last_block = 4;
    nodes.layer = summary_floats(shape);
    nodes.entering[0] = left;
    nodes.blocks = right;
    nodes.formed[1] = out;
    matrix::launch_combine(shape, nodes, 1, stream);
}

void combine_sibling_summaries(const MixerShape& shape, const float* children, std::int64_t pairs, float* out,
                               cudaStream_t stream) {
    if (pairs == 0) return;
    const std::int64_t floats = summary_floats(shape);
    if (shape.algebra != TransitionAlgebra::kMatrix) {
        return launch_decays(shape, children, children + floats, pairs, out, 2 * floats, stream);
    }
    matrix::Nodes nodes;
    nodes.first_block = 2;
    nodes.last_block = 2 + 2 * pairs;
    nodes.layer = floats;
    nodes.blocks = children;
    nodes.formed[1] = out;
    matrix::launch_combine(shape, nodes, 1, stream);
}

}  // namespace fenwick::cuda
