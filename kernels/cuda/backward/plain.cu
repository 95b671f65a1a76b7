#include <algorithm>

#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/backward/plain_walker.cuh"
#include "kernels/cuda/backward/sum_heads.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/summary.h"

namespace fenwick::cuda::backward {
namespace {

using namespace plain;  // NOLINT(google-build-using-namespace): these files are one unit

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) outputs_kernel(const __grid_constant__ Params<T> p) {
    extern __shared__ float shared[];
    Walker<T, kRows> walker(p, shared);
    for (int bit = 0; bit < kBlockBits; ++bit) {
        if (walker.rows <= 1 << bit) break;
        WalkOf walk;
        walk.bit = bit;
        walk.reads = walk.writes = true;
        walk.level = min(bit + 1, p.levels - 1);
        walk.columns = p.dv;
        walker.run(walk);
    }
    const std::int64_t number = p.first_block + walker.block;
    std::int64_t bits = number;
    for (int slot = 0; bits != 0; ++slot) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        const std::int64_t at =
            ((walker.block * p.slots + slot) * p.heads + walker.head) * static_cast<std::int64_t>(p.dk) * p.dv;
        WalkOf walk;
        walk.reads = true;
        walk.level = min(kBlockBits + 1 + bit, p.levels - 1);
        walk.columns = p.dv;
        walk.first = p.states + at;
        walk.d_first = p.d_states + at;
        walker.run(walk);
        if (p.linear) break;
    }
}

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads) summaries_kernel(const __grid_constant__ Params<T> p) {
    extern __shared__ float shared[];
    __shared__ float scratch[32];
    Walker<T, kRows> walker(p, shared);
    const std::int64_t state = static_cast<std::int64_t>(p.dk) * p.dv;
    const float* d = p.d_summaries + (walker.block * p.heads + walker.head) * (p.transition + state);
    WalkOf walk;
    walk.writes = true;
    walk.columns = p.dv;
    walk.d_last = d + p.transition;
    walker.run(walk);
    if (p.first_block + walker.block == 0) return;  // nothing is older than the document's first block
    float everywhere = 0.0F;                        // what every log decay of the block gets
    if (walker.matrix) {
        WalkOf transition;
        transition.columns = p.dk;
        transition.identity = true;
        transition.d_last = d;
        // <dA, A> before the block: the trace of what comes back, which takes the place of a d_q that nobody needs.
        transition.d_first = walker.d_q_row(0);
        walker.run(transition);
        __syncthreads();
        float sum = 0.0F;
        for (int i = static_cast<int>(threadIdx.x); i < p.dk; i += kThreads) sum += walker.d_q_row(0)[i * p.dk + i];
        everywhere = block_sum(sum, scratch);
    }
    for (int i = static_cast<int>(threadIdx.x); i < walker.rows * walker.channels(); i += kThreads) {
        const int channel = i % walker.channels();
        p.gradients.log_decay[(walker.first + i / walker.channels()) * p.gradients.decay_stride +
                              (walker.diagonal ? std::int64_t{walker.head} * p.dk + channel : walker.head)] +=
            walker.matrix ? everywhere : d[channel];
    }
}

// Level 0: a warp for each token and head.
template <class T>
__global__ void __launch_bounds__(kThreads) own_kernel(const __grid_constant__ Params<T> p, int blocks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t begin = p.batch_block * kTokens;
    const std::int64_t end = min(p.rows, begin + static_cast<std::int64_t>(blocks) * kTokens);
    const std::int64_t work = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    const std::int64_t token = begin + work / p.heads;
    if (token >= end) return;
    const auto head = static_cast<int>(work % p.heads);
    const T* q = p.q + token * p.q_stride + static_cast<std::int64_t>(head / p.heads_per_key) * p.dk;
    const T* k = p.k + token * p.k_stride + static_cast<std::int64_t>(head / p.heads_per_key) * p.dk;
    const T* v = p.v + token * p.v_stride + static_cast<std::int64_t>(head) * p.dv;
    const T* d = p.d_out + token * p.d_out_stride + static_cast<std::int64_t>(head) * p.dv;
    float q_k = 0.0F;
    for (int c = lane; c < p.dk; c += 32) q_k = fmaf(to_float(q[c]), to_float(k[c]), q_k);
    q_k = sum_lanes(q_k);
    float d_v = 0.0F;
    for (int c = lane; c < p.dv; c += 32) d_v = fmaf(to_float(d[c]), to_float(v[c]), d_v);
    d_v = sum_lanes(d_v);
    const bool matrix = p.algebra == TransitionAlgebra::kMatrix;
    const float b = matrix ? p.beta[token * p.beta_stride + head] : 1.0F;
    const float lambda =
        p.linear ? 1.0F : p.lambda[token * p.lambda_stride + static_cast<std::int64_t>(head) * p.levels];
    if (lane == 0) {
        if (matrix) p.gradients.beta[token * p.gradients.beta_stride + head] += lambda * q_k * d_v;
        if (!p.linear) {
            p.gradients.lambda[token * p.gradients.lambda_stride + static_cast<std::int64_t>(head) * p.levels] +=
                b * q_k * d_v;
        }
    }
    const std::int64_t block = token / kTokens - p.batch_block;
    const std::int64_t row = ((block * p.heads + head) * kTokens + token % kTokens) * p.dk;
    for (int c = lane; c < p.dk; c += 32) {
        p.workspace.d_q[row + c] += lambda * b * d_v * to_float(k[c]);
        p.workspace.d_k[row + c] += lambda * b * d_v * to_float(q[c]);
    }
    float* to = p.gradients.v + token * p.gradients.v_stride + static_cast<std::int64_t>(head) * p.dv;
    for (int c = lane; c < p.dv; c += 32) to[c] += lambda * b * q_k * to_float(d[c]);
}

template <class T>
Params<T> params_of(const Call& call, const PlainWorkspace& workspace) {
    const MixerInputs& in = call.inputs;
    Params<T> p{};
    p.q = static_cast<const T*>(in.q);
    p.k = static_cast<const T*>(in.k);
    p.v = static_cast<const T*>(in.v);
    p.log_decay = in.log_decay;
    p.beta = in.beta;
    p.lambda = in.lambda;
    p.d_out = static_cast<const T*>(call.d_out);
    p.q_stride = in.q_stride;
    p.k_stride = in.k_stride;
    p.v_stride = in.v_stride;
    p.decay_stride = in.decay_stride;
    p.beta_stride = in.beta_stride;
    p.lambda_stride = in.lambda_stride;
    p.d_out_stride = call.d_out_stride;
    p.rows = in.rows;
    p.gradients = call.gradients;
    p.algebra = call.shape.algebra;
    p.heads = static_cast<int>(call.shape.heads);
    p.heads_per_key = static_cast<int>(call.shape.heads / call.shape.key_heads);
    p.dk = static_cast<int>(call.shape.key_dim);
    p.dv = static_cast<int>(call.shape.value_dim);
    p.levels = static_cast<int>(call.shape.levels);
    p.first_block = call.first_block;
    p.linear = !call.shape.log_linear();
    p.transition = transition_floats(call.shape);
    p.workspace = workspace;
    return p;
}

// body(params, blocks): the blocks of the shard, as many at a time as the workspace takes; their d_q and d_k are
// zero before it and go to the key heads after it. (In the summaries' step d_q is scratch.)
template <class T, class Body>
void in_batches(const Call& call, const PlainWorkspace& workspace, std::int64_t blocks, bool summaries,
                const Body& body) {
    Params<T> p = params_of<T>(call, workspace);
    for (std::int64_t b = 0; b < blocks; b += workspace.blocks_at_once) {
        const std::int64_t count = std::min(workspace.blocks_at_once, blocks - b);
        const std::int64_t floats = count * call.shape.heads * kBlockTokens * call.shape.key_dim;
        for (float* part : {workspace.d_q, workspace.d_k}) {
            FENWICK_CUDA_CHECK(cudaMemsetAsync(part, 0, static_cast<std::size_t>(floats) * sizeof(float), call.stream));
        }
        p.batch_block = b;
        body(p, count);
        FENWICK_CUDA_CHECK(cudaGetLastError());
        const std::int64_t rows = std::min(count * kBlockTokens, call.inputs.rows - b * kBlockTokens);
        const HeadShares shares{call.shape, kBlockTokens, rows};
        if (!summaries) {
            launch_sum_heads(shares, workspace.d_q, call.gradients.q + b * kBlockTokens * call.gradients.q_stride,
                             call.gradients.q_stride, call.stream);
        }
        launch_sum_heads(shares, workspace.d_k, call.gradients.k + b * kBlockTokens * call.gradients.k_stride,
                         call.gradients.k_stride, call.stream);
    }
}

// body(a number as a type): rows of the state for each warp.
template <class Body>
void with_rows(std::int64_t key_dim, const Body& body) {
    if (key_dim <= 4 * kWarps) return body(std::integral_constant<int, 4>());
    if (key_dim <= 8 * kWarps) return body(std::integral_constant<int, 8>());
    if (key_dim <= 16 * kWarps) return body(std::integral_constant<int, 16>());
    body(std::integral_constant<int, 32>());
}

template <class T, int kRows, class Kernel>
void launch_walks(Kernel* kernel, const Params<T>& p, std::int64_t blocks, cudaStream_t stream) {
    constexpr int kBytes = Walker<T, kRows>::kSharedFloats * static_cast<int>(sizeof(float));
    allow_shared(kernel, kBytes);
    kernel<<<static_cast<unsigned>(blocks * p.heads), kThreads, kBytes, stream>>>(p);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

PlainWorkspace make_plain_workspace(const MixerShape& shape, std::int64_t rows, Carver& carver) {
    const std::int64_t most_floats = most_batch_bytes() / 16;  // a quarter of that: the walks take long enough
    const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
    const std::int64_t channels = shape.algebra == TransitionAlgebra::kDiagonal ? shape.key_dim : 1;
    const std::int64_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    const std::int64_t token = shape.heads * (2 * shape.key_dim + channels + (matrix ? 2 * kColumns : 0));
    PlainWorkspace w;
    w.blocks_at_once =
        std::clamp<std::int64_t>(most_floats / (token * kBlockTokens), 1, std::max<std::int64_t>(blocks, 1));
    const std::int64_t tokens = w.blocks_at_once * shape.heads * kBlockTokens;
    w.d_q = carver.take<float>(tokens * shape.key_dim);
    w.d_k = carver.take<float>(tokens * shape.key_dim);
    w.pairs = carver.take<float>(tokens * channels);
    if (matrix) {
        w.p = carver.take<float>(tokens * kColumns);
        w.r = carver.take<float>(tokens * kColumns);
    }
    return w;
}

void launch_plain_outputs(const Call& call, const Tree& tree, const PlainWorkspace& workspace) {
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        in_batches<T>(call, workspace, tree.blocks, false, [&](Params<T>& p, std::int64_t blocks) {
            p.states = tree.entered_by(0);
            p.d_states = tree.d_entered_by(0);
            p.slots = tree.slots;
            const std::int64_t warps = blocks * kBlockTokens * call.shape.heads;
            own_kernel<T>
                <<<static_cast<unsigned>(warps / kWarps), kThreads, 0, call.stream>>>(p, static_cast<int>(blocks));
            FENWICK_CUDA_CHECK(cudaGetLastError());
            with_rows(call.shape.key_dim, [&](auto rows) {
                launch_walks<T, rows.value>(outputs_kernel<T, rows.value>, p, blocks, call.stream);
            });
        });
    });
}

void launch_plain_summaries(const Call& call, std::int64_t blocks, const float* d_summaries,
                            const PlainWorkspace& workspace) {
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        in_batches<T>(call, workspace, blocks, true, [&](Params<T>& p, std::int64_t count) {
            p.d_summaries = d_summaries;
            with_rows(call.shape.key_dim, [&](auto rows) {
                launch_walks<T, rows.value>(summaries_kernel<T, rows.value>, p, count, call.stream);
            });
        });
    });
}

}  // namespace fenwick::cuda::backward
