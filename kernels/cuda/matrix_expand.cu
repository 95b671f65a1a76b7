// What the walk over many levels multiplies by, formed once per chunk and head so that each level needs two products
// only (DESIGN section 3, "Chunk form"):
//
//     W~ = -b exp(G_C - G) * (M (exp(G) * K))     S <- exp(G_C) S + K^T (W~ S)
//     Q~ = exp(G) * Q - (P M) (exp(G) * K)        o = Q~ S
//     U~ = b exp(G_C - G) * (M V)                 the chunk's own state: K^T U~
#include <type_traits>

#include "core/cuda/check.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_tile.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::matrix {
namespace {

constexpr int kThreads = 128;

struct Arguments {
    const bf16* q;
    const bf16* k;
    const bf16* v;
    std::int64_t q_stride, k_stride, v_stride, rows;
    int heads, heads_per_key, value_dim;
    Prepared prepared;
};

template <int kDk>
struct Shared {
    alignas(1024) unsigned char k[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char q[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char staged[kDk / 64 * kPanelBytes];  // a warp's rows are its own
    alignas(1024) unsigned char triangle[kPanelBytes];
    alignas(1024) unsigned char scores[kPanelBytes];  // P M
    alignas(1024) unsigned char v[kPanelBytes];
    float decays[2 * kC];
};

// The warp's 16 rows of a tile as an operand, columns scaled by `factor` when it is given.
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[4][4], std::uint32_t tile, int warp, const float* factor) {
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        load_a(a[step], tile + 32 * step, 16 * warp);
        if (factor == nullptr) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = *reinterpret_cast<const float2*>(factor + 16 * step + 8 * (i / 2) + pair);
            a[step][i] = pack(low_of(a[step][i]) * f.x, high_of(a[step][i]) * f.y);
        }
    }
}

// The warp's rows of `columns` columns out of the staging panels.
__device__ __forceinline__ void store_rows(const unsigned char* staged, int warp, bf16* to, std::int64_t stride,
                                           int columns) {
    __syncwarp();
    const int pieces = columns / 8;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 16 * pieces; i += 32) {
        const int row = 16 * warp + i / pieces;
        const int piece = i % pieces;
        *reinterpret_cast<uint4*>(to + row * stride + piece * 8) = *reinterpret_cast<const uint4*>(
            staged + (piece / 8) * kPanelBytes + row * 128 + (((piece % 8) ^ (row % 8)) * 16));
    }
    __syncwarp();
}

__device__ __forceinline__ int pair_at(int row, int column) {
    return (column / 64) * kPanelBytes + ((row * 128 + (column % 64) * 2) ^ ((row % 8) * 16));
}

template <int kDk>
__global__ void __launch_bounds__(kThreads) expand(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    const std::int64_t tile = blockIdx.x;
    const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(args.heads));
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x / static_cast<unsigned>(args.heads)) * kC;
    const int rows = args.rows - first < kC ? static_cast<int>(args.rows - first) : kC;
    const int key_head = head / args.heads_per_key;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int dv = args.value_dim;
    const std::uint32_t keys = shared_address(s.k);
    load_panels<kDk / 8, kThreads>(keys, args.k + first * args.k_stride + key_head * kDk, args.k_stride, rows, kDk);
    load_panels<kDk / 8, kThreads>(shared_address(s.q), args.q + first * args.q_stride + key_head * kDk, args.q_stride,
                                   rows, kDk);
    load_triangle<kThreads>(shared_address(s.triangle), args.prepared.triangle + tile * kC * kC);
    load_triangle<kThreads>(shared_address(s.scores), args.prepared.second + tile * kC * kC);
    if (threadIdx.x < 32) {
        copy_16(shared_address(s.decays + 4 * threadIdx.x), args.prepared.decays + tile * 2 * kC + 4 * threadIdx.x,
                true);
    }
    copies_commit();
    copies_wait<0>();
    publish_shared();
    __syncthreads();

    std::uint32_t a[4][4];
    const float* in = s.decays;
    const float* out = s.decays + kC;
    const int row = 16 * warp + lane / 4;
    float c[kDk / 2];
    for (int part = 0; part < 2; ++part) {  // W~, then Q~
        load_rows(a, shared_address(part == 0 ? s.triangle : s.scores), warp, in);
        clear(c);
        products_begin(c);
#pragma unroll
        for (int step = 0; step < 4; ++step) product_nn<kDk>(c, a[step], keys, step * 16 * 128, kPanelBytes);
        products_end(c);
#pragma unroll
        for (int i = 0; i < kDk / 4; ++i) {  // pairs
            const int r = row + (i % 2) * 8;
            const int at = pair_at(r, (i / 2) * 8 + 2 * (lane % 4));
            const std::uint32_t q = *reinterpret_cast<const std::uint32_t*>(s.q + at);
            const float scale = part == 0 ? -out[r] : -1.0F;
            const float own = part == 0 ? 0.0F : in[r];
            *reinterpret_cast<std::uint32_t*>(s.staged + at) =
                pack(fmaf(scale, c[2 * i], part == 0 ? 0.0F : own * low_of(q)),
                     fmaf(scale, c[2 * i + 1], part == 0 ? 0.0F : own * high_of(q)));
        }
        store_rows(s.staged, warp, (part == 0 ? args.prepared.removes : args.prepared.reads) + tile * kC * kDk, kDk,
                   kDk);
    }

    load_rows(a, shared_address(s.triangle), warp, nullptr);
    for (int column = 0; column < dv; column += 64) {
        if (column > 0) __syncthreads();
        load_panels<8, kThreads>(shared_address(s.v), args.v + first * args.v_stride + head * dv + column,
                                 args.v_stride, rows, dv - column);
        copies_commit();
        copies_wait<0>();
        publish_shared();
        __syncthreads();
        float u[32];
        clear(u);
        products_begin(u);
#pragma unroll
        for (int step = 0; step < 4; ++step)
            product_nn<64>(u, a[step], shared_address(s.v), step * 16 * 128, kPanelBytes);
        products_end(u);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int r = row + (i % 2) * 8;
            *reinterpret_cast<std::uint32_t*>(s.staged + pair_at(r, (i / 2) * 8 + 2 * (lane % 4))) =
                pack(out[r] * u[2 * i], out[r] * u[2 * i + 1]);
        }
        store_rows(s.staged, warp, args.prepared.writes + tile * kC * dv + column, dv,
                   dv - column < 64 ? dv - column : 64);
    }
}

template <int kDk>
void launch(const Arguments& args, std::int64_t tiles, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    allow_shared(expand<kDk>, kBytes);
    expand<kDk><<<static_cast<unsigned>(tiles), kThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_expand(const Walk& walk, cudaStream_t stream) {
    const MixerShape& shape = walk.shape;
    const MixerInputs& in = walk.inputs;
    const Arguments args{static_cast<const bf16*>(in.q),
                         static_cast<const bf16*>(in.k),
                         static_cast<const bf16*>(in.v),
                         in.q_stride,
                         in.k_stride,
                         in.v_stride,
                         in.rows,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.value_dim),
                         walk.prepared};
    const std::int64_t tiles = (in.rows + kC - 1) / kC * shape.heads;
    shape.key_dim == 128 ? launch<128>(args, tiles, stream) : launch<64>(args, tiles, stream);
}

}  // namespace fenwick::cuda::matrix
