// Per chunk and head D, T = (I + strictly_lower(b * K K^T * D))^-1 diag(b), P = (Q K^T) * D, and for the log-linear
// read-out P T and lambda * (P T).
//
// A thread block takes a run of tiles, so that the next one's rows arrive while the last one's are worked on; heads of
// one key head follow each other and share K K^T and Q K^T.
//
// G is summed in double and kept as two fp32 numbers, so that differences of large sums keep the small decays.
#include <math_constants.h>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_inverse.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/shared_memory.h"

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
    unsigned tiles, run;  // of a thread block
};

/// What a tile needs of its tokens; two of them, for this tile and the next.
struct Gates {
    alignas(16) float2 cumulative[kC];  // G / ln 2 = x + y
    float beta[kC];
    float log_decay[kC];  // as it arrives
    float decay;          // exp(G_C)
    float lambda[kC][kLambdas];
};
template <int kDk>
struct Shared {
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char queries[kDk / 64 * kPanelBytes];
    Solve solve;
    Gates gates[2];
};

/// 2^x of x <= 0; results below 2^-126 become zero.
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The warp's 16 rows of a panel into its tile, up to the diagonal block.
__device__ __forceinline__ void store_rows(const unsigned char* panel, int warp, bf16* tile) {
    __syncwarp();
    const int lane = lane_now();
    const int piece = lane % 8;
    if (piece / 2 <= warp) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * warp + 4 * i + lane / 8;
            *reinterpret_cast<uint4*>(tile + row * kC + piece * 8) =
                *reinterpret_cast<const uint4*>(panel + row * 128 + ((piece ^ (row % 8)) * 16));
        }
    }
    __syncwarp();
}

// P of the warp's rows, as the operand `p`, into the warp's rows of a panel.
__device__ __forceinline__ void stage_operand(const std::uint32_t (&p)[4][4], unsigned char* panel, int warp) {
    const int lane = lane_now();
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
__device__ __forceinline__ void weigh_scores(Solve& s, const float (&lambda)[kC][kLambdas],
                                             const std::uint32_t (&p)[4][4], int warp, bf16* plain, bf16* weighed) {
    const int lane = lane_now();
    float scores[32];
    clear(scores);
    products_begin(scores);
#pragma unroll
    for (int step = 0; step < 4; ++step)
        product_nn<64>(scores, p[step], shared_address(s.triangle[0]), step * 16 * 128, kPanelBytes);
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
            *reinterpret_cast<std::uint32_t*>(s.lower[0] + at) = pack(p0, p1);
            *reinterpret_cast<std::uint32_t*>(s.lower[1] + at) =
                pack(j <= i ? p0 * lambda[i][chunk_level(i, j)] : 0.0F,
                     j < i ? p1 * lambda[i][chunk_level(i, j + 1)] : 0.0F);
        }
    }
    store_rows(s.lower[0], warp, plain);
    store_rows(s.lower[1], warp, weighed);
}

// K K^T and Q K^T of the warp's 16 rows.
template <int kDk>
__device__ __forceinline__ void multiply_keys(float (&kk)[32], float (&qk)[32], std::uint32_t keys,
                                              std::uint32_t queries, int warp) {
    clear(kk);
    clear(qk);
    keep(kk);
    products_begin(qk);
#pragma unroll
    for (int step = 0; step < kDk / 16; ++step) {
        const int at = (step / 4) * kPanelBytes + (step % 4) * 32;
        product_tiles(kk, keys, keys, at, warp);
        product_tiles(qk, queries, keys, at, warp);
    }
    products_end(kk);
    keep(qk);
}

// Heads of one key head have the same K K^T and Q K^T: the first one leaves them where K and Q were, every thread its
// own.
constexpr bool can_share(int key_dim) {
    return key_dim == 128;  // a tile of fp32 takes the room of [64, 128] bf16
}
__device__ __forceinline__ void leave_products(const float (&c)[32], unsigned char* at) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        reinterpret_cast<float4*>(at)[i * kThreads + static_cast<int>(threadIdx.x)] =
            make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
    }
}
__device__ __forceinline__ void take_products(float (&c)[32], const unsigned char* at) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 f = reinterpret_cast<const float4*>(at)[i * kThreads + static_cast<int>(threadIdx.x)];
        c[4 * i] = f.x;
        c[4 * i + 1] = f.y;
        c[4 * i + 2] = f.z;
        c[4 * i + 3] = f.w;
    }
}

// Decays of the warp's 16 rows of K K^T and Q K^T: L split (the diagonal block as it is), P as an operand. Whether none
// of the tokens' transitions that this thread sees, I - beta k k^T, makes anything longer.
template <int kWarp>
__device__ __forceinline__ bool apply_decays(Solve& s, const Gates& gates, const float (&kk)[32], const float (&qk)[32],
                                             std::uint32_t (&p)[4][4]) {
    const int lane = lane_now();
    bool shrinks = true;
    float2 at[2];
    float beta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        at[r] = gates.cumulative[16 * kWarp + lane / 4 + 8 * r];
        beta[r] = gates.beta[16 * kWarp + lane / 4 + 8 * r];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int block = n / 2;
        if (block > kWarp) {
            p[block][n % 2 * 2] = p[block][n % 2 * 2 + 1] = 0;
            continue;
        }
        const int column = 8 * n + 2 * (lane % 4);
        const float4 from = *reinterpret_cast<const float4*>(gates.cumulative + column);
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
                if (of_block == row || of_block + 1 == row) {
                    const float length = beta[r] * (of_block == row ? kk[4 * n + 2 * r] : kk[4 * n + 2 * r + 1]);
                    shrinks = shrinks && length >= 0.0F && length <= 2.0F;
                }
                if (of_block >= row) l0 = 0.0F;
                if (of_block + 1 >= row) l1 = 0.0F;
                if (of_block > row) p0 = 0.0F;
                if (of_block + 1 > row) p1 = 0.0F;
                *reinterpret_cast<float2*>(diagonal_block(s, kWarp) + row * kPitch + of_block) = make_float2(l0, l1);
            } else {
                store_split(s.lower[0], s.lower[1], panel_at(16 * kWarp + row, column), l0, l1);
            }
            p[block][n % 2 * 2 + r] = pack(p0, p1);
        }
    }
    return shrinks;
}

// G, and exp(G) and the like into `decays`; two tokens a lane of one warp, which copied the log decays itself.
__device__ __forceinline__ void sum_decays(Gates& gates, float* decays) {
    const int lane = lane_now();
    double g[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const double step = gates.log_decay[2 * lane + e];
        g[e] = step < kLogDecayFloor ? kLogDecayFloor : step;
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
    if (lane == 0) gates.decay = expf(static_cast<float>(all));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const double at = e == 0 ? before + g[0] : before + g[0] + g[1];
        const double at2 = at * kLog2E;
        const float high = static_cast<float>(at2);
        gates.cumulative[2 * lane + e] = make_float2(high, static_cast<float>(at2 - high));
        decays[2 * lane + e] = expf(static_cast<float>(at));
        decays[kC + 2 * lane + e] = expf(static_cast<float>(all - at));
    }
}

/// Where a tile lies.
struct Place {
    std::int64_t first;  // row
    int rows, head, key_head;
};
__device__ __forceinline__ Place place_of(const Arguments& args, unsigned tile) {
    const auto heads = static_cast<unsigned>(args.heads);  // 32-bit divisions
    Place place;
    place.first = opaque(static_cast<std::int64_t>(tile / heads) * kC);
    place.rows = static_cast<int>(min(static_cast<std::int64_t>(kC), args.rows - place.first));
    place.head = static_cast<int>(tile % heads);
    place.key_head = place.head / args.heads_per_key;
    return place;
}

template <int kDk>
__device__ __forceinline__ void load_rows(const Arguments& args, Shared<kDk>& s, const Place& place) {
    load_panels<kDk / 8, kThreads>(shared_address(s.keys), args.k + place.first * args.k_stride + place.key_head * kDk,
                                   args.k_stride, place.rows, kDk);
    load_panels<kDk / 8, kThreads>(shared_address(s.queries),
                                   args.q + place.first * args.q_stride + place.key_head * kDk, args.q_stride,
                                   place.rows, kDk);
}

// The first warp copies what it sums itself.
template <bool kLevels>
__device__ __forceinline__ void load_gates(const Arguments& args, Gates& gates, const Place& place) {
    const int tid = static_cast<int>(threadIdx.x);
    if (tid < 32) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int i = 2 * tid + e;
            const bool valid = i < place.rows;
            const std::int64_t row = place.first + (valid ? i : 0);
            copy_4(shared_address(&gates.log_decay[i]), args.log_decay + row * args.decay_stride + place.head, valid);
            copy_4(shared_address(&gates.beta[i]), args.beta + row * args.beta_stride + place.head, valid);
        }
    } else if (kLevels) {
        for (int i = tid - 32; i < kC * kLambdas; i += kThreads - 32) {
            const int at = i / kLambdas;
            const int level = min(i % kLambdas, args.levels - 1);
            const bool valid = at < place.rows;
            copy_4(
                shared_address(&gates.lambda[at][i % kLambdas]),
                args.lambda + (place.first + (valid ? at : 0)) * args.lambda_stride + place.head * args.levels + level,
                valid);
        }
    }
}

template <int kDk, bool kLevels>
__global__ void __launch_bounds__(kThreads, 3) prepare(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    Solve& solve = s.solve;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const unsigned first = blockIdx.x * args.run;
    const unsigned end = min(args.tiles, first + args.run);
    const auto decays_of = [&](unsigned tile) { return args.to.decays + static_cast<std::int64_t>(tile) * 2 * kC; };
    Place place = place_of(args, first);
    load_rows(args, s, place);
    load_gates<kLevels>(args, s.gates[0], place);
    copies_commit();
    if (warp == 0) {
        copies_wait<0>();
        sum_decays(s.gates[0], decays_of(first));
    }
    bool fresh = true;  // the tile's key head is another than the last one's
    for (unsigned tile = first; tile < end; ++tile) {
        Gates& gates = s.gates[(tile - first) % 2];
        Gates& next_gates = s.gates[(tile - first + 1) % 2];
        const bool last = tile + 1 == end;
        copies_wait<0>();
        publish_shared();
        __syncthreads();  // this tile's rows and G are there, and everyone is done with the tile before
        bool shrinks = true;
        std::uint32_t p[4][4];
        {
            float kk[32];
            float qk[32];
            if (fresh || !can_share(kDk)) {
                multiply_keys<kDk>(kk, qk, shared_address(s.keys), shared_address(s.queries), warp);
            } else {
                take_products(kk, s.keys);
                take_products(qk, s.queries);
            }
            __syncthreads();  // K and Q have been read
            if (!last) {
                const Place next = place_of(args, tile + 1);
                const bool other = next.first != place.first || next.key_head != place.key_head;
                if (other) {
                    load_rows(args, s, next);
                } else if (fresh && can_share(kDk)) {
                    leave_products(kk, s.keys);
                    leave_products(qk, s.queries);
                }
                load_gates<kLevels>(args, next_gates, next);
                copies_commit();
                place = next;
                fresh = other;
            }
            if (warp == 0) shrinks = apply_decays<0>(solve, gates, kk, qk, p);
            if (warp == 1) shrinks = apply_decays<1>(solve, gates, kk, qk, p);
            if (warp == 2) shrinks = apply_decays<2>(solve, gates, kk, qk, p);
            if (warp == 3) shrinks = apply_decays<3>(solve, gates, kk, qk, p);
        }
        __syncwarp();
        invert_diagonal(solve, warp);
        shrinks = __syncthreads_and(shrinks ? 1 : 0) != 0;
        if (threadIdx.x == 0) args.to.bounds[tile] = shrinks ? gates.decay : CUDART_INF_F;
        if (warp == 0) solve_rows<0>(solve, gates.beta);
        if (warp == 1) solve_rows<1>(solve, gates.beta);
        if (warp == 2) solve_rows<2>(solve, gates.beta);
        if (warp == 3) solve_rows<3>(solve, gates.beta);
        const std::int64_t at = static_cast<std::int64_t>(tile) * kC * kC;
        store_rows(solve.triangle[0], warp, args.to.triangle + at);
        store_rows(solve.triangle[1], warp, args.to.rest + at);
        if constexpr (kLevels) {
            publish_shared();
            __syncthreads();
            weigh_scores(solve, gates.lambda, p, warp, args.to.second + at, args.to.scores + at);
        } else {
            stage_operand(p, solve.triangle[0], warp);
            store_rows(solve.triangle[0], warp, args.to.second + at);
        }
        if (warp == 0 && !last) {  // the warp with the least to do
            copies_wait<0>();
            sum_decays(next_gates, decays_of(tile + 1));
        }
    }
}

template <int kDk, bool kLevels>
void launch(Arguments args, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    allow_shared(prepare<kDk, kLevels>, kBytes);
    const auto places = static_cast<unsigned>(3 * multiprocessors());
    args.run = (args.tiles + places - 1) / places;
    prepare<kDk, kLevels><<<(args.tiles + args.run - 1) / args.run, kThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_prepare(const MixerShape& shape, const MixerInputs& inputs, const Prepared& to, cudaStream_t stream) {
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
                         static_cast<unsigned>((inputs.rows + kC - 1) / kC * shape.heads),
                         1};
    if (shape.key_dim == 128) {
        levels ? launch<128, true>(args, stream) : launch<128, false>(args, stream);
    } else {
        levels ? launch<64, true>(args, stream) : launch<64, false>(args, stream);
    }
}

}  // namespace fenwick::cuda::matrix
