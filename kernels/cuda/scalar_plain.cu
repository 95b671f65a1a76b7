// The scalar algebra in plain fp32 sums: the checking path, and head shapes that have no matrix-unit kernel. The same
// groups and nodes as the fast path, one value a thread, no tricks.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/scalar_plan.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::scalar {
namespace {

constexpr int kThreads = 256;
constexpr int kWalkColumns = 16;
constexpr int kWalkRows = kThreads / kWalkColumns;  // rows of the state that the threads cover at once
constexpr int kMostRows = 256 / kWalkRows;          // of one thread, for key_dim 256

template <class T>
struct PlainParams {
    Plan plan;
    const T* q;
    const T* k;
    const T* v;
    std::int64_t q_stride, k_stride, v_stride;
    const float* lambda;
    std::int64_t lambda_stride;
    const double* cumulative;
    float* group_nodes;
    const float* block_nodes;
    const float* carries;
    const float* states;
    float* summaries;
    T* out;
};

__device__ float decay_between(double later, double earlier) {
    return expf(static_cast<float>(later - earlier));
}

// One CTA: 16 columns of one head's state over one block.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_walk_kernel(const __grid_constant__ PlainParams<T> p) {
    const Plan& plan = p.plan;
    const std::int64_t slices = (plan.value_dim + kWalkColumns - 1) / kWalkColumns;
    const std::int64_t slice = blockIdx.x % slices;
    const std::int64_t head = blockIdx.x / slices % plan.heads;
    const std::int64_t block = blockIdx.x / slices / plan.heads;
    const int row = static_cast<int>(threadIdx.x) / kWalkColumns;
    const std::int64_t column = slice * kWalkColumns + threadIdx.x % kWalkColumns;
    if (column >= plan.value_dim) return;
    const int rows = static_cast<int>(plan.key_dim);
    const double* cumulative = p.cumulative + head * plan.padded_rows + block * kBlockTokens;
    const bool summary = p.summaries != nullptr;
    const bool running = !plan.log_linear && !summary;  // one state that goes on, against a tree of nodes
    const std::int64_t key_column = head / plan.heads_per_key * plan.key_dim;

    float state[kMostRows] = {};
    float pending[kGroupNodeBits - 1][kMostRows];
    const auto each = [&](auto body) {
#pragma unroll
        for (int i = 0; i < kMostRows; ++i) {
            if (row + i * kWalkRows < rows) body(i, row + i * kWalkRows);
        }
    };
    const auto store = [&](std::int64_t group) {
        if (summary) return;
        float* to = p.group_nodes + (group * plan.heads + head) * plan.node_elements + column;
        each([&](int i, int r) { to[r * plan.value_dim] = state[i]; });
    };
    const auto log_at = [&](int group) { return group == 0 ? 0.0 : cumulative[group * kGroupTokens - 1]; };
    if (running) {
        const float* from = p.states + (block * plan.heads + head) * plan.node_elements + column;
        each([&](int i, int r) { state[i] = from[r * plan.value_dim]; });
    }
    for (int g = 0; g < kGroupsPerBlock; ++g) {
        const std::int64_t group = block * kGroupsPerBlock + g;
        if (group >= plan.groups) return;
        const double end = cumulative[(g + 1) * kGroupTokens - 1];
        if (running) store(group);
        const float keep = running || g % 2 != 0 ? decay_between(end, log_at(g)) : 0.0F;
        each([&](int i, int) { state[i] = keep == 0.0F ? 0.0F : keep * state[i]; });
        const std::int64_t first = group * kGroupTokens;
        const int tokens = static_cast<int>(min(static_cast<std::int64_t>(kGroupTokens), plan.rows - first));
        for (int j = 0; j < tokens; ++j) {
            const float value = decay_between(end, cumulative[g * kGroupTokens + j]) *
                                to_float(p.v[(first + j) * p.v_stride + head * plan.value_dim + column]);
            const T* key = p.k + (first + j) * p.k_stride + key_column;
            each([&](int i, int r) { state[i] = fmaf(to_float(key[r]), value, state[i]); });
        }
        if (running) continue;
        if (g % 2 != 0) {
#pragma unroll
            for (int b = 1; b < kGroupNodeBits; ++b) {
                if (((g + 1) & ((1 << b) - 1)) != 0) break;
                if (((g >> b) & 1) == 0) {
                    each([&](int i, int) { pending[b - 1][i] = state[i]; });
                    break;
                }
                const float older = decay_between(end, log_at(g + 1 - (1 << b)));
                each([&](int i, int) { state[i] = fmaf(older, pending[b - 1][i], state[i]); });
            }
        }
        if (g + 1 < kGroupsPerBlock) store(group);
    }
    if (!summary) return;
    float* to = p.summaries + (block * plan.heads + head) * (1 + plan.node_elements);
    if (slice == 0 && threadIdx.x == 0) to[0] = static_cast<float>(cumulative[kBlockTokens - 1]);
    each([&](int i, int r) { to[1 + r * plan.value_dim + column] = state[i]; });
}

constexpr int kChunk = static_cast<int>(kChunkTokens);
constexpr int kOutColumns = 64;
constexpr int kLanes = kThreads / kChunk;       // threads a row
constexpr int kPerLane = kOutColumns / kLanes;  // columns a thread

// One CTA: 64 rows by 64 columns of one head's output.
template <class T>
__global__ void __launch_bounds__(kThreads) plain_output_kernel(const __grid_constant__ PlainParams<T> p) {
    const Plan& plan = p.plan;
    extern __shared__ float memory[];
    const int dim = static_cast<int>(plan.key_dim);
    const int stride = dim + 1;
    float* scores = memory;  // [64][65]
    T* queries = reinterpret_cast<T*>(scores + kChunk * (kChunk + 1));
    T* keys = queries + kChunk * stride;

    const std::int64_t slices = (plan.value_dim + kOutColumns - 1) / kOutColumns;
    const std::int64_t slice = blockIdx.x % slices;
    const std::int64_t head = blockIdx.x / slices % plan.heads;
    const std::int64_t chunk = blockIdx.x / slices / plan.heads;
    const std::int64_t group = chunk / kGroupChunks;
    const std::int64_t block = group / kGroupsPerBlock;
    const int own = static_cast<int>(chunk % kGroupChunks);
    const int t = static_cast<int>(threadIdx.x);
    const int row = t / kLanes;
    const int lane = t % kLanes;
    const std::int64_t token = chunk * kChunk + row;
    const bool live = token < plan.rows;
    const double* cumulative = p.cumulative + head * plan.padded_rows;
    const double at_row = cumulative[token];
    const std::int64_t key_column = head / plan.heads_per_key * plan.key_dim;
    const float* lambda = live ? p.lambda + token * p.lambda_stride + head * plan.levels : nullptr;
    const auto lambda_at = [&](std::int64_t level) {
        if (!plan.log_linear) return 1.0F;
        return live ? lambda[level < plan.levels ? level : plan.levels - 1] : 0.0F;
    };
    const auto gather = [&](const T* from, std::int64_t from_stride, std::int64_t first, T* to) {
        for (int i = t; i < kChunk * dim; i += kThreads) {
            const std::int64_t r = first + i / dim;
            to[i / dim * stride + i % dim] =
                r < plan.rows ? from[r * from_stride + key_column + i % dim] : from_float<T>(0.0F);
        }
    };
    float sum[kPerLane] = {};
    gather(p.q, p.q_stride, chunk * kChunk, queries);
    for (int c = 0; c <= own; ++c) {
        const std::int64_t first = (chunk - own + c) * kChunk;
        __syncthreads();
        gather(p.k, p.k_stride, first, keys);
        __syncthreads();
        for (int j = lane; j < kChunk; j += kLanes) {
            const int i_token = own * kChunk + row;
            const int j_token = c * kChunk + j;
            float score = 0.0F;
            if (j_token <= i_token) {
                for (int r = 0; r < dim; ++r) {
                    score = fmaf(to_float(queries[row * stride + r]), to_float(keys[j * stride + r]), score);
                }
                score *= decay_between(at_row, cumulative[first + j]) * lambda_at(32 - __clz(i_token ^ j_token));
            }
            scores[row * (kChunk + 1) + j] = score;
        }
        __syncthreads();
        const int tokens = static_cast<int>(min(static_cast<std::int64_t>(kChunk), plan.rows - first));
        for (int j = 0; j < tokens; ++j) {
            const float score = scores[row * (kChunk + 1) + j];
            const T* value = p.v + (first + j) * p.v_stride + head * plan.value_dim + slice * kOutColumns;
#pragma unroll
            for (int i = 0; i < kPerLane; ++i) {
                const int c_value = lane + i * kLanes;
                if (slice * kOutColumns + c_value < plan.value_dim)
                    sum[i] = fmaf(score, to_float(value[c_value]), sum[i]);
            }
        }
    }
    const auto add_state = [&](const float* state, float factor) {
        float part[kPerLane] = {};
        for (int r = 0; r < dim; ++r) {
            const float x = to_float(queries[row * stride + r]);
#pragma unroll
            for (int i = 0; i < kPerLane; ++i) {
                const std::int64_t column = slice * kOutColumns + lane + i * kLanes;
                if (column < plan.value_dim) part[i] = fmaf(x, state[r * plan.value_dim + column], part[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sum[i] = fmaf(factor, part[i], sum[i]);
    };
    const double* in_block = cumulative + block * kBlockTokens;
    if (plan.log_linear) {
        const std::int64_t number = plan.first_block * kGroupsPerBlock + group;
        for (int bit = 0; number >> bit != 0; ++bit) {
            if (((number >> bit) & 1) == 0) continue;
            const Plan::NodePlace place = plan.place(group, bit);
            const float lambda_bit = lambda_at(kGroupBits + 1 + bit);
            if (place.inside_block) {
                const double start = in_block[(place.slot % kGroupsPerBlock + 1) * kGroupTokens - 1];
                add_state(p.group_nodes + (place.slot * plan.heads + head) * plan.node_elements,
                          lambda_bit * decay_between(at_row, start));
            } else {
                const float carry = p.carries[(block * plan.heads + head) * kMaxNodes + bit - kGroupNodeBits];
                add_state(p.block_nodes + (place.slot * plan.heads + head) * plan.node_elements,
                          lambda_bit * expf(static_cast<float>(at_row + static_cast<double>(carry))));
            }
        }
    } else {
        const std::int64_t g = group % kGroupsPerBlock;
        add_state(p.group_nodes + (group * plan.heads + head) * plan.node_elements,
                  decay_between(at_row, g == 0 ? 0.0 : in_block[g * kGroupTokens - 1]));
    }
    if (!live) return;
    T* to = p.out + token * plan.heads * plan.value_dim + head * plan.value_dim + slice * kOutColumns;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        if (slice * kOutColumns + lane + i * kLanes < plan.value_dim) to[lane + i * kLanes] = from_float<T>(sum[i]);
    }
}

template <class T>
PlainParams<T> make_params(const Plan& plan, const MixerCall& call) {
    const MixerInputs& in = call.inputs;
    PlainParams<T> p{};
    p.plan = plan;
    p.q = static_cast<const T*>(in.q);
    p.k = static_cast<const T*>(in.k);
    p.v = static_cast<const T*>(in.v);
    p.q_stride = in.q_stride;
    p.k_stride = in.k_stride;
    p.v_stride = in.v_stride;
    p.lambda = in.lambda;
    p.lambda_stride = in.lambda_stride;
    p.cumulative = at<double>(call.workspace, plan.cumulative);
    p.group_nodes = at<float>(call.workspace, plan.group_nodes);
    p.block_nodes = at<float>(call.workspace, plan.block_nodes);
    p.carries = at<float>(call.workspace, plan.carries);
    p.states = at<float>(call.workspace, plan.states);
    return p;
}

}  // namespace

void launch_plain_walk(const Plan& plan, const MixerCall& call, std::int64_t blocks, float* summaries) {
    const std::int64_t slices = (plan.value_dim + kWalkColumns - 1) / kWalkColumns;
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        PlainParams<T> p = make_params<T>(plan, call);
        p.summaries = summaries;
        plain_walk_kernel<T><<<static_cast<unsigned>(blocks * plan.heads * slices), kThreads, 0, call.stream>>>(p);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

void launch_plain_outputs(const Plan& plan, const MixerCall& call, void* out) {
    const std::int64_t slices = (plan.value_dim + kOutColumns - 1) / kOutColumns;
    const std::int64_t chunks = (plan.rows + kChunk - 1) / kChunk;
    const auto bytes = static_cast<int>(2 * kChunk * (plan.key_dim + 1) * operand_size(call.operand) +
                                        kChunk * (kChunk + 1) * std::int64_t{4});
    with_operand(call.operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        PlainParams<T> p = make_params<T>(plan, call);
        p.out = static_cast<T*>(out);
        allow_shared(plain_output_kernel<T>, bytes);
        plain_output_kernel<T>
            <<<static_cast<unsigned>(chunks * plan.heads * slices), kThreads, bytes, call.stream>>>(p);
    });
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::scalar
