// All that is per token. One thread block: a chunk of a head. First its value columns, 64 at a time: X, dV, and
// products with the states that it reads, whose tiles stream through shared memory; then its own pairs, half by half
// (diagonal.h), by channels. Linear: with the state that enters the chunk and the gradient of what leaves it, all of
// it.
#include "core/cuda/check.h"
#include "kernels/cuda/backward/diagonal_row_channels.cuh"
#include "kernels/cuda/backward/diagonal_rows.cuh"
#include "kernels/cuda/shared_memory.h"

namespace fenwick::cuda::backward {
namespace {

// acc += A B over a depth of 64 for one warp: A's rows (kTransposed: columns) [16 warp, + 16) from a tile, columns
// [first, + kColumns) of B.
template <int kColumns, Rows kRows, bool kTransposed>
__device__ __forceinline__ void multiply_rows(float (&acc)[kColumns / 2], std::uint32_t a_tile, std::uint32_t b_tile,
                                              int first, int warp, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        std::uint32_t a[4];
        if constexpr (kTransposed) {
            load_a_transposed(a, a_tile, warp, step, lane);
        } else {
            load_a(a, a_tile, warp, step, lane);
        }
        multiply<kColumns, kRows>(acc, a, b_tile, step, first, lane);
    }
}

// The warp's 16 rows and 32 channels of a product with state `state`, scaled by its carry: to `sum` (`kReads`: with
// lambda), and the sums of the pairs over rows and columns to shared memory.
template <bool kReads, int kKeyDim>
__device__ __forceinline__ void add_state(const float (&r)[16], float (&sum)[16], DiagonalShared<kKeyDim>& shared,
                                          DiagonalState<kKeyDim>& state, std::uint32_t keys, bool more, int warp,
                                          int group, int lane) {
    const int row = 16 * warp + lane / 4;
    const float* carry = &state.carry[32 * group + 2 * (lane % 4)];
    const float lambda[2] = {kReads ? state.entry.lambda[row] : 1.0F, kReads ? state.entry.lambda[row + 8] : 1.0F};
    float by_column[8] = {};
    float dot[2] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        std::uint32_t key[4];  // q~ or k^
        load_a(key, keys + group / 2 * kPanelBytes, warp, 2 * (group % 2) + step, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i % 2;
            const int n = 2 * step + i / 2;
            const int at = 4 * n + 2 * half;
            const float2 f = *reinterpret_cast<const float2*>(carry + 8 * n);
            const float low = f.x * r[at];
            const float high = f.y * r[at + 1];
            const float low_pairs = low_bf16(key[i]) * low;
            const float high_pairs = high_bf16(key[i]) * high;
            dot[half] += low_pairs + high_pairs;
            sum[at] = fmaf(lambda[half], low, sum[at]);
            sum[at + 1] = fmaf(lambda[half], high, sum[at + 1]);
            by_column[2 * n] = fmaf(lambda[half], low_pairs, by_column[2 * n]);
            by_column[2 * n + 1] = fmaf(lambda[half], high_pairs, by_column[2 * n + 1]);
        }
    }
    if constexpr (kReads) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all = sum_quad(dot[half]);
            float& to = state.entry.rows[group][row + 8 * half];
            if (lane % 4 == 0) to = more ? to + all : all;
        }
    }
    const float all = sum_rows_of_eight(by_column, lane);
    const int column = lane / 8 * 8 + 2 * (lane % 4) + lane / 4 % 2;
    shared.columns[warp][state.sum][32 * group + column] += all;
}

// A warp's 16 rows and 32 channels to result `which`.
template <class C>
__device__ __forceinline__ void store_result(const float (&r)[16], char* tiles, int which, int row, int channel) {
    float* to =
        reinterpret_cast<float*>(tiles + C::kResults + which * C::kResultBytes) + row * C::kResultStride + channel;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        *reinterpret_cast<float2*>(to + i % 2 * 8 * C::kResultStride + i / 2 * 8) = make_float2(r[2 * i], r[2 * i + 1]);
    }
}

// All Y in one tile: below the diagonal X_ij, above it lambda_j X_ji. A warp has 16 rows and kOwn columns of X.
template <class C, bool kLinear, int kKeyDim>
__device__ __forceinline__ void store_pairs(const float (&x)[C::kOwn / 2], char* tiles, DiagonalShared<kKeyDim>& shared,
                                            int row, int first) {
    const auto put_pair = [&](int i, int j, float value) {
        *reinterpret_cast<__nv_bfloat16*>(tiles + C::kY + tile_offset(i, j / 8) + j % 8 * 2) =
            __float2bfloat16_rn(value);
    };
#pragma unroll
    for (int n = 0; n < C::kOwn / 2; ++n) {
        const int i = row + n / 2 % 2 * 8;
        const int j = first + n / 4 * 8 + n % 2;
        if (j == i) {
            shared.diagonal[i] = x[n];
            put_pair(i, i, 0.0F);
        } else if (j < i) {
            put_pair(i, j, x[n]);
            put_pair(j, i, kLinear ? x[n] : shared.own[32 - __clz(i ^ j)].lambda[i] * x[n]);
        }
    }
}

// R = Y Z of one bit, a warp's 16 rows and 32 channels, to result 0, with lambda's gradient.
template <class C, int kBit, bool kLinear, int kKeyDim>
__device__ __forceinline__ void multiply_bit(char* tiles, std::uint32_t start, DiagonalShared<kKeyDim>& shared,
                                             int warp, int group, int lane) {
    const std::uint32_t z = start + C::kZ + group / 2 * kPanelBytes;
    float r[16] = {};
    const auto add = [&](int step) {
        std::uint32_t a[4];
        load_a(a, start + C::kY, warp, step, lane);
        if constexpr (kBit == 3) {  // the two squares of eight off the diagonal
            a[0] = 0;
            a[3] = 0;
        } else if constexpr (kBit < 3) {  // inside those on it
            const int apart = (lane / 4) ^ (2 * (lane % 4));
            const std::uint32_t mask = (apart >> kBit == 1 ? 0xFFFFU : 0U) | ((apart ^ 1) >> kBit == 1 ? ~0xFFFFU : 0U);
            a[0] &= mask;
            a[1] = 0;
            a[2] = 0;
            a[3] &= mask;
        }
        multiply<32, Rows::kDepth>(r, a, z, step, group % 2 * 32, lane);
    };
    if constexpr (kBit == 5) {
        const int other = warp < 2 ? 2 : 0;
        add(other);
        add(other + 1);
    } else {
        add(kBit == 4 ? warp ^ 1 : warp);
    }
    const int row = 16 * warp + lane / 4;
    if constexpr (!kLinear) {
        float dot[2] = {};
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            std::uint32_t own[4];
            load_a(own, z, warp, 2 * (group % 2) + step, lane);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * (2 * step + i / 2) + 2 * (i % 2);
                dot[i % 2] = fmaf(low_bf16(own[i]), r[at], dot[i % 2]);
                dot[i % 2] = fmaf(high_bf16(own[i]), r[at + 1], dot[i % 2]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float all = sum_quad(dot[half]);
            const bool right = ((row + 8 * half) >> kBit & 1) != 0;
            if (lane % 4 == 0) shared.own[kBit + 1].rows[group][row + 8 * half] = right ? all : 0.0F;
        }
    }
    store_result<C>(r, tiles, 0, row, 32 * group + 2 * (lane % 4));
}

// The chunk's own pairs of one bit, whose Z is written; then the next bit's Z.
template <int kBit, int kKeyDim, DiagonalStep kStep>
__device__ __forceinline__ void add_bit(Channels<kKeyDim, kStep>& own, std::uint32_t start, int warp, int group,
                                        int lane) {
    __syncthreads();
    multiply_bit<DiagonalTiles<kKeyDim, kStep>, kBit, kStep == DiagonalStep::kLinear>(own.tiles, start, own.shared,
                                                                                      warp, group, lane);
    __syncthreads();
    own.template add_rows<kBit>();
    if constexpr (kBit + 1 < kChunkBits) own.template write_rows<kBit + 1>();
}

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
