// One thread block for one chunk of one head: D, T = (I + strictly_lower(b * K K^T * D))^-1 diag(b), P = (Q K^T) * D,
// and for the log-linear read-out P T and lambda * (P T).
//
// G is summed in double and kept as two fp32 numbers, so that differences of large sums keep the small decays.
#include <type_traits>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_inverse.cuh"
#include "kernels/cuda/matrix_launch.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_tile.cuh"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kThreads = 128;
constexpr int kLambdas = 7;  // levels inside a chunk
constexpr double kLogDecayFloor = -1000.0;

struct Arguments {
    const bf16* q;
    const bf16* k;
    const float* log_decay;
    const float* beta;
    const float* lambda;
    std::int64_t q_stride, k_stride, decay_stride, beta_stride, lambda_stride, rows;
    int heads, heads_per_key, levels;
    Prepared to;
    unsigned first_tile;
};

struct SharedLevels : Shared {
    float lambda[kC][kLambdas];
};

__device__ void store_tile(const unsigned char* from, bf16* to) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kC * 8; i += kThreads) {
        const int row = i / 8;
        *reinterpret_cast<uint4*>(to + i * 8) =
            *reinterpret_cast<const uint4*>(from + row * 128 + (((i % 8) ^ (row % 8)) * 16));
    }
}

__device__ __forceinline__ int chunk_level(int i, int j) {
    return 32 - __clz(i ^ j);
}

// P T and lambda * (P T) of rows [16 warp, 16 warp + 16): P from the accumulators that it was formed in, T from its
// tile.
__device__ __forceinline__ void weigh_scores(SharedLevels& s, const float (&p)[32], bf16* plain, bf16* weighed) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) pack_step(p, step, a[step]);
    float scores[32];
    clear(scores);
    products_begin(scores);
#pragma unroll
    for (int step = 0; step < 4; ++step)
        product_nn<64>(scores, a[step], shared_address(s.panels[2]), step * 16 * 128, kPanelBytes);
    products_end(scores);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = 16 * warp + lane / 4 + 8 * r;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int j = 8 * n + 2 * (lane % 4);
            const int at = panel_at(i, j);
            const float p0 = scores[4 * n + 2 * r];  // zero right of the diagonal: sums of zeros
            const float p1 = scores[4 * n + 2 * r + 1];
            *reinterpret_cast<std::uint32_t*>(s.panels[0] + at) = pack(p0, p1);
            *reinterpret_cast<std::uint32_t*>(s.panels[1] + at) =
                pack(j <= i ? p0 * s.lambda[i][chunk_level(i, j)] : 0.0F,
                     j < i ? p1 * s.lambda[i][chunk_level(i, j + 1)] : 0.0F);
        }
    }
    __syncthreads();
    store_tile(s.panels[0], plain);
    store_tile(s.panels[1], weighed);
}

// c += M K^T for the warp's 16 rows of a tile M.
template <int kDk>
__device__ __forceinline__ void multiply_keys(float (&c)[32], std::uint32_t tile, std::uint32_t keys, int warp) {
#pragma unroll
    for (int panel = 0; panel < kDk / 64; ++panel) {
        std::uint32_t a[4][4];
#pragma unroll
        for (int step = 0; step < 4; ++step) load_a(a[step], tile + panel * kPanelBytes + step * 32, 16 * warp);
        products_begin(c);
#pragma unroll
        for (int step = 0; step < 4; ++step) product_nt<64>(c, a[step], keys, panel * kPanelBytes + step * 32);
        products_end(c);
    }
}

// What a launch is for: summaries (T and its rest), outputs whose T the summaries left in the workspace (P), outputs (T
// and P), outputs over levels (T, P T, lambda * (P T)).
enum class Purpose { kSummaries, kScores, kOutputs, kLevels };

template <int kDk, Purpose kPurpose>
__global__ void __launch_bounds__(kThreads, kPurpose == Purpose::kSummaries || kPurpose == Purpose::kScores ? 5 : 4)
    prepare(const Arguments args) {
    constexpr bool kOutputs = kPurpose != Purpose::kSummaries;
    constexpr bool kLevels = kPurpose == Purpose::kLevels;
    constexpr bool kTriangle = kPurpose != Purpose::kScores;
    extern __shared__ __align__(1024) unsigned char raw[];
    using Memory = std::conditional_t<kLevels, SharedLevels, Shared>;
    Memory& s = *reinterpret_cast<Memory*>(raw);
    const unsigned number = args.first_tile + blockIdx.x;  // 32-bit divisions
    const std::int64_t tile = number;
    const int head = static_cast<int>(number % static_cast<unsigned>(args.heads));
    const std::int64_t first = static_cast<std::int64_t>(number / static_cast<unsigned>(args.heads)) * kC;
    const std::int64_t left = args.rows - first;
    const int rows = left < kC ? static_cast<int>(left) : kC;
    const int key_head = head / args.heads_per_key;
    const int tid = static_cast<int>(threadIdx.x);
    const int warp = tid / 32;
    const int lane = tid % 32;
    const std::uint32_t keys = shared_address(s.panels[0]);
    const std::uint32_t queries = keys + kDk / 64 * kPanelBytes;
    load_panels<kDk / 8, kThreads>(keys, args.k + first * args.k_stride + key_head * kDk, args.k_stride, rows, kDk);
    if (kOutputs) {
        load_panels<kDk / 8, kThreads>(queries, args.q + first * args.q_stride + key_head * kDk, args.q_stride, rows,
                                       kDk);
    }
    copies_commit();

    if (warp == 0) {  // two tokens a lane
        double g[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int i = 2 * lane + e;
            const double step = i < rows ? args.log_decay[(first + i) * args.decay_stride + head] : 0.0F;
            g[e] = step < kLogDecayFloor ? kLogDecayFloor : step;
            s.beta[i] = i < rows ? args.beta[(first + i) * args.beta_stride + head] : 0.0F;
        }
        double sum = g[0] + g[1];
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const double other = __shfl_up_sync(0xFFFFFFFFU, sum, d);
            if (lane >= d) sum += other;
        }
        double before = __shfl_up_sync(0xFFFFFFFFU, sum, 1);
        if (lane == 0) before = 0.0;
        const double all = __shfl_sync(0xFFFFFFFFU, sum, 31);
        float* decays = args.to.decays + tile * 2 * kC;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const double at = e == 0 ? before + g[0] : before + g[0] + g[1];
            const float high = static_cast<float>(at);
            s.cumulative[2 * lane + e] = make_float2(high, static_cast<float>(at - high));
            decays[2 * lane + e] = expf(high);
            decays[kC + 2 * lane + e] = expf(static_cast<float>(all - at));
        }
    } else if constexpr (kLevels) {
        for (int i = tid - 32; i < kC * kLambdas; i += kThreads - 32) {
            const int row = i / kLambdas;
            const int level = min(i % kLambdas, args.levels - 1);
            s.lambda[row][i % kLambdas] =
                row < rows ? args.lambda[(first + row) * args.lambda_stride + head * args.levels + level] : 0.0F;
        }
    }
    copies_wait<0>();
    publish_shared();
    __syncthreads();

    float kk[32];
    float qk[32];
    clear(kk);
    clear(qk);
    if (kTriangle) multiply_keys<kDk>(kk, keys, keys, warp);
    if (kOutputs) multiply_keys<kDk>(qk, queries, keys, warp);

    __syncthreads();  // K and Q have been read
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = lane / 4 + 8 * r;
        const int i = 16 * warp + row;
        const float2 at = s.cumulative[i];
        const float beta = s.beta[i];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            float l[2] = {0.0F, 0.0F};
            float p[2] = {0.0F, 0.0F};
            const int column = 8 * n + 2 * (lane % 4);
            if (n <= 2 * warp + 1) {
                const float4 from = *reinterpret_cast<const float4*>(s.cumulative + column);
                const float d[2] = {__expf((at.x - from.x) + (at.y - from.y)),
                                    __expf((at.x - from.z) + (at.y - from.w))};
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if (column + e < i) l[e] = beta * kk[4 * n + 2 * r + e] * d[e];
                    if (column + e <= i) p[e] = qk[4 * n + 2 * r + e] * d[e];
                }
            }
            qk[4 * n + 2 * r] = p[0];
            qk[4 * n + 2 * r + 1] = p[1];
            if (!kTriangle) {
                // only P is wanted
            } else if (n / 2 == warp) {
                *reinterpret_cast<float2*>(diagonal_block(s, warp) + row * kPitch + column - 16 * warp) =
                    make_float2(l[0], l[1]);
            } else if (n / 2 < warp) {
                store_split(s.panels[0], s.panels[1], i, column, l[0], l[1]);
            }
            if (kOutputs) *reinterpret_cast<std::uint32_t*>(s.panels[3] + panel_at(i, column)) = pack(p[0], p[1]);
        }
    }
    if constexpr (kTriangle) {
        __syncwarp();
        invert_diagonal(s, warp);
        __syncthreads();
        solve_rows(s, warp, kOutputs ? nullptr : s.panels[3]);
        publish_shared();
    }
    __syncthreads();
    if (kTriangle) store_tile(s.panels[2], args.to.triangle + tile * kC * kC);
    if (!kLevels) store_tile(s.panels[3], args.to.second + tile * kC * kC);
    if constexpr (kLevels) weigh_scores(s, qk, args.to.second + tile * kC * kC, args.to.scores + tile * kC * kC);
}

template <int kDk, Purpose kPurpose>
void launch(const Arguments& args, std::int64_t tiles, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(kPurpose == Purpose::kLevels ? sizeof(SharedLevels) : sizeof(Shared));
    if (tiles == 0) return;
    allow_shared(prepare<kDk, kPurpose>, kBytes);
    prepare<kDk, kPurpose><<<static_cast<unsigned>(tiles), kThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kDk>
void launch_all(Arguments args, std::int64_t tiles, bool outputs, std::int64_t ready_tiles, cudaStream_t stream) {
    if (!outputs) return launch<kDk, Purpose::kSummaries>(args, tiles, stream);
    if (args.lambda != nullptr) return launch<kDk, Purpose::kLevels>(args, tiles, stream);
    launch<kDk, Purpose::kScores>(args, ready_tiles, stream);
    args.first_tile = static_cast<unsigned>(ready_tiles);
    launch<kDk, Purpose::kOutputs>(args, tiles - ready_tiles, stream);
}

}  // namespace

void launch_prepare(const MixerShape& shape, const MixerInputs& inputs, std::int64_t chunks, bool outputs,
                    std::int64_t ready_chunks, const Prepared& to, cudaStream_t stream) {
    const Arguments args{static_cast<const bf16*>(inputs.q),
                         static_cast<const bf16*>(inputs.k),
                         inputs.log_decay,
                         inputs.beta,
                         shape.log_linear() ? inputs.lambda : nullptr,
                         inputs.q_stride,
                         inputs.k_stride,
                         inputs.decay_stride,
                         inputs.beta_stride,
                         inputs.lambda_stride,
                         inputs.rows,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.levels),
                         to,
                         0};
    const std::int64_t tiles = chunks * shape.heads;
    const std::int64_t ready = ready_chunks * shape.heads;
    shape.key_dim == 128 ? launch_all<128>(args, tiles, outputs, ready, stream)
                         : launch_all<64>(args, tiles, outputs, ready, stream);
}

}  // namespace fenwick::cuda::matrix
