// The gradient of combine for packed layer summaries, of one pair or of all nodes of a bit (tree.cu launches those).
#include "core/cuda/check.h"
#include "kernels/cuda/backward/combine_matrix.cuh"
#include "kernels/cuda/backward/summary.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

using namespace backward;  // NOLINT(google-build-using-namespace): these files are one unit

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kProductThreads)
    combine_matrices(const HeadSizes sizes, const float* left, const float* right, const float* d_out, float* d_left,
                     float* d_right, bool transition, unsigned of_state, unsigned tiles) {
    const std::int64_t head = blockIdx.x / tiles * (sizes.transition + sizes.state);
    combine_matrix_backward(sizes, blockIdx.x % tiles, of_state, left + head, right + head, d_out + head, d_left + head,
                            d_right + head, transition);
}

// Where A is a log decay, a thread for each element of S.
__global__ void combine_states(const HeadSizes sizes, const float* right, const float* d_out, float* d_left,
                               float* d_right, unsigned parts) {
    const std::int64_t e = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (e >= sizes.state) return;
    const std::int64_t head = blockIdx.x / parts * (sizes.transition + sizes.state);
    const std::int64_t at = head + sizes.transition + e;
    d_right[at] += d_out[at];
    d_left[at] += node_decay(sizes, right + head, static_cast<int>(e) / sizes.dv) * d_out[at];
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

__global__ void __launch_bounds__(kProductThreads)
    carry_matrices(const HeadSizes sizes, const float* node, const float* state, const float* d_out, float* d_node,
                   float* d_state, unsigned of_state, unsigned tiles) {
    const std::int64_t head = blockIdx.x / tiles;
    const unsigned tile = blockIdx.x % tiles;
    const std::int64_t at = head * (sizes.transition + sizes.state);
    const float* d = d_out + head * sizes.state;
    if (tile < of_state) {
        ProductTile product(tile, sizes.dk, sizes.dv);
        product.add<true, false>(node + at, d, sizes.dk);
        product.add_to(d_state + head * sizes.state);
    } else {
        ProductTile product(tile - of_state, sizes.dk, sizes.dk);
        product.add<false, true>(d, state + head * sizes.state, sizes.dv);
        product.add_to(d_node + at);
    }
}

// Where A is a log decay, a thread for each element of the state.
__global__ void carry_states(const HeadSizes sizes, const float* node, const float* d_out, float* d_state,
                             unsigned parts) {
    const std::int64_t e = static_cast<std::int64_t>(blockIdx.x % parts) * kThreads + threadIdx.x;
    if (e >= sizes.state) return;
    const std::int64_t head = blockIdx.x / parts;
    const std::int64_t at = head * sizes.state + e;
    const float* a = node + head * (sizes.transition + sizes.state);
    d_state[at] += node_decay(sizes, a, static_cast<int>(e) / sizes.dv) * d_out[at];
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
    return static_cast<unsigned>((sizes.state + kThreads - 1) / kThreads);
}

}  // namespace

void combine_summaries_backward(const MixerShape& shape, const float* left, const float* right, const float* d_out,
                                float* d_left, float* d_right, bool transition, cudaStream_t stream) {
    const HeadSizes sizes = head_sizes(shape);
    const auto heads = static_cast<unsigned>(sizes.heads);
    if (sizes.algebra == TransitionAlgebra::kMatrix) {
        const unsigned tiles = state_tiles(sizes) + transition_tiles(sizes);
        combine_matrices<<<tiles * heads, kProductThreads, 0, stream>>>(sizes, left, right, d_out, d_left, d_right,
                                                                        transition, state_tiles(sizes), tiles);
        FENWICK_CUDA_CHECK(cudaGetLastError());
        return;
    }
    const unsigned parts = parts_of(sizes);
    combine_states<<<parts * heads, kThreads, 0, stream>>>(sizes, right, d_out, d_left, d_right, parts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    combine_log_decays<<<static_cast<unsigned>(sizes.transition) * heads, kThreads, 0, stream>>>(
        sizes, left, right, d_out, d_left, d_right, transition);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void carry_states_backward(const MixerShape& shape, const float* node, const float* state, const float* d_out,
                           float* d_node, float* d_state, cudaStream_t stream) {
    const HeadSizes sizes = head_sizes(shape);
    const auto heads = static_cast<unsigned>(sizes.heads);
    if (sizes.algebra == TransitionAlgebra::kMatrix) {
        const unsigned tiles = state_tiles(sizes) + transition_tiles(sizes);
        carry_matrices<<<tiles * heads, kProductThreads, 0, stream>>>(sizes, node, state, d_out, d_node, d_state,
                                                                      state_tiles(sizes), tiles);
        FENWICK_CUDA_CHECK(cudaGetLastError());
        return;
    }
    const unsigned parts = parts_of(sizes);
    carry_states<<<parts * heads, kThreads, 0, stream>>>(sizes, node, d_out, d_state, parts);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    carry_log_decays<<<static_cast<unsigned>(sizes.transition) * heads, kThreads, 0, stream>>>(sizes, node, state,
                                                                                               d_out, d_node);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda
