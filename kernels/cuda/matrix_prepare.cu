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
constexpr double kLog2E = 1.4426950408889634;

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

/// 2^x of x <= 0; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The warp's 16 rows of a panel into its tile.
__device__ __forceinline__ void store_rows(const unsigned char* panel, int warp, bf16* tile) {
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = 16 * warp + 4 * i + lane / 8;
        *reinterpret_cast<uint4*>(tile + row * kC + (lane % 8) * 8) =
            *reinterpret_cast<const uint4*>(panel + row * 128 + (((lane % 8) ^ (row % 8)) * 16));
    }
    __syncwarp();
}

// P of the warp's rows, as the operand `p`, into the warp's rows of a panel.
__device__ __forceinline__ void stage_operand(const std::uint32_t (&p)[4][4], unsigned char* panel, int warp) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = panel_at(16 * warp + lane / 4 + (i % 2) * 8, 16 * block + (i / 2) * 8 + 2 * (lane % 4));
            *reinterpret_cast<std::uint32_t*>(panel + at) = p[block][i];
        }
    }
}

__device__ __forceinline__ int chunk_level(int i, int j) {
    return 32 - __clz(i ^ j);
}

// P T and lambda * (P T) of the warp's rows: P as an operand, T from its tile.
__device__ __forceinline__ void weigh_scores(SharedLevels& s, const std::uint32_t (&p)[4][4], int warp, bf16* plain,
                                             bf16* weighed) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float scores[32];
    clear(scores);
    products_begin(scores);
#pragma unroll
    for (int step = 0; step < 4; ++step)
        product_nn<64>(scores, p[step], shared_address(s.panels[2]), step * 16 * 128, kPanelBytes);
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
    store_rows(s.panels[0], warp, plain);
    store_rows(s.panels[1], warp, weighed);
}

// Issues c += M K^T for the warp's 16 rows of a tile M.
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

// Decays of the warp's 16 rows of K K^T and Q K^T: L split into panels 0 and 1 (the diagonal block as it is), P as an
// operand.
template <int kWarp>
__device__ __forceinline__ void apply_decays(Shared& s, const float (&kk)[32], const float (&qk)[32],
                                             std::uint32_t (&p)[4][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float2 at[2];
    float beta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        at[r] = s.cumulative[16 * kWarp + lane / 4 + 8 * r];
        beta[r] = s.beta[16 * kWarp + lane / 4 + 8 * r];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int block = n / 2;
        if (block > kWarp) {
            p[block][n % 2 * 2] = p[block][n % 2 * 2 + 1] = 0;
            continue;
        }
        const int column = 8 * n + 2 * (lane % 4);
        const float4 from = *reinterpret_cast<const float4*>(s.cumulative + column);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = lane / 4 + 8 * r;  // of the block
            const float d0 = exp2_of((at[r].x - from.x) + (at[r].y - from.y));
            const float d1 = exp2_of((at[r].x - from.z) + (at[r].y - from.w));
            float l0 = beta[r] * kk[4 * n + 2 * r] * d0;
            float l1 = beta[r] * kk[4 * n + 2 * r + 1] * d1;
            float p0 = qk[4 * n + 2 * r] * d0;
            float p1 = qk[4 * n + 2 * r + 1] * d1;
            if (block == kWarp) {  // the exponents right of the diagonal may be positive: nothing of them is used
                const int of_block = column - 16 * kWarp;
                if (of_block >= row) l0 = 0.0F;
                if (of_block + 1 >= row) l1 = 0.0F;
                if (of_block > row) p0 = 0.0F;
                if (of_block + 1 > row) p1 = 0.0F;
                *reinterpret_cast<float2*>(diagonal_block(s, kWarp) + row * kPitch + of_block) = make_float2(l0, l1);
            } else {
                store_split(s.panels[0], s.panels[1], panel_at(16 * kWarp + row, column), l0, l1);
            }
            p[block][n % 2 * 2 + r] = pack(p0, p1);
        }
    }
}

// exp(G) and the like; two tokens a lane of the first warp.
__device__ __forceinline__ void sum_decays(const Arguments& args, Shared& s, std::int64_t tile, std::int64_t first,
                                           int rows, int head) {
    const int lane = static_cast<int>(threadIdx.x);
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
        const double at2 = at * kLog2E;
        const float high = static_cast<float>(at2);
        s.cumulative[2 * lane + e] = make_float2(high, static_cast<float>(at2 - high));
        decays[2 * lane + e] = expf(static_cast<float>(at));
        decays[kC + 2 * lane + e] = expf(static_cast<float>(all - at));
    }
}

template <int kDk, bool kLevels>
__global__ void __launch_bounds__(kThreads, 4) prepare(const Arguments args) {
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
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::uint32_t keys = shared_address(s.panels[0]);
    const std::uint32_t queries = keys + kDk / 64 * kPanelBytes;
    load_panels<kDk / 8, kThreads>(keys, args.k + first * args.k_stride + key_head * kDk, args.k_stride, rows, kDk);
    load_panels<kDk / 8, kThreads>(queries, args.q + first * args.q_stride + key_head * kDk, args.q_stride, rows, kDk);
    copies_commit();
    if (warp == 0) {
        sum_decays(args, s, tile, first, rows, head);
    } else if constexpr (kLevels) {
        for (int i = static_cast<int>(threadIdx.x) - 32; i < kC * kLambdas; i += kThreads - 32) {
            const int row = i / kLambdas;
            const int level = min(i % kLambdas, args.levels - 1);
            s.lambda[row][i % kLambdas] =
                row < rows ? args.lambda[(first + row) * args.lambda_stride + head * args.levels + level] : 0.0F;
        }
    }
    copies_wait<0>();
    publish_shared();
    __syncthreads();

    std::uint32_t p[4][4];
    {
        float kk[32];
        float qk[32];
        clear(kk);
        clear(qk);
        multiply_keys<kDk>(kk, keys, keys, warp);
        multiply_keys<kDk>(qk, queries, keys, warp);
        __syncthreads();  // K and Q have been read
        if (warp == 0) apply_decays<0>(s, kk, qk, p);
        if (warp == 1) apply_decays<1>(s, kk, qk, p);
        if (warp == 2) apply_decays<2>(s, kk, qk, p);
        if (warp == 3) apply_decays<3>(s, kk, qk, p);
    }
    __syncwarp();
    invert_diagonal(s, warp);
    __syncthreads();
    if (warp == 0) solve_rows<0>(s);
    if (warp == 1) solve_rows<1>(s);
    if (warp == 2) solve_rows<2>(s);
    if (warp == 3) solve_rows<3>(s);
    store_rows(s.panels[2], warp, args.to.triangle + tile * kC * kC);
    store_rows(s.panels[3], warp, args.to.rest + tile * kC * kC);
    if constexpr (kLevels) {
        publish_shared();
        __syncthreads();
        weigh_scores(s, p, warp, args.to.second + tile * kC * kC, args.to.scores + tile * kC * kC);
    } else {
        stage_operand(p, s.panels[2], warp);
        store_rows(s.panels[2], warp, args.to.second + tile * kC * kC);
    }
}

template <int kDk, bool kLevels>
void launch(const Arguments& args, std::int64_t tiles, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(kLevels ? sizeof(SharedLevels) : sizeof(Shared));
    allow_shared(prepare<kDk, kLevels>, kBytes);
    prepare<kDk, kLevels><<<static_cast<unsigned>(tiles), kThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_prepare(const MixerShape& shape, const MixerInputs& inputs, std::int64_t first_chunk, std::int64_t chunks,
                    const Prepared& to, cudaStream_t stream) {
    if (chunks == 0) return;
    const bool levels = shape.log_linear();
    const Arguments args{static_cast<const bf16*>(inputs.q),
                         static_cast<const bf16*>(inputs.k),
                         inputs.log_decay,
                         inputs.beta,
                         levels ? inputs.lambda : nullptr,
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
                         static_cast<unsigned>(first_chunk * shape.heads)};
    const std::int64_t tiles = chunks * shape.heads;
    if (shape.key_dim == 128) {
        levels ? launch<128, true>(args, tiles, stream) : launch<128, false>(args, tiles, stream);
    } else {
        levels ? launch<64, true>(args, tiles, stream) : launch<64, false>(args, tiles, stream);
    }
}

}  // namespace fenwick::cuda::matrix
