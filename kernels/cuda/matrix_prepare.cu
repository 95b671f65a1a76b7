// Per chunk and head D, M = (I + strictly_lower(K K^T * D) diag(b))^-1, P = ((Q K^T) * D) diag(b), and for the
// log-linear read-out P M and lambda * (P M). DESIGN section 3's T is diag(b) M: b stays with what tokens write, for
// M (V - exp(G) * K X) is what they would write with b = 1, and that is what gradients of b are formed of.
//
// A thread block takes a run of tiles, so that the next one's rows arrive while the last one's are worked on; heads of
// one key head follow each other and share K K^T and Q K^T.
//
// G is summed in double and kept as two fp32 numbers, so that differences of large sums keep the small decays.
#include <math_constants.h>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_scores.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kThreads = kPrepareThreads;
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

template <int kDk>
struct Shared {
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char queries[kDk / 64 * kPanelBytes];
    Solve solve;
    Gates gates[2];
};

// G, and what Prepared has of it; two tokens a lane of one warp, which copied their gates itself. `out`: or null.
__device__ __forceinline__ void sum_decays(Gates& gates, float* decays, float* out) {
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
        const int token = 2 * lane + e;
        const float to_end = expf(static_cast<float>(all - at));
        decays[token] = expf(static_cast<float>(at));
        decays[kC + token] = gates.beta[token] * to_end;
        if (out == nullptr) continue;
        out[token] = to_end;
        out[kC + token] = gates.beta[token];
        reinterpret_cast<float2*>(out + 2 * kC)[token] = gates.cumulative[token];
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
    const auto sum_gates = [&](Gates& gates, unsigned tile) {
        const std::int64_t at = static_cast<std::int64_t>(tile) * 2 * kC;
        sum_decays(gates, args.to.decays + at, args.to.gates == nullptr ? nullptr : args.to.gates + 2 * at);
    };
    Place place = place_of(args, first);
    load_rows(args, s, place);
    load_gates<kLevels>(args, s.gates[0], place);
    copies_commit();
    if (warp == 0) {
        copies_wait<0>();
        sum_gates(s.gates[0], first);
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
        if (warp == 0) solve_rows<0>(solve);
        if (warp == 1) solve_rows<1>(solve);
        if (warp == 2) solve_rows<2>(solve);
        if (warp == 3) solve_rows<3>(solve);
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
            sum_gates(next_gates, tile + 1);
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
