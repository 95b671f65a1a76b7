// The gradient of combine for packed layer summaries, of one pair or of all nodes of a bit (tree.cu launches those).
#include "core/cuda/check.h"
#include "kernels/cuda/backward/combine.cuh"
#include "kernels/cuda/backward/summary.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

using namespace backward;  // NOLINT(google-build-using-namespace): these files are one unit

constexpr int kThreads = 256;

// A thread for each element of a head's (A, S): all but the log decays.
__global__ void combine_elements(const HeadSizes sizes, const float* left, const float* right, const float* d_out,
                                 float* d_left, float* d_right, bool transition, unsigned parts) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (i >= sizes.transition + sizes.state) return;
    const std::int64_t head = blockIdx.x / parts * (sizes.transition + sizes.state);
    const float* a_right = right + head;
    const float* ds = d_out + head + sizes.transition;
    if (i >= sizes.transition) {
        const auto e = static_cast<int>(i - sizes.transition);
        d_right[head + i] += ds[e];
        d_left[head + i] += apply_transposed(sizes, a_right, ds, e / sizes.dv, e % sizes.dv, sizes.dv);
        return;
    }
    if (sizes.algebra != TransitionAlgebra::kMatrix) return;
    const int row = static_cast<int>(i) / sizes.dk;
    const int column = static_cast<int>(i) % sizes.dk;
    float sum = outer(ds, left + head + sizes.transition, row, column, sizes.dv);
    if (transition) {
        sum += outer(d_out + head, left + head, row, column, sizes.dk);
        d_left[head + i] += apply_transposed(sizes, a_right, d_out + head, row, column, sizes.dk);
    }
    d_right[head + i] += sum;
}

// A thread block for each log decay.
__global__ void combine_log_decays(const HeadSizes sizes, const float* left, const float* right, const float* d_out,
                                   float* d_left, float* d_right, bool transition) {
    __shared__ float scratch[32];
    const int part = static_cast<int>(blockIdx.x) % static_cast<int>(sizes.transition);
    const std::int64_t head = blockIdx.x / sizes.transition * (sizes.transition + sizes.state);
    const float sum =
        decay_gradient(sizes, right + head, d_out + head + sizes.transition, left + head + sizes.transition, part,
                       [&](float x) { return block_sum(x, scratch); });
    if (threadIdx.x != 0) return;
    const float d = transition ? d_out[head + part] : 0.0F;
    if (right[head + part] != -INFINITY) d_right[head + part] += sum + d;
    if (transition && left[head + part] != -INFINITY) d_left[head + part] += d;
}

__global__ void carry_elements(const HeadSizes sizes, const float* node, const float* state, const float* d_out,
                               float* d_node, float* d_state, unsigned parts) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (i >= sizes.transition + sizes.state) return;
    const std::int64_t head = blockIdx.x / parts;
    const std::int64_t at = head * (sizes.transition + sizes.state);
    const float* d = d_out + head * sizes.state;
    if (i >= sizes.transition) {
        const auto e = static_cast<int>(i - sizes.transition);
        d_state[head * sizes.state + e] += apply_transposed(sizes, node + at, d, e / sizes.dv, e % sizes.dv, sizes.dv);
    } else if (sizes.algebra == TransitionAlgebra::kMatrix) {
        d_node[at + i] += outer(d, state + head * sizes.state, static_cast<int>(i) / sizes.dk,
                                static_cast<int>(i) % sizes.dk, sizes.dv);
    }
}

__global__ void carry_log_decays(const HeadSizes sizes, const float* node, const float* state, const float* d_out,
                                 float* d_node) {
    __shared__ float scratch[32];
    const int part = static_cast<int>(blockIdx.x) % static_cast<int>(sizes.transition);
    const std::int64_t head = blockIdx.x / sizes.transition;
    const std::int64_t at = head * (sizes.transition + sizes.state);
    const float sum = decay_gradient(sizes, node + at, d_out + head * sizes.state, state + head * sizes.state, part,
                                     [&](float x) { return block_sum(x, scratch); });
    if (threadIdx.x == 0) d_node[at + part] += sum;
}

unsigned parts_of(const HeadSizes& sizes) {
    return static_cast<unsigned>((sizes.transition + sizes.state + kThreads - 1) / kThreads);
}

}  // namespace

void combine_summaries_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                                float* d_left, float* d_right, bool transition, cudaStream_t stream) {
    const HeadSizes sizes = head_sizes(shape);
    const unsigned parts = parts_of(sizes);
    const auto heads = static_cast<unsigned>(sizes.heads);
    combine_elements<<<parts * heads, kThreads, 0, stream>>>(sizes, left, right, d_out, d_left, d_right, transition,
                                                             parts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (sizes.algebra == TransitionAlgebra::kMatrix) return;
    combine_log_decays<<<static_cast<unsigned>(sizes.transition) * heads, kThreads, 0, stream>>>(
        sizes, left, right, d_out, d_left, d_right, transition);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void carry_states_backward(const MixerShape& shape, const float* node, const float* state, const float* d_out,
                           float* d_node, float* d_state, cudaStream_t stream) {
    const HeadSizes sizes = head_sizes(shape);
    const unsigned parts = parts_of(sizes);
    const auto heads = static_cast<unsigned>(sizes.heads);
    carry_elements<<<parts * heads, kThreads, 0, stream>>>(sizes, node, state, d_out, d_node, d_state, parts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    if (sizes.algebra == TransitionAlgebra::kMatrix) return;
    carry_log_decays<<<static_cast<unsigned>(sizes.transition) * heads, kThreads, 0, stream>>>(sizes, node, state,
                                                                                               d_out, d_node);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
