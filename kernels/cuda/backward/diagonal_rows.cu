// All that is per token. One thread block: a chunk of a head. First its value columns, 64 at a time: X, dV, and
// products with the states that it reads, whose tiles stream through shared memory; then its own pairs, half by half
// (diagonal.h), by channels. Linear: with the state that enters the chunk and the gradient of what leaves it, all of
// it.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/diagonal_row_products.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

template <int kKeyDim, DiagonalStep kStep>
__global__ void __launch_bounds__(4 * kKeyDim, 128 / kKeyDim) rows_kernel(const __grid_constant__ Diagonal s) {
    using C = DiagonalTiles<kKeyDim, kStep>;
    constexpr bool kLinear = kStep == DiagonalStep::kLinear;
    constexpr bool kSummaries = kStep == DiagonalStep::kSummaries;
    constexpr int kOwn = C::kOwn;
    extern __shared__ char memory[];
    const std::uint32_t start = (shared_address(memory) + 1023U) & ~1023U;
    char* aligned = memory + (start - shared_address(memory));
    auto& shared = *reinterpret_cast<DiagonalShared<kKeyDim>*>(aligned + C::kShared);

    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;  // of the group
    const int group = t / 128;
    const int row = 16 * warp + lane / 4;  // and row + 8

    DiagonalChunk c{};
    c.head = static_cast<int>(blockIdx.x % static_cast<unsigned>(s.heads));
    const std::int64_t number = blockIdx.x / static_cast<unsigned>(s.heads);  // of the chunk, in the batch
    c.in_batch = number / kChunks;
    c.chunk = static_cast<int>(number % kChunks);
    const std::int64_t block_first = (s.batch_block + c.in_batch) * kBlockTokens;
    c.first = block_first + static_cast<std::int64_t>(c.chunk) * kChunk;
    c.block_rows = static_cast<int>(min(s.rows - block_first, kBlockTokens));
    c.rows = min(c.block_rows - c.chunk * kChunk, kChunk);

    const std::int64_t tile_number = number * s.heads + c.head;
    if constexpr (!kSummaries) {
        copy_rows<kKeyDim / 8, C::kThreads>(start + C::kQ, s.prepared.queries + tile_number * kChunk * kKeyDim, kKeyDim,
                                            kChunk, kKeyDim / 8, t);
        static_assert(kPanelBytes % (16 * C::kThreads) == 0);
        copy_pieces<C::kThreads>(start + C::kScores, s.prepared.scores + tile_number * kChunk * kChunk,
                                 Bytes<kPanelBytes>{}, t);
    }
    copy_rows<kKeyDim / 8, C::kThreads>(start + C::kK, s.prepared.keys + tile_number * kChunk * kKeyDim, kKeyDim,
                                        kChunk, kKeyDim / 8, t);
    if (t == 0) list_states<kStep>(s, c, shared);
    __syncthreads();
    const int states = shared.states;
    const int reads = shared.reads;
    const int steps = max(states, 2);  // of a tile of values; two, so that its place is free again in time

    // The ring: states' tiles in order; v and dO with the first of each tile of values.
    int next_tile = 0;
    int next_state = 0;
    int next_slot = 0;
    const std::int64_t value_column = static_cast<std::int64_t>(c.head) * s.value_dim;
    const auto issue = [&] {
        if (next_tile < s.tiles) {
            if (next_state < states) {
                const char* from = shared.state(next_state).from +
                                   static_cast<std::int64_t>(c.head * s.tiles + next_tile) * C::kKeyBytes;
                copy_pieces<C::kThreads>(start + C::kRing + next_slot * C::kKeyBytes,
                                         reinterpret_cast<const __nv_bfloat16*>(from), Bytes<C::kKeyBytes>{}, t);
            }
            if (next_state == 0) {
                const std::uint32_t to = start + C::kStage + next_tile % 2 * 2 * kPanelBytes;
                const std::int64_t at = value_column + next_tile * 64;
                const int pieces = (s.value_dim - next_tile * 64) / 8;
                const MixerInputs& in = s.call.inputs;
                copy_rows<8, C::kThreads>(to, static_cast<const __nv_bfloat16*>(in.v) + c.first * in.v_stride + at,
                                          in.v_stride, c.rows, pieces, t);
                if constexpr (!kSummaries) {
                    copy_rows<8, C::kThreads>(
                        to + kPanelBytes,
                        static_cast<const __nv_bfloat16*>(s.call.d_out) + c.first * s.call.d_out_stride + at,
                        s.call.d_out_stride, c.rows, pieces, t);
                }
            }
            if (++next_state == steps) {
                next_state = 0;
                ++next_tile;
            }
        }
        next_slot = (next_slot + 1) % C::kSlots;
        copy_async_commit();
    };
    constexpr int kAhead = 2;
    for (int i = 0; i < kAhead; ++i) issue();

    if constexpr (!kLinear) {
        if (t < kKeyDim) form_carries<kStep>(s, c, shared, t);
        if constexpr (!kSummaries) load_lambda(s, c, shared, t);
        for (int i = t; i < 4 * kDiagonalSums * kKeyDim; i += C::kThreads) (&shared.columns[0][0][0])[i] = 0.0F;
    }

    float x[kOwn / 2] = {};
    float incoming[16] = {};
    float outgoing[16] = {};
    float across[2] = {};  // linear: a row's pieces of H . D
    int slot = 0;
    for (int tile = 0; tile < s.tiles; ++tile) {
        const std::uint32_t v = start + C::kStage + tile % 2 * 2 * kPanelBytes;
        const std::uint32_t d = v + kPanelBytes;
        float d_v[kOwn / 2] = {};
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            copy_async_wait<kAhead - 1>();
            __syncthreads();
            issue();
            const std::uint32_t state = start + C::kRing + slot * C::kKeyBytes;
            const int before = (slot + C::kSlots - 1) % C::kSlots;
            slot = (slot + 1) % C::kSlots;
            if constexpr (!kSummaries) {
                if (step == 0) {
                    multiply_rows<kOwn, Rows::kColumns, false>(x, d, v, group * kOwn, warp, lane);
                    multiply_rows<kOwn, Rows::kDepth, true>(d_v, start + C::kScores, d, group * kOwn, warp, lane);
                }
            }
            if (step >= states) continue;
            if constexpr (!kSummaries) {
                if (step < reads) {
                    if constexpr (kLinear) {
                        multiply_rows<32, Rows::kColumns, false>(incoming, d, state, group * 32, warp, lane);
                    } else {
                        float r[16] = {};
                        multiply_rows<32, Rows::kColumns, false>(r, d, state, group * 32, warp, lane);
                        add_state<true>(r, incoming, shared, shared.state(step), start + C::kQ, tile > 0, warp, group,
                                        lane);
                    }
                    continue;
                }
            }
            if constexpr (kLinear) {
                multiply_rows<32, Rows::kColumns, false>(outgoing, v, state, group * 32, warp, lane);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int piece = t + i * C::kThreads;
                    const std::uint32_t at = tile_offset(piece / 8, piece % 8);
                    const uint4 h = *reinterpret_cast<const uint4*>(aligned + C::kRing + before * C::kKeyBytes + at);
                    const uint4 g = *reinterpret_cast<const uint4*>(aligned + (state - start) + at);
                    const auto add = [&](std::uint32_t a, std::uint32_t b) {
                        across[i] = fmaf(low_bf16(a), low_bf16(b), across[i]);
                        across[i] = fmaf(high_bf16(a), high_bf16(b), across[i]);
                    };
                    add(h.x, g.x);
                    add(h.y, g.y);
                    add(h.z, g.z);
                    add(h.w, g.w);
                }
            } else {
                float r[16] = {};
                multiply_rows<32, Rows::kColumns, false>(r, v, state, group * 32, warp, lane);
                add_state<false>(r, outgoing, shared, shared.state(step), start + C::kK, tile > 0, warp, group, lane);
            }
#pragma unroll
            for (int depth = 0; depth < kKeyDim / 16; ++depth) {
                std::uint32_t a[4];
                load_a(a, start + C::kK + depth / 4 * kPanelBytes, warp, depth % 4, lane);
                if constexpr (!kLinear) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float2 f = *reinterpret_cast<const float2*>(
                            &shared.state(step).carry[16 * depth + i / 2 * 8 + 2 * (lane % 4)]);
                        a[i] = pack_bf16(low_bf16(a[i]) * f.x, high_bf16(a[i]) * f.y);
                    }
                }
                multiply<kOwn, Rows::kDepth>(d_v, a, state, depth, group * kOwn, lane);
            }
        }
        const MixerGradients& g = s.call.gradients;
        float* to = g.v + c.first * g.v_stride + value_column + tile * 64;
#pragma unroll
        for (int i = 0; i < kOwn / 4; ++i) {
            const int r = row + i % 2 * 8;
            const int column = group * kOwn + i / 2 * 8 + lane % 4 * 2;
            if (r >= c.rows || tile * 64 + column >= s.value_dim) continue;
            auto* place = reinterpret_cast<float2*>(to + r * g.v_stride + column);
            const float2 old = kSummaries ? *place : make_float2(0.0F, 0.0F);
            *place = make_float2(old.x + d_v[2 * i], old.y + d_v[2 * i + 1]);
        }
    }

    Channels<kKeyDim, kStep> own(aligned, shared, t);
    Pair decay[kEighth];
    own.load(s, c, decay);
    __syncthreads();  // all tiles have been read
    store_result<C>(outgoing, aligned, 1, row, 32 * group + 2 * (lane % 4));
    if constexpr (!kSummaries) {
        store_result<C>(incoming, aligned, 0, row, 32 * group + 2 * (lane % 4));
        store_pairs<C, kLinear>(x, aligned, shared, row, group * kOwn + 2 * (lane % 4));
    }
    if constexpr (kLinear) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            across[i] += __shfl_xor_sync(0xffffffffU, across[i], 4);
            const float all = sum_quad(across[i]);
            const int channel = (t + i * C::kThreads) / 8;
            if (lane % 8 == 0) shared.crossing[channel] = all * s.prepared.decays[tile_number * kKeyDim + channel];
        }
    }
    own.form_decays(decay);
    __syncthreads();
    own.add_outgoing(decay);
    if constexpr (!kSummaries) {
        own.add_incoming(decay);
        own.add_own(lane);
        own.template write_rows<0>();
        add_bit<0>(own, start, warp, group, lane);
        add_bit<1>(own, start, warp, group, lane);
        add_bit<2>(own, start, warp, group, lane);
        add_bit<3>(own, start, warp, group, lane);
        add_bit<4>(own, start, warp, group, lane);
        add_bit<5>(own, start, warp, group, lane);
    }
    __syncthreads();
    own.add_totals(kLinear ? load_pair(&shared.crossing[2 * own.pair]) : Pair{0.0F, 0.0F});

    const MixerGradients& g = s.call.gradients;
    const bool alone = s.heads_per_key == 1;
    const std::int64_t key_column = static_cast<std::int64_t>(c.head) * kKeyDim;
    const std::int64_t share = (c.head * s.batch_rows() + c.first - s.batch_block * kBlockTokens) * kKeyDim;
    own.store(own.d_k, alone ? g.k + c.first * g.k_stride + key_column : s.d_k + share, alone ? g.k_stride : kKeyDim,
              c.rows, kSummaries && alone);
    if constexpr (!kSummaries) {
        own.store(own.d_q, alone ? g.q + c.first * g.q_stride + key_column : s.d_q + share,
                  alone ? g.q_stride : kKeyDim, c.rows, false);
    }
    own.store(own.d_decay, g.log_decay + c.first * g.decay_stride + key_column, g.decay_stride, c.rows, kSummaries);
    if constexpr (!kLinear) {
        if constexpr (!kSummaries) store_lambda(s, c, shared, t);
        float* sums = s.sums + ((c.in_batch * s.heads + c.head) * kChunks + c.chunk) * kDiagonalSums * kKeyDim;
        for (int i = t; i < kDiagonalSums * kKeyDim; i += C::kThreads) {
            float sum = 0.0F;
#pragma unroll
            for (const auto& part : shared.columns) sum += (&part[0][0])[i];
            sums[i] = sum;
        }
    }
}

template <int kKeyDim, DiagonalStep kStep>
void launch(const Diagonal& s) {
    using C = DiagonalTiles<kKeyDim, kStep>;
    const auto kernel = rows_kernel<kKeyDim, kStep>;
    const int bytes = C::bytes(kStep == DiagonalStep::kOutputs ? kChunkBits + s.slots : 2);
    allow_shared(kernel, bytes);
    const std::int64_t chunks = (s.batch_rows() + kChunk - 1) / kChunk;
    kernel<<<static_cast<unsigned>(chunks * s.heads), C::kThreads, bytes, s.call.stream>>>(s);
    FENWICK_CUDA_CHECK(cudaGetLastError());
}

template <int kKeyDim>
void launch_step(const Diagonal& s, DiagonalStep step) {
    if (step == DiagonalStep::kLinear) return launch<kKeyDim, DiagonalStep::kLinear>(s);
    if (step == DiagonalStep::kSummaries) return launch<kKeyDim, DiagonalStep::kSummaries>(s);
    launch<kKeyDim, DiagonalStep::kOutputs>(s);
}

}  // namespace

void launch_diagonal_rows(const Diagonal& s, DiagonalStep step) {
    s.key_dim == 64 ? launch_step<64>(s, step) : launch_step<128>(s, step);
}

}  // namespace fenwick::cuda::backward
