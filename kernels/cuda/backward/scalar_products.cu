// N, dN and dE: products over runs of chunks, K^T (e V) or Q^T (lambda e dO), with the sum in registers.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/backward/scalar.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

constexpr int kStages = 4;

template <int kKeyDim>
struct Products {
    static constexpr int kThreads = 2 * kKeyDim;  // a warpgroup for 64 rows of the state
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    static constexpr int kStageBytes = kKeyBytes + kPanelBytes;
    static constexpr int kBytes = 1024 + kStages * kStageBytes + static_cast<int>(kBlockTokens) * 4;
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

// A thread block: one job of one block and column.
template <int kKeyDim, bool kGradients>
__global__ void __launch_bounds__(Products<kKeyDim>::kThreads)
    products_kernel(const __grid_constant__ Scalar s, int jobs) {
    using C = Products<kKeyDim>;
    extern __shared__ char memory[];
    const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
    auto* weights = reinterpret_cast<float*>(memory + (base + kStages * C::kStageBytes - shared_address(memory)));
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int warpgroup = t / 128;

    const int column = static_cast<int>(blockIdx.x % static_cast<unsigned>(s.columns));
    const int number = jobs - 1 -
                       static_cast<int>(blockIdx.x / static_cast<unsigned>(s.columns) %
                                        static_cast<unsigned>(jobs));  // the longest first
    const std::int64_t in_batch = blockIdx.x / (static_cast<unsigned>(s.columns) * static_cast<unsigned>(jobs));
    const std::int64_t block = s.batch_block + in_batch;
    const std::int64_t first = block * kBlockTokens;
    const int rows = static_cast<int>(min(s.rows - first, kBlockTokens));
    const int chunks = (rows + kChunk - 1) / kChunk;
    const Job job = job_of(s, number, kGradients, block, chunks);
    if (job.steps <= 0) return;
    const int head = column / s.tiles;
    const int tile = column % s.tiles;

    const auto* left = static_cast<const __nv_bfloat16*>(kGradients ? s.call.inputs.q : s.call.inputs.k);
    const auto* right = static_cast<const __nv_bfloat16*>(kGradients ? s.call.d_out : s.call.inputs.v);
    const std::int64_t left_stride = kGradients ? s.call.inputs.q_stride : s.call.inputs.k_stride;
    const std::int64_t right_stride = kGradients ? s.call.d_out_stride : s.call.inputs.v_stride;
    const __nv_bfloat16* left_from =
        left + first * left_stride + static_cast<std::int64_t>(head / s.heads_per_key) * kKeyDim;
    const __nv_bfloat16* right_from =
        right + first * right_stride + static_cast<std::int64_t>(head) * s.value_dim + tile * 64;
    constexpr int kPieces = kKeyDim / 8;
    const auto load = [&](int step) {
        if (step < job.steps) {
            const std::uint32_t to = base + step % kStages * C::kStageBytes;
            const int token = job.chunk(step) * kChunk;
            copy_rows<kPieces, C::kThreads>(to, left_from + token * left_stride, left_stride, rows - token, kPieces, t);
            copy_rows<8, C::kThreads>(to + C::kKeyBytes, right_from + token * right_stride, right_stride, rows - token,
                                      (s.value_dim - tile * 64) / 8, t);
        }
        copy_async_commit();
    };
    for (int step = 0; step < kStages - 1; ++step) load(step);

    // What the rows are scaled by.
    const double* cumulative = s.cumulative + head * s.padded_rows + first;
    for (int i = t; i < job.steps * kChunk; i += C::kThreads) {
        const int token = job.chunk(i / kChunk) * kChunk + i % kChunk;
        const double at = cumulative[token];
        const double node = job.bit == kRunBits ? 0.0 : cumulative[job.end(i / kChunk) * kChunk - 1];
        float weight = __expf(static_cast<float>(kGradients ? at - node : node - at));
        if (kGradients && !s.linear) {
            weight *= token < rows ? __ldg(s.call.inputs.lambda + (first + token) * s.call.inputs.lambda_stride +
                                           static_cast<std::int64_t>(head) * s.levels + job.level)
                                   : 0.0F;
        }
        weights[i] = weight;
    }
    __syncthreads();

    float state[32] = {};
    const int row = 64 * warpgroup + 16 * warp + lane / 4;  // of the state; and row + 8
    for (int step = 0; step < job.steps; ++step) {
        const std::uint32_t stage = base + step % kStages * C::kStageBytes;
        copy_async_wait<kStages - 2>();
        for (int i = t; i < kChunk * 8; i += C::kThreads) {  // each thread scales the pieces that it copied
            const float weight = weights[step * kChunk + i / 8];
            auto* at = reinterpret_cast<uint4*>(
                memory + (stage + C::kKeyBytes + tile_offset(i / 8, i % 8) - shared_address(memory)));
            const uint4 x = *at;
            const auto scaled = [&](std::uint32_t both) {
                return pack_bf16(low_bf16(both) * weight, high_bf16(both) * weight);
            };
            *at = make_uint4(scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w));
        }
        fence_for_wgmma();
        __syncthreads();
        issue_transposed_product(state, stage + warpgroup * kPanelBytes, stage + C::kKeyBytes, warp, lane);
        product_commit();
        load(step + kStages - 1);  // the stage of the step before, which every warp has left
        product_wait<0>();
        product_done(state);
        const bool last = step + 1 == job.steps;
        if (job.bit == kRunBits) {
            if (!last) continue;
            float* to = s.d_entering + ((in_batch * s.slots + number - kRunBits) * s.heads + head) *
                                           static_cast<std::int64_t>(kKeyDim) * s.value_dim;
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                const int r = row + (i & 2) * 4;
                const int c = tile * 64 + i / 4 * 8 + lane % 4 * 2 + (i & 1);
                if (c < s.value_dim) to[r * s.value_dim + c] = state[i];
            }
        } else if (last || ((step + 1) & ((1 << job.bit) - 1)) == 0) {
            __nv_bfloat16* node = (kGradients ? s.d_nodes : s.nodes) +
                                  ((in_batch * kChunks + job.end(step)) * s.columns + column) * s.node_elements();
            store_tile(state, node, row, lane);
#pragma unroll
            for (float& x : state) x = 0.0F;
        }
    }
}

template <int kKeyDim, bool kGradients>
void launch(const Scalar& s) {
    using C = Products<kKeyDim>;
    const auto kernel = products_kernel<kKeyDim, kGradients>;
    allow_shared(kernel, C::kBytes);
    const int jobs = kRunBits + (kGradients ? s.slots : 0);
    const auto blocks = static_cast<unsigned>(s.batch_blocks * jobs * s.columns);
    kernel<<<blocks, C::kThreads, C::kBytes, s.call.stream>>>(s, jobs);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

// One thread: eight neighbouring value columns of a row.
__global__ void tiles_kernel(const float* from, std::int64_t head_stride, __nv_bfloat16* to, std::int64_t columns,
                             int tiles, int dk, int dv) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int piece = static_cast<int>(i % 8);
    const int row = static_cast<int>(i / 8 % dk);
    const std::int64_t column = i / 8 / dk;
    if (column >= columns) return;
    const int first = static_cast<int>(column % tiles) * 64 + piece * 8;
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        x[j] = first + j < dv ? from[column / tiles * head_stride + static_cast<std::int64_t>(row) * dv + first + j]
                              : 0.0F;
    }
    char* place = reinterpret_cast<char*>(to + column * dk * 64) + tile_offset(row, piece);
    *reinterpret_cast<uint4*>(place) =
        make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}

}  // namespace

void launch_nodes(const Scalar& s) {
    (s.key_dim == 64 ? launch<64, false> : launch<128, false>)(s);
}

void launch_node_gradients(const Scalar& s) {
    (s.key_dim == 64 ? launch<64, true> : launch<128, true>)(s);
}

void launch_state_tiles(const Scalar& s, const float* from, std::int64_t head_stride, std::int64_t states) {
    constexpr unsigned kThreads = 256;
    const std::int64_t columns = states * s.columns;
    const std::int64_t pieces = columns * s.key_dim * 8;
    tiles_kernel<<<static_cast<unsigned>((pieces + kThreads - 1) / kThreads), kThreads, 0, s.call.stream>>>(
        from, head_stride, s.entering, columns, s.tiles, s.key_dim, s.value_dim);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace fenwick::cuda::backward
