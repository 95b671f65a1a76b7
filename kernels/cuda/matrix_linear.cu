// Outputs of the linear read-out: a warpgroup walks a block's chunks with 64 columns of the one state in
// its registers. Two warpgroups share the tiles where a head has more columns; there the tensor memory accelerator
// brings Q, K and V.
#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/box_copy.cuh"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/matrix_step.cuh"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/tensor_map.h"

namespace fenwick::cuda::matrix {
namespace {

struct Arguments {
    const bf16* q;
    const bf16* k;
    const bf16* v;
    std::int64_t q_stride, k_stride, v_stride, rows, first_block;
    int heads, heads_per_key, value_dim, tiles;
    Prepared prepared;
    const float* entering;
    bf16* out;
    CUtensorMap q_boxes, k_boxes, v_boxes;  // two warpgroups
};

template <int kDk, int kGroups>
struct Stage {
    alignas(1024) unsigned char q[kPanelBytes * kDk / 64];
    alignas(1024) unsigned char k[kPanelBytes * kDk / 64];
    alignas(1024) unsigned char v[kGroups * kPanelBytes];
    alignas(1024) unsigned char triangle[kPanelBytes];
    alignas(1024) unsigned char scores[kPanelBytes];
};

// Two thread blocks of one warpgroup and d_k 128 just fit into a multiprocessor's 228 KiB: the decays stand apart, or
// each stage would be padded.
template <int kDk, int kGroups, int kStages>
struct Shared {
    Stage<kDk, kGroups> stages[kStages];
    float decays[kStages][2 * kC];
};

// One warpgroup's stages leave no room for barriers beside them.
template <int kGroups>
constexpr bool kBoxes = FENWICK_MATRIX_WGMMA != 0 && kGroups > 1;

// Rows past the document's end are zero. Columns past the head's may be another head's: nothing of them is stored.
template <int kDk, int kGroups>
__device__ __forceinline__ void load_boxes(const Arguments& args, Stage<kDk, kGroups>& stage, std::uint32_t barrier,
                                           std::int64_t chunk, int head, int first_column) {
    constexpr int kPanels = kDk / 64;
    expect_bytes(barrier, (2 * kPanels + kGroups) * kPanelBytes);
    const auto row = static_cast<int>(chunk * kC);
    const int key_column = head / args.heads_per_key * kDk;
    const int column = head * args.value_dim + first_column;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
        copy_box(shared_address(stage.k + i * kPanelBytes), args.k_boxes, row, key_column + 64 * i, barrier);
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
        copy_box(shared_address(stage.v + i * kPanelBytes), args.v_boxes, row, column + 64 * i, barrier);
    }
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
        copy_box(shared_address(stage.q + i * kPanelBytes), args.q_boxes, row, key_column + 64 * i, barrier);
    }
}

template <int kDk, int kGroups>
__device__ __forceinline__ void load_stage(const Arguments& args, Stage<kDk, kGroups>& stage, float* decays,
                                           std::int64_t chunk, int head, int first_column) {
    constexpr int kThreads = 128 * kGroups;
    const int key_head = head / args.heads_per_key;
    const std::int64_t tile = opaque(chunk * args.heads + head);
    const std::int64_t row = opaque(chunk * kC);
    const int rows = args.rows - row < kC ? static_cast<int>(args.rows - row) : kC;
    if constexpr (!kBoxes<kGroups>) {
        load_panels<kDk / 8, kThreads>(shared_address(stage.k), args.k + row * args.k_stride + key_head * kDk,
                                       args.k_stride, rows, kDk);
        load_panels<kDk / 8, kThreads>(shared_address(stage.q), args.q + row * args.q_stride + key_head * kDk,
                                       args.q_stride, rows, kDk);
        load_panels<8 * kGroups, kThreads>(shared_address(stage.v),
                                           args.v + row * args.v_stride + head * args.value_dim + first_column,
                                           args.v_stride, rows, args.value_dim - first_column);
    }
    load_triangle<kThreads>(shared_address(stage.triangle), args.prepared.triangle + tile * kC * kC);
    load_triangle<kThreads>(shared_address(stage.scores), args.prepared.second + tile * kC * kC);
    if (threadIdx.x < 32) {
        copy_16(shared_address(decays + 4 * threadIdx.x), args.prepared.decays + tile * 2 * kC + 4 * threadIdx.x, true);
    }
}

/// A chunk's 16 columns of o^T as bf16: of every 8 tokens two 8x8 tiles, transposed already.
using Packed = std::uint32_t[8][2];

__device__ __forceinline__ void pack_outputs(const float (&o)[32], Packed& packed) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            packed[n][half] = transposed(pack(o[4 * n + 2 * half], o[4 * n + 2 * half + 1]));
        }
    }
}

// Neighbouring lanes swap a tile each, so that a lane has four columns of a token: full 32-byte sectors.
__device__ __forceinline__ void store_outputs(const Packed& packed, bf16* to, std::int64_t stride, int rows,
                                              int columns) {
    const int lane = lane_now();
    const bool odd = lane % 2 != 0;
    const int column = (odd ? 8 : 0) + (lane % 4 / 2) * 4;
    bf16* mine = to + (lane / 4) * stride + column;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const std::uint32_t got = __shfl_xor_sync(0xFFFFFFFFU, odd ? packed[n][0] : packed[n][1], 1);
        const uint2 four = odd ? make_uint2(got, packed[n][1]) : make_uint2(packed[n][0], got);
        if (8 * n + lane / 4 < rows && column < columns) *reinterpret_cast<uint2*>(mine) = four;
        mine += 8 * stride;
    }
}

// One chunk. What the state waits for goes first; the output's products run beside it. On return `o` is there.
template <int kDk, int kGroups, class Meanwhile>
__device__ __forceinline__ void step(Columns<kDk>& x, const Stage<kDk, kGroups>& stage, const unsigned char* values,
                                     const float* decays, int warp, float (&o)[32], const Meanwhile& meanwhile) {
    const std::uint32_t keys = shared_address(stage.k);
    float y[32];
    std::uint32_t state[kDk / 16][4];
    read_state<kDk>(x, keys, y, shared_address(stage.q), o, state, meanwhile);
    scale_tokens(y, decays);
    subtract_from_values(y, shared_address(values), static_cast<std::uint32_t>(32 * warp));
    std::uint32_t a[4][4];
    pack_tokens(y, a);
    float u[32];
    clear(u);
    products_begin(u);
    add_triangle(a, shared_address(stage.triangle), u);
    products_commit();
    products_wait<1>();
    keep(o);
    scale_tokens(o, decays);
    scale_state<kDk>(x, decays[kC - 1]);
    products_wait<0>();
    keep(u);
    pack_tokens(u, a);
    scale_tokens(u, decays + kC);
    std::uint32_t write[4][4];
    pack_tokens(u, write);
    products_begin(x);
    keep(o);
    add_to_state<kDk>(x, write, keys);
    products_commit();
    add_triangle(a, shared_address(stage.scores), o);
    products_commit();
    products_wait<0>();
    keep(x);
    keep(o);
}

template <int kDk, int kGroups, int kStages>
__global__ void __launch_bounds__(128 * kGroups, 3 - kGroups) read(const __grid_constant__ Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    auto& s = *reinterpret_cast<Shared<kDk, kGroups, kStages>*>(raw);
    const unsigned work = blockIdx.x;  // 32-bit divisions
    const auto tiles = static_cast<unsigned>(args.tiles);
    const auto heads = static_cast<unsigned>(args.heads);
    const int tile = static_cast<int>(work % tiles);
    const int head = static_cast<int>(work / tiles % heads);
    const std::int64_t block = work / tiles / heads;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int group = static_cast<int>(threadIdx.x) / 128;
    const int tile_column = 64 * kGroups * tile;
    const int first_column = tile_column + 64 * group;
    const int dv = args.value_dim;
    const std::int64_t left = args.rows - block * kBlockTokens;
    const int chunks = static_cast<int>((left < kBlockTokens ? left + kC - 1 : kBlockTokens) / kC);

    Columns<kDk> x;
    if (args.first_block + block == 0) {
        clear(x);
    } else {
        load_columns<kDk>(x, args.entering + (block * args.heads + head) * kDk * dv, dv, first_column + 16 * warp, dv);
    }
    std::uint32_t barriers = 0;
    if constexpr (kBoxes<kGroups>) {
        __shared__ std::uint64_t boxes_there[kStages];
        barriers = shared_address(boxes_there);
        if (threadIdx.x < kStages) init_byte_barrier(barriers + 8 * threadIdx.x);
        __syncthreads();
    }
    const auto load = [&](int c) {
        if (c < chunks) {
            if (kBoxes<kGroups> && threadIdx.x == 0) {
                load_boxes<kDk, kGroups>(args, s.stages[c % kStages], barriers + 8 * (c % kStages), block * kC + c,
                                         head, tile_column);
            }
            load_stage<kDk, kGroups>(args, s.stages[c % kStages], s.decays[c % kStages], block * kC + c, head,
                                     tile_column);
        }
        copies_commit();
    };
    Packed packed;
    const auto store = [&](int c) {
        const std::int64_t row = opaque((block * kC + c) * kC);
        store_outputs(packed, args.out + (row * args.heads + head) * dv + first_column + 16 * warp,
                      static_cast<std::int64_t>(args.heads) * dv,
                      args.rows - row < kC ? static_cast<int>(args.rows - row) : kC, dv - first_column - 16 * warp);
    };
    for (int c = 0; c + 1 < kStages; ++c) load(c);
    for (int c = 0; c < chunks; ++c) {
        if (kStages == 1) {
            __syncthreads();  // everyone is done with the chunk before
            load(c);
        }
        copies_wait<(kStages > 1 ? kStages - 2 : 0)>();
        publish_shared();
        __syncthreads();  // the chunk is there, and everyone is done with the one before it
        if (kBoxes<kGroups>) await_phase(barriers + 8 * (c % kStages), static_cast<std::uint32_t>(c / kStages));
        const Stage<kDk, kGroups>& stage = s.stages[c % kStages];
        float o[32];
        step<kDk, kGroups>(x, stage, stage.v + group * kPanelBytes, s.decays[c % kStages], warp, o, [&] {
            if (kStages > 1) load(c + kStages - 1);
            if (c > 0) store(c - 1);
        });
        pack_outputs(o, packed);
    }
    store(chunks - 1);
}

template <int kDk, int kGroups, int kStages>
constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk, kGroups, kStages>));

template <int kDk, int kGroups, int kStages>
void launch(Arguments args, std::int64_t blocks, cudaStream_t stream) {
    constexpr int kColumns = 64 * kGroups;
    args.tiles = (args.value_dim + kColumns - 1) / kColumns;
    allow_shared(read<kDk, kGroups, kStages>, kBytes<kDk, kGroups, kStages>);
    read<kDk, kGroups, kStages><<<static_cast<unsigned>(blocks * args.heads * args.tiles), 128 * kGroups,
                                  kBytes<kDk, kGroups, kStages>, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kDk>
void pick(const Arguments& args, std::int64_t blocks, cudaStream_t stream) {
    const int most = most_shared_bytes();
    if (args.value_dim > 64 && kBytes<kDk, 2, 3> <= most) return launch<kDk, 2, 3>(args, blocks, stream);
    if (kBytes<kDk, 1, 2> <= most) return launch<kDk, 1, 2>(args, blocks, stream);
    launch<kDk, 1, 1>(args, blocks, stream);  // nothing is loaded ahead
}

}  // namespace

void launch_linear(const Walk& walk, void* out, cudaStream_t stream) {
    const MixerShape& shape = walk.shape;
    const MixerInputs& in = walk.inputs;
    Arguments args{static_cast<const bf16*>(in.q),
                   static_cast<const bf16*>(in.k),
                   static_cast<const bf16*>(in.v),
                   in.q_stride,
                   in.k_stride,
                   in.v_stride,
                   in.rows,
                   walk.first_block,
                   static_cast<int>(shape.heads),
                   static_cast<int>(shape.heads / shape.key_heads),
                   static_cast<int>(shape.value_dim),
                   0,
                   walk.prepared,
                   walk.entering,
                   static_cast<bf16*>(out),
                   {},
                   {},
                   {}};
    if (shape.value_dim > 64) {
        args.q_boxes = make_tensor_map(in.q, in.rows, shape.key_heads * shape.key_dim, in.q_stride);
        args.k_boxes = make_tensor_map(in.k, in.rows, shape.key_heads * shape.key_dim, in.k_stride);
        args.v_boxes = make_tensor_map(in.v, in.rows, shape.heads * shape.value_dim, in.v_stride);
    }
    const std::int64_t blocks = (in.rows + kBlockTokens - 1) / kBlockTokens;
    shape.key_dim == 128 ? pick<128>(args, blocks, stream) : pick<64>(args, blocks, stream);
}

}  // namespace fenwick::cuda::matrix
