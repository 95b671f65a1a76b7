// Block summaries: a CTA walks a span of 16 chunks of one head with the states of up to 128 value columns in registers,
// a warpgroup 64 of them, and decays the keys itself: log decays, the largest input, are read once. Then four spans
// make a block.
#include "core/cuda/check.h"
#include "kernels/cuda/diagonal_channels.cuh"
#include "kernels/cuda/diagonal_step.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::diagonal {
namespace {

struct Arguments {
    const bf16* k;
    const bf16* v;
    const float* log_decay;
    std::int64_t k_stride, v_stride, decay_stride;
    int heads, heads_per_key, value_dim, tiles;
    Spans spans;
    float* out;
};

template <int kDk, int kWarpgroups>
struct Shared {
    alignas(1024) unsigned char keys[kDk / 64 * kPanelBytes];
    alignas(1024) unsigned char values[2][kWarpgroups][kPanelBytes];
    Quarters<kDk> quarters;
    float decay[kDk];
};

// One CTA: one span of one head, 64 kWarpgroups value columns.
template <int kDk, int kWarpgroups>
__global__ void __launch_bounds__(kWarpgroups* kWalkThreads) walk(const Arguments args) {
    constexpr int kThreads = kWarpgroups * kWalkThreads;
    constexpr int kPairs = kDk / 2;
    constexpr int kFormers = 4 * kPairs;  // threads that decay keys: one or more passes over them
    static_assert(kFormers % 32 == 0);
    constexpr int kPasses = kFormers > kThreads ? kFormers / kThreads : 1;
    extern __shared__ __align__(1024) unsigned char raw[];
    auto& s = *reinterpret_cast<Shared<kDk, kWarpgroups>*>(raw);
    const int t = static_cast<int>(threadIdx.x);
    const int warpgroup = t / kWalkThreads;
    const int warp = t % kWalkThreads / 32;
    const int tile_groups = (args.tiles + kWarpgroups - 1) / kWarpgroups;
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % tile_groups) * kWarpgroups + warpgroup;
    work /= tile_groups;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t span = work / args.heads;
    const std::int64_t first = span * kSpanChunks * kC;
    const bool forms = t < kFormers;
    const int pair = t % kPairs;

    float2 a[kPasses][kQuarterTokens];
    std::uint32_t k[kPasses][kQuarterTokens];
    const auto quarter_of = [&](int pass) { return (pass * kThreads + t) / kPairs; };
    const auto load_keys = [&](int step) {
        if (!forms || step >= kSpanChunks) return;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const std::int64_t row = first + step * kC + quarter_of(pass) * kQuarterTokens;
            load_decays(a[pass], args.log_decay + row * args.decay_stride + head * kDk + 2 * pair, args.decay_stride,
                        kQuarterTokens);
            load_pairs(k[pass], args.k + row * args.k_stride + head / args.heads_per_key * kDk + 2 * pair,
                       args.k_stride, kQuarterTokens);
        }
    };
    const auto load_value_tile = [&](int step) {
        if (step < kSpanChunks) {
            const std::uint32_t to = matrix::shared_address(s.values[step % 2][warpgroup]);
            const bf16* from = args.v + (first + step * kC) * args.v_stride + head * args.value_dim + 64 * tile;
            const int piece = t % 8;
            const bool live = 64 * tile + piece * 8 < args.value_dim;
#pragma unroll
            for (int row = t % kWalkThreads / 8; row < kC; row += kWalkThreads / 8) {
                matrix::copy_16(to + static_cast<std::uint32_t>(row * 128 + ((piece ^ (row % 8)) * 16)),
                                live ? from + row * args.v_stride + piece * 8 : args.v, live);
            }
        }
        matrix::copies_commit();
    };

    Columns<kDk> x;
    matrix::clear(x);
    float log_sum = 0.0F;  // of channel t
    load_value_tile(0);
    load_keys(0);
    for (int step = 0; step < kSpanChunks; ++step) {
        float2 part[kPasses][2];
        if (forms) {
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                form_decays(a[pass], part[pass], s.quarters, quarter_of(pass), pair);
            }
        }
        __syncthreads();  // quarters are there, and the last step is done with keys and values
        load_value_tile(step + 1);
        if (t < kDk) {
            const float sum = chunk_log(s.quarters, t);
            log_sum += sum;
            s.decay[t] = expf(sum);
        }
        if (forms) {
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int quarter = quarter_of(pass);
                float2 total[4];
                load_totals(total, s.quarters, pair);
                float2 after = decay_to_end(total, quarter);
                unsigned char* to = s.keys + pair / 32 * kPanelBytes + quarter * kQuarterTokens * 128;
#pragma unroll
                for (int i = kQuarterTokens - 1; i >= 0; --i) {
                    *reinterpret_cast<std::uint32_t*>(to + i * 128 + ((pair % 32 * 4) ^ ((i % 8) * 16))) =
                        pack(unpack(k[pass][i]) * after);
                    after = after * a[pass][i];
                }
            }
        }
        load_keys(step + 1);
        matrix::copies_wait<1>();
        matrix::publish_shared();
        __syncthreads();
        std::uint32_t values[4][4];
        load_values(values, s.values[step % 2][warpgroup], warp);
        decay_state<kDk>(x, s.decay);
        matrix::write_state<kDk>(x, 1.0F, values, matrix::shared_address(s.keys));
    }
    if (t < kDk && tile == warpgroup) args.spans.logs[(span * args.heads + head) * kDk + t] = log_sum;
    if (tile >= args.tiles) return;
    const std::int64_t column = span * args.heads * args.tiles + head * args.tiles + tile;
    auto* to = reinterpret_cast<float4*>(args.spans.states) + column * (kDk / 8 * kWalkThreads) + t % kWalkThreads;
#pragma unroll
    for (int i = 0; i < kDk / 8; ++i) {
        to[i * kWalkThreads] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    }
}

// One CTA: 64 value columns of one head of one block.
template <int kDk>
__global__ void __launch_bounds__(kWalkThreads) merge(const Arguments args) {
    __shared__ float decays[kDk];
    const int t = static_cast<int>(threadIdx.x);
    std::int64_t work = blockIdx.x;
    const int tile = static_cast<int>(work % args.tiles);
    work /= args.tiles;
    const int head = static_cast<int>(work % args.heads);
    const std::int64_t block = work / args.heads;
    const std::int64_t one = static_cast<std::int64_t>(kDk) * (1 + args.value_dim);
    float* to = args.out + (block * args.heads + head) * one;
    Columns<kDk> x;
    matrix::clear(x);
    float log_sum = 0.0F;
    for (int n = 0; n < kSpansPerBlock; ++n) {
        const std::int64_t span = block * kSpansPerBlock + n;
        __syncthreads();
        if (t < kDk) {
            const float log = args.spans.logs[(span * args.heads + head) * kDk + t];
            log_sum += log;
            decays[t] = expf(log);
        }
        __syncthreads();
        decay_state<kDk>(x, decays);
        const std::int64_t column = span * args.heads * args.tiles + head * args.tiles + tile;
        const auto* from = reinterpret_cast<const float4*>(args.spans.states) + column * (kDk / 8 * kWalkThreads) + t;
#pragma unroll
        for (int i = 0; i < kDk / 8; ++i) {
            const float4 f = from[i * kWalkThreads];
            x[4 * i] += f.x;
            x[4 * i + 1] += f.y;
            x[4 * i + 2] += f.z;
            x[4 * i + 3] += f.w;
        }
    }
    if (tile == 0 && t < kDk) to[t] = log_sum;
    matrix::store_columns<kDk>(x, to + kDk, args.value_dim, 64 * tile + 16 * (t / 32), args.value_dim);
}

template <int kDk, int kWarpgroups>
void launch(const Work& work, const Arguments& args, cudaStream_t stream) {
    constexpr int kBytes = static_cast<int>(sizeof(Shared<kDk, kWarpgroups>));
    const std::int64_t tile_groups = (work.tiles + kWarpgroups - 1) / kWarpgroups;
    const auto ctas = static_cast<unsigned>(work.blocks * kSpansPerBlock * work.shape.heads * tile_groups);
    const auto kernel = walk<kDk, kWarpgroups>;
    allow_shared(kernel, kBytes);
    kernel<<<ctas, kWarpgroups * kWalkThreads, kBytes, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
    const auto merged = static_cast<unsigned>(work.blocks * work.shape.heads * work.tiles);
    merge<kDk><<<merged, kWalkThreads, 0, stream>>>(args);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_summaries(const Work& work, float* out, cudaStream_t stream) {
    const MixerShape& shape = work.shape;
    const MixerInputs& in = work.inputs;
    const Arguments args{static_cast<const bf16*>(in.k),
                         static_cast<const bf16*>(in.v),
                         in.log_decay,
                         in.k_stride,
                         in.v_stride,
                         in.decay_stride,
                         static_cast<int>(shape.heads),
                         static_cast<int>(shape.heads / shape.key_heads),
                         static_cast<int>(shape.value_dim),
                         work.tiles,
                         work.spans,
                         out};
    if (shape.key_dim == 128) {
        work.tiles > 1 ? launch<128, 2>(work, args, stream) : launch<128, 1>(work, args, stream);
    } else {
        work.tiles > 1 ? launch<64, 2>(work, args, stream) : launch<64, 1>(work, args, stream);
    }
}

}  // namespace fenwick::cuda::diagonal
