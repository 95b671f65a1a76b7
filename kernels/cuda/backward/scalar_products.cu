// N, dN and dE: products over runs of chunks, K^T (e V) or Q^T (lambda e dO), with the sum in registers.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/backward/scalar.h"
#include "kernels/cuda/backward/state_tiles.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

// kColumns: neighbouring columns of work, of one key head, that share the tiles of K or Q.
template <int kKeyDim, int kColumns>
struct Products {
    static constexpr int kThreads = 2 * kKeyDim;  // a warpgroup for 64 rows of the state
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    static constexpr int kStageBytes = kKeyBytes + kColumns * kPanelBytes;
    static constexpr int kStages = kColumns == 1 ? 4 : 3;
    static constexpr int kWeights = kStages * kStageBytes;  // of two steps: fp32 [columns][64]
    static constexpr int kBytes = 1024 + kWeights + 2 * kColumns * kChunk * 4;
};

// A job of a block and column: the runs of one bit, or (job >= kRunBits) what one entering state gets.
struct Job {
    int bit;    // of the chunks' numbers; kRunBits: the whole block is one run
    int side;   // 0: left runs, 1: right runs
    int steps;  // chunks in all
    int level;  // of lambda
    __device__ __forceinline__ int chunk(int step) const {
        if (bit == kRunBits) return step;
        return ((2 * (step >> bit) + side) << bit) + (step & ((1 << bit) - 1));
    }
    /// The chunk that follows the left run of the step's pair.
    __device__ __forceinline__ int end(int step) const { return (2 * (step >> bit) + 1) << bit; }
};

__device__ __forceinline__ Job job_of(const Scalar& s, int number, bool gradients, std::int64_t block, int chunks) {
    Job job;
    job.bit = min(number, kRunBits);
    job.side = gradients ? 1 : 0;
    job.level = min(kChunkBits + 1 + number, s.levels - 1);
    if (number < kRunBits) {
        const int pairs = (((chunks - 1) >> number) + 1) >> 1;  // those with a token on the right
        job.steps = pairs << number;
        if (gradients) job.steps -= max(0, ((2 * pairs) << number) - chunks);
        return job;
    }
    job.steps = chunks;
    // The slot's bit of the block's number, largest first.
    std::int64_t bits = s.call.first_block + block;
    for (int slot = number - kRunBits; bits != 0; --slot) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        job.level = min(kBlockBits + 1 + bit, s.levels - 1);
        if (slot == 0) return job;
        if (s.linear) break;
    }
    job.steps = 0;
    return job;
}

// What a thread loads for a row's weight, a step before it is needed.
struct RowWeight {
    double at = 0.0;    // G
    double node = 0.0;  // G where the run ends
    float lambda = 0.0F;
};

// A thread block: one job of one block and its columns.
template <int kKeyDim, int kColumns, bool kGradients>
__global__ void __launch_bounds__(Products<kKeyDim, kColumns>::kThreads, 256 / kKeyDim)
    products_kernel(const __grid_constant__ Scalar s, int jobs) {
    using C = Products<kKeyDim, kColumns>;
    constexpr int kStages = C::kStages;
    extern __shared__ char memory[];
    const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (base - shared_address(memory));
    auto* weights = reinterpret_cast<float*>(aligned + C::kWeights);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int warpgroup = t / 128;

    const auto groups = static_cast<unsigned>(s.columns / kColumns);
    const int column = static_cast<int>(blockIdx.x % groups) * kColumns;                                // the first
    const int number = jobs - 1 - static_cast<int>(blockIdx.x / groups % static_cast<unsigned>(jobs));  // longest first
    const std::int64_t in_batch = blockIdx.x / (groups * static_cast<unsigned>(jobs));
    const std::int64_t block = s.batch_block + in_batch;
    const std::int64_t first = block * kBlockTokens;
    const int rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const int chunks = (rows + kChunk - 1) / kChunk;
    const Job job = job_of(s, number, kGradients, block, chunks);
    if (job.steps <= 0) return;

    const auto* left = static_cast<const __nv_bfloat16*>(kGradients ? s.call.inputs.q : s.call.inputs.k);
    const auto* right = static_cast<const __nv_bfloat16*>(kGradients ? s.call.d_out : s.call.inputs.v);
    const std::int64_t left_stride = kGradients ? s.call.inputs.q_stride : s.call.inputs.k_stride;
    const std::int64_t right_stride = kGradients ? s.call.d_out_stride : s.call.inputs.v_stride;
    const __nv_bfloat16* left_from =
        left + first * left_stride + static_cast<std::int64_t>(column / s.tiles / s.heads_per_key) * kKeyDim;
    right += first * right_stride;
    constexpr int kPieces = kKeyDim / 8;
    const auto load = [&](int step) {
        if (step < job.steps) {
            const std::uint32_t to = base + step % kStages * C::kStageBytes;
            const int token = job.chunk(step) * kChunk;
            copy_rows<kPieces, C::kThreads>(to, left_from + token * left_stride, left_stride, rows - token, kPieces, t);
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                const int tile = (column + i) % s.tiles * 64;
                copy_rows<8, C::kThreads>(to + C::kKeyBytes + i * kPanelBytes,
                                          right + token * right_stride +
                                              static_cast<std::int64_t>((column + i) / s.tiles) * s.value_dim + tile,
                                          right_stride, rows - token, (s.value_dim - tile) / 8, t);
            }
        }
        copy_async_commit();
    };
    for (int step = 0; step < kStages - 1; ++step) load(step);

    // What the rows are scaled by: thread t has row t % 64 of column t / 64, two steps ahead.
    RowWeight next;
    const auto load_weight = [&](int step) {
        if (step >= job.steps || t >= kColumns * kChunk) return;
        const int head = (column + t / kChunk) / s.tiles;
        const double* cumulative = s.cumulative + head * s.padded_rows + first;
        const int token = job.chunk(step) * kChunk + t % kChunk;
        next.at = cumulative[token];
        next.node = job.bit == kRunBits ? 0.0 : cumulative[job.end(step) * kChunk - 1];
        if (kGradients && !s.linear) {
            next.lambda = token < rows ? __ldg(s.call.inputs.lambda + (first + token) * s.call.inputs.lambda_stride +
                                               static_cast<std::int64_t>(head) * s.levels + job.level)
                                       : 0.0F;
        }
    };
    const auto store_weight = [&](int step) {
        if (step >= job.steps || t >= kColumns * kChunk) return;
        float weight = __expf(static_cast<float>(kGradients ? next.at - next.node : next.node - next.at));
        if (kGradients && !s.linear) weight *= next.lambda;
        weights[step % 2 * kColumns * kChunk + t] = weight;
    };
    load_weight(0);
    store_weight(0);
    load_weight(1);
    __syncthreads();

    float state[kColumns][32] = {};
    const int row = 64 * warpgroup + 16 * warp + lane / 4;  // of the state; and row + 8
    for (int step = 0; step < job.steps; ++step) {
        const int stage = step % kStages * C::kStageBytes;
        store_weight(step + 1);
        load_weight(step + 2);
        copy_async_wait<kStages - 2>();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            for (int piece = t; piece < kChunk * 8; piece += C::kThreads) {  // each thread scales what it copied
                const float weight = weights[(step % 2 * kColumns + i) * kChunk + piece / 8];
                auto* at = reinterpret_cast<uint4*>(aligned + stage + C::kKeyBytes + i * kPanelBytes +
                                                    tile_offset(piece / 8, piece % 8));
                const uint4 x = *at;
                const auto scaled = [&](std::uint32_t both) {
                    return pack_bf16(low_bf16(both) * weight, high_bf16(both) * weight);
                };
                *at = make_uint4(scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w));
            }
        }
        fence_for_wgmma();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
            issue_transposed_product(state[i], base + stage + warpgroup * kPanelBytes,
                                     base + stage + C::kKeyBytes + i * kPanelBytes, warp, lane);
        }
        product_commit();
        load(step + kStages - 1);  // the stage of the step before, which every warp has left
        product_wait<0>();
#pragma unroll
        for (int i = 0; i < kColumns; ++i) product_done(state[i]);
        const bool last = step + 1 == job.steps;
        if (job.bit == kRunBits) {
            if (!last) continue;
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                const int head = (column + i) / s.tiles;
                const int tile = (column + i) % s.tiles * 64;
                float* to = s.d_entering + ((in_batch * s.slots + number - kRunBits) * s.heads + head) *
                                               static_cast<std::int64_t>(kKeyDim) * s.value_dim;
#pragma unroll
                for (int j = 0; j < 32; ++j) {
                    const int r = row + (j & 2) * 4;
                    const int c = tile + j / 4 * 8 + lane % 4 * 2 + (j & 1);
                    if (c < s.value_dim) to[r * s.value_dim + c] = state[i][j];
                }
            }
        } else if (last || ((step + 1) & ((1 << job.bit) - 1)) == 0) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                __nv_bfloat16* node =
                    (kGradients ? s.d_nodes : s.nodes) +
                    ((in_batch * kChunks + job.end(step)) * s.columns + column + i) * s.state_elements();
                store_tile(state[i], node, row, lane);
#pragma unroll
                for (float& x : state[i]) x = 0.0F;
            }
        }
    }
}

template <int kKeyDim, int kColumns, bool kGradients>
void launch_columns(const Scalar& s, int jobs) {
    using C = Products<kKeyDim, kColumns>;
    const auto kernel = products_kernel<kKeyDim, kColumns, kGradients>;
    allow_shared(kernel, C::kBytes);
    const auto blocks = static_cast<unsigned>(s.batch_blocks * jobs * s.columns / kColumns);
    kernel<<<blocks, C::kThreads, C::kBytes, s.call.stream>>>(s, jobs);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kKeyDim, bool kGradients>
void launch(const Scalar& s) {
    const int jobs = kRunBits + (kGradients ? s.slots : 0);
    const bool pairs = s.heads_per_key * s.tiles % 2 == 0;
    (pairs ? launch_columns<kKeyDim, 2, kGradients> : launch_columns<kKeyDim, 1, kGradients>)(s, jobs);
}

}  // namespace

void launch_nodes(const Scalar& s) {
    (s.key_dim == 64 ? launch<64, false> : launch<128, false>)(s);
}

void launch_node_gradients(const Scalar& s) {
    (s.key_dim == 64 ? launch<64, true> : launch<128, true>)(s);
}

void launch_state_tiles(const Scalar& s, const float* from, std::int64_t head_stride, std::int64_t states) {
    launch_state_tiles(from, head_stride, s.entering, states * s.columns, s.tiles, s.key_dim, s.value_dim,
                       s.call.stream);
}

}  // namespace fenwick::cuda::backward
