// States of spans of 16 chunks from zero, then of blocks: summaries, or the nodes of groups for the log-linear
// read-out.
#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_step.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::diagonal {
namespace {

constexpr int kStages = 3;

struct Arguments {
    const bf16* v;
    std::int64_t v_stride, rows, chunks;
    int heads, value_dim, tiles;
    Prepared prepared;
    Spans spans;
    Operands nodes;
};

template <int kDk>
struct Stage {
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char values[kPanelBytes];
};

template <int kDk>
struct Shared {
    Stage<kDk> stages[kStages];
    float decays[kStages][kDk];
};

template <int kDk>
__device__ __forceinline__ void advance(Columns<kDk>& x, const std::uint32_t (&values)[4][4], const Stage<kDk>& stage,
                                        const float* decay) {
    decay_state<kDk>(x, decay);
    matrix::write_state<kDk>(x, 1.0F, values, matrix::shared_address(stage.keys));
}

// One CTA: 64 value columns of one head over a span. X goes on from the span's start and is the node of 1, 2, 4
// and 8 groups when it has seen as many; Y starts anew at groups 2, 4 and 6 for the others.
template <int kDk>
__global__ void __launch_bounds__(kWalkThreads, 2) walk(const Arguments args) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    const int t = static_cast<int>(threadIdx.x);
    const int warp = t / 32;
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % args.tiles);
    work /= args.tiles;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t span = work / args.heads;
    const std::int64_t first = span * kSpanChunks;
    const std::int64_t left = args.chunks - first;
    const int steps = static_cast<int>(left < kSpanChunks ? left : kSpanChunks);
    const std::int64_t columns = static_cast<std::int64_t>(args.heads) * args.tiles;
    const int column = head * args.tiles + tile;

    const auto load = [&](int step) {
        if (step < steps) {
            const std::int64_t chunk = first + step;
            const std::int64_t at = chunk * args.heads + head;
            Stage<kDk>& stage = s.stages[step % kStages];
            load_rows<kDk>(stage.keys, args.prepared.keys + at * kC * kDk);
            load_tile<kDk * 4>(s.decays[step % kStages], args.prepared.decays + at * kDk);
            matrix::load_panels<8, kWalkThreads>(
                matrix::shared_address(stage.values),
                args.v + chunk * kC * args.v_stride + head * args.value_dim + 64 * tile, args.v_stride,
                rows_from(args.rows, chunk * kC), args.value_dim - 64 * tile);
        }
        matrix::copies_commit();
    };
    load(0);
    load(1);
    Columns<kDk> x;
    Columns<kDk> y;
    matrix::clear(x);
    float decay_x = 1.0F;  // of channel t
    float decay_y = 1.0F;
    for (int step = 0; step < steps; ++step) {
        matrix::copies_wait<kStages - 2>();
        matrix::publish_shared();
        __syncthreads();
        load(step + 2);
        const Stage<kDk>& stage = s.stages[step % kStages];
        const float* decay = s.decays[step % kStages];
        std::uint32_t values[4][4];
        load_values(values, stage.values, warp);
        advance<kDk>(x, values, stage, decay);
        const float own = t < kDk ? decay[t] : 1.0F;
        decay_x *= own;
        const int group = step / kGroupChunks;
        if (group >= 2 && group != 3 && group != 7) {
            if (step % kGroupChunks == 0 && group % 2 == 0) {
                matrix::clear(y);
                decay_y = 1.0F;
            }
            advance<kDk>(y, values, stage, decay);
            decay_y *= own;
        }
        if (step % kGroupChunks == kGroupChunks - 1 && (group != kSpanGroups - 1 || span % 2 == 0)) {
            const std::int64_t slot = span * kSpanGroups + group;
            uint4* to = args.nodes.states + (slot * columns + column) * (kDk / 16 * kWalkThreads);
            float* decay_to = args.nodes.decays + (slot * args.heads + head) * kDk + t;
            const bool use_x = group < 2 || group == 3 || group == 7;
            if (use_x) {
                store_operand<kDk>(x, to);
            } else {
                store_operand<kDk>(y, to);
            }
            if (tile == 0 && t < kDk) *decay_to = use_x ? decay_x : decay_y;
        }
    }
    if (steps < kSpanChunks || span % kSpansPerBlock >= 2) return;
    auto* to = reinterpret_cast<float4*>(args.spans.states) + (span * columns + column) * (kDk / 8 * kWalkThreads) + t;
#pragma unroll
    for (int i = 0; i < kDk / 8; ++i) {
        to[i * kWalkThreads] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
    if (tile == 0 && t < kDk) args.spans.decays[(span * args.heads + head) * kDk + t] = decay_x;
}

// One CTA: 64 value columns of one head of one block: its first two spans to the node that ends with group 15.
template <int kDk>
__global__ void __launch_bounds__(kWalkThreads) merge(const Arguments args) {
    const int t = static_cast<int>(threadIdx.x);
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % args.tiles);
    work /= args.tiles;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t block = work / args.heads;
    const std::int64_t columns = static_cast<std::int64_t>(args.heads) * args.tiles;
    const int column = head * args.tiles + tile;
    const std::int64_t span = block * kSpansPerBlock;
    const auto state = [&](std::int64_t n) {
        return reinterpret_cast<const float4*>(args.spans.states) + (n * columns + column) * (kDk / 8 * kWalkThreads) +
               t;
    };
    const float* left_decays = args.spans.decays + (span * args.heads + head) * kDk;
    const float* right_decays = left_decays + static_cast<std::int64_t>(args.heads) * kDk;
    Columns<kDk> x;
#pragma unroll
    for (int i = 0; i < kDk / 8; ++i) {
        const float4 f = state(span)[i * kWalkThreads];
        x[4 * i] = f.x;
        x[4 * i + 1] = f.y;
        x[4 * i + 2] = f.z;
        x[4 * i + 3] = f.w;
    }
    decay_state<kDk>(x, right_decays);
#pragma unroll
    for (int i = 0; i < kDk / 8; ++i) {
        const float4 f = state(span + 1)[i * kWalkThreads];
        x[4 * i] += f.x;
        x[4 * i + 1] += f.y;
        x[4 * i + 2] += f.z;
        x[4 * i + 3] += f.w;
    }
    const std::int64_t slot = block * kGroupsPerBlock + kGroupsPerBlock / 2 - 1;
    store_operand<kDk>(x, args.nodes.states + (slot * columns + column) * (kDk / 16 * kWalkThreads));
    if (tile == 0 && t < kDk) {
        args.nodes.decays[(slot * args.heads + head) * kDk + t] = left_decays[t] * right_decays[t];
    }
}

template <int kDk>
void launch(const Work& work, const Arguments& args, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    const std::int64_t columns = work.shape.heads * work.tiles;
    const std::int64_t spans = (work.chunks + kSpanChunks - 1) / kSpanChunks;
    allow_shared(walk<kDk>, kBytes);
    walk<kDk><<<static_cast<unsigned>(spans * columns), kWalkThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    // The node of half a block is read by what follows it in the block.
    const std::int64_t merged = (work.groups + kGroupsPerBlock / 2 - 1) / kGroupsPerBlock;
    if (merged == 0) return;
    merge<kDk><<<static_cast<unsigned>(merged * columns), kWalkThreads, 0, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_group_nodes(const Work& work, cudaStream_t stream) {
    const MixerInputs& in = work.inputs;
    const Arguments args{static_cast<const bf16*>(in.v),
                         in.v_stride,
                         in.rows,
                         work.chunks,
                         static_cast<int>(work.shape.heads),
                         static_cast<int>(work.shape.value_dim),
                         work.tiles,
                         work.prepared,
                         work.spans,
                         work.group_nodes};
    work.shape.key_dim == 128 ? launch<128>(work, args, stream) : launch<64>(work, args, stream);
}

}  // namespace fenwick::cuda::diagonal
