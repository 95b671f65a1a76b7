// Outputs of the log-linear read-out. One CTA: 64 value columns of one head for a group of two chunks. The chunks' own
// scores, the first chunk's state for the second, then every node that enters the group, youngest first: its operand is
// read from device memory, decayed per channel to each chunk's start, and its product is scaled by lambda.
#include <algorithm>

#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_step.cuh"

namespace fenwick::cuda::diagonal {
namespace {

struct Arguments {
    const bf16* v;
    const float* lambda;
    std::int64_t v_stride, lambda_stride, rows, first_block;
    int heads, value_dim, tiles, levels, entering_nodes;
    Prepared prepared;
    Operands group_nodes;
    Operands block_nodes;
    bf16* out;
};

template <int kDk>
struct Shared {
    alignas(1024) unsigned char queries[kGroupChunks][kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];  // of the first chunk
    alignas(1024) unsigned char scores[kGroupChunks][kPanelBytes];
    alignas(1024) unsigned char values[kGroupChunks][kPanelBytes];  // then the outputs
    float decay[kDk];                                               // of the first chunk
    float lambda[kMaxBits][kGroupTokens];                           // of levels kGroupBits and up
};

struct Place {
    Operands nodes;
    std::int64_t slot;
};

// Where the node of bit `bit` of the group's number lies that enters group `group` of the shard.
__device__ __forceinline__ Place find_operand(const Arguments& args, std::int64_t number, int bit) {
    if (bit < kGroupNodeBits) {
        const std::int64_t end = ((number >> (bit + 1)) << (bit + 1)) + (std::int64_t{1} << bit);
        return {args.group_nodes, end - 1 - args.first_block * kGroupsPerBlock};
    }
    const int block_bit = bit - kGroupNodeBits;
    const std::int64_t block = number / kGroupsPerBlock;
    const std::int64_t end = ((block >> (block_bit + 1)) << (block_bit + 1)) + (std::int64_t{1} << block_bit);
    if (end > args.first_block) return {args.block_nodes, args.entering_nodes + end - 1 - args.first_block};
    // Set bits of first_block above this one stand before it.
    return {args.block_nodes, __popcll(static_cast<unsigned long long>(args.first_block >> (block_bit + 1)))};
}

__device__ __forceinline__ int lowest_bit(std::int64_t n) {
    return __ffsll(static_cast<long long>(n)) - 1;
}

/// o += lambda[token] * part.
__device__ __forceinline__ void add_scaled(float (&o)[32], const float (&part)[32], const float* lambda) {
    const int pair = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const float2 f = *reinterpret_cast<const float2*>(lambda + 8 * n + pair);
        o[4 * n] = fmaf(f.x, part[4 * n], o[4 * n]);
        o[4 * n + 1] = fmaf(f.y, part[4 * n + 1], o[4 * n + 1]);
        o[4 * n + 2] = fmaf(f.x, part[4 * n + 2], o[4 * n + 2]);
        o[4 * n + 3] = fmaf(f.y, part[4 * n + 3], o[4 * n + 3]);
    }
}

template <int kDk>
__global__ void __launch_bounds__(kWalkThreads, 2) read(const Arguments args) {
    constexpr int kSteps = kDk / 16;
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<kDk>& s = *reinterpret_cast<Shared<kDk>*>(raw);
    const int t = static_cast<int>(threadIdx.x);
    const int warp = t / 32;
    const int pair = 2 * (t % 4);
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % args.tiles);
    work /= args.tiles;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t group = work / args.heads;
    const std::int64_t number = args.first_block * kGroupsPerBlock + group;
    const std::int64_t first = group * kGroupTokens;
    const std::int64_t columns = static_cast<std::int64_t>(args.heads) * args.tiles;
    const int column = head * args.tiles + tile;
    const int dv = args.value_dim;

    for (int c = 0; c < kGroupChunks; ++c) {
        const std::int64_t at = (group * kGroupChunks + c) * args.heads + head;
        load_tile<kC * kC * 2>(s.scores[c], args.prepared.scores + at * kC * kC);
        matrix::load_panels<8, kWalkThreads>(matrix::shared_address(s.values[c]),
                                             args.v + (first + c * kC) * args.v_stride + head * dv + 64 * tile,
                                             args.v_stride, rows_from(args.rows, first + c * kC), dv - 64 * tile);
        load_rows<kDk>(s.queries[c], args.prepared.queries + at * kC * kDk);
        if (c == 0) {
            load_rows<kDk>(s.keys, args.prepared.keys + at * kC * kDk);
            load_tile<kDk * 4>(s.decay, args.prepared.decays + at * kDk);
        }
    }
    matrix::copies_commit();
    {  // thread t: token t
        const float* from = args.lambda + (first + t) * args.lambda_stride + head * args.levels;
        const bool live = first + t < args.rows;
        s.lambda[0][t] = live ? from[min(kGroupBits, args.levels - 1)] : 0.0F;
        for (int bit = 0; number >> bit != 0; ++bit) {
            if (((number >> bit) & 1) == 0) continue;
            s.lambda[1 + bit][t] = live ? from[min(kGroupBits + 1 + bit, args.levels - 1)] : 0.0F;
        }
    }
    matrix::copies_wait<0>();
    matrix::publish_shared();
    __syncthreads();

    float o[kGroupChunks][32];
    float part[32];
    {
        std::uint32_t values[4][4];
#pragma unroll
        for (int c = 1; c >= 0; --c) {
            load_values(values, s.values[c], warp);
            matrix::clear(o[c]);
            matrix::products_begin(o[c]);
            matrix::add_triangle(values, matrix::shared_address(s.scores[c]), o[c]);
            matrix::products_end(o[c]);
        }
        Columns<kDk> x;
        matrix::clear(x);
        matrix::write_state<kDk>(x, 1.0F, values, matrix::shared_address(s.keys));
        matrix::read_state<kDk>(x, matrix::shared_address(s.queries[1]), part);
        add_scaled(o[1], part, s.lambda[0] + kC);
    }
    __syncthreads();  // keys and scores have been read: nodes take their places
    // A thread copies the pieces that it reads itself, two nodes ahead.
    const auto node_place = [&](int which) { return which == 0 ? s.keys : s.scores[0]; };
    std::int64_t ahead = number;
    const auto fetch = [&](int which) {
        if (ahead != 0) {
            const Place place = find_operand(args, number, lowest_bit(ahead));
            ahead &= ahead - 1;
            const uint4* from = place.nodes.states + (place.slot * columns + column) * (kSteps * kWalkThreads) + t;
            const std::uint32_t to = matrix::shared_address(node_place(which)) + static_cast<std::uint32_t>(t * 16);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                matrix::copy_16(to + static_cast<std::uint32_t>(step * kWalkThreads * 16), from + step * kWalkThreads,
                                true);
            }
        }
        matrix::copies_commit();
    };
    fetch(0);
    fetch(1);
    float2 carry[kDk / 8];  // decay from the node's end to the group's start, of this lane's channels
#pragma unroll
    for (float2& c : carry) c = make_float2(1.0F, 1.0F);
    int which = 0;
    for (std::int64_t rest = number; rest != 0; rest &= rest - 1, which ^= 1) {
        const int bit = lowest_bit(rest);
        const Place place = find_operand(args, number, bit);
        const float* decays = place.nodes.decays + (place.slot * args.heads + head) * kDk + pair;
        float2 older[kDk / 8];
#pragma unroll
        for (int n = 0; n < kDk / 8; ++n) older[n] = __ldg(reinterpret_cast<const float2*>(decays + 8 * n));
        const auto* node = reinterpret_cast<const uint4*>(node_place(which)) + t;
        matrix::copies_wait<1>();
#pragma unroll
        for (int c = 0; c < kGroupChunks; ++c) {
            matrix::clear(part);
#pragma unroll
            for (int begin = 0; begin < kSteps; begin += 4) {
                std::uint32_t a[4][4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int step = begin + i;
                    const uint4 words = node[step * kWalkThreads];
                    const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float2 f = carry[2 * step + half];
                        if (c == 1) {
                            const float2 own = *reinterpret_cast<const float2*>(s.decay + 16 * step + 8 * half + pair);
                            f.x *= own.x;
                            f.y *= own.y;
                        }
#pragma unroll
                        for (int j = 2 * half; j < 2 * half + 2; ++j) {
                            a[i][j] = matrix::pack(matrix::low_of(w[j]) * f.x, matrix::high_of(w[j]) * f.y);
                        }
                    }
                }
                matrix::products_begin(part);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    matrix::product_nt<64>(part, a[i], matrix::shared_address(s.queries[c]),
                                           matrix::step_offset(begin + i));
                }
                matrix::products_end(part);
            }
            add_scaled(o[c], part, s.lambda[1 + bit] + c * kC);
        }
        fetch(which);
#pragma unroll
        for (int n = 0; n < kDk / 8; ++n) {
            carry[n].x *= older[n].x;
            carry[n].y *= older[n].y;
        }
    }
#pragma unroll
    for (int c = 0; c < kGroupChunks; ++c) {
        const std::int64_t row = first + c * kC;
        store_outputs(o[c], s.values[c], warp, args.out + (row * args.heads + head) * dv + 64 * tile,
                      static_cast<std::int64_t>(args.heads) * dv, rows_from(args.rows, row), dv - 64 * tile);
    }
}

template <int kDk>
void launch(const Arguments& args, std::int64_t ctas, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk>));
    FENWICK_CUDA_CHECK(cudaFuncSetAttribute(read<kDk>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    read<kDk><<<static_cast<unsigned>(ctas), kWalkThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_log_linear(const Work& work, void* out, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const MixerInputs& in = work.inputs;
    const Arguments args{static_cast<const bf16*>(in.v),
                         in.lambda,
                         in.v_stride,
                         in.lambda_stride,
                         in.rows,
                         work.first_block,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.value_dim),
                         work.tiles,
                         static_cast<int>(shape.levels),
                         work.entering_nodes,
                         work.prepared,
                         work.group_nodes,
                         work.block_nodes,
                         static_cast<bf16*>(out)};
    const std::int64_t ctas = work.groups * shape.heads * work.tiles;
    shape.key_dim == 128 ? launch<128>(args, ctas, stream) : launch<64>(args, ctas, stream);
}

}  // namespace fenwick::cuda::diagonal
