// A chunk's rows by channels: a thread has two channels of eight tokens (an eighth of the chunk), with q, k and the
// gradients in registers. Products of the chunk's halves come through shared memory (diagonal.h).
#pragma once

#include "kernels/cuda/backward/diagonal_rows.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kEighth = 8;

struct Pair {
    float x, y;
};
__device__ __forceinline__ Pair operator*(Pair a, Pair b) {
    return {a.x * b.x, a.y * b.y};
}
__device__ __forceinline__ Pair operator*(float a, Pair b) {
    return {a * b.x, a * b.y};
}
__device__ __forceinline__ void operator+=(Pair& a, Pair b) {
    a.x += b.x;
    a.y += b.y;
}
__device__ __forceinline__ Pair pair_of(std::uint32_t both) {
    return {low_bf16(both), high_bf16(both)};
}
__device__ __forceinline__ Pair load_pair(const float* from) {
    const float2 x = *reinterpret_cast<const float2*>(from);
    return {x.x, x.y};
}
__device__ __forceinline__ void store_pair(float* to, Pair x) {
    *reinterpret_cast<float2*>(to) = make_float2(x.x, x.y);
}

template <int kKeyDim, DiagonalStep kStep>
struct Channels {
    using C = DiagonalTiles<kKeyDim, kStep>;
    static constexpr bool kLinear = kStep == DiagonalStep::kLinear;
    static constexpr int kPairs = kKeyDim / 2;

    char* tiles;
    DiagonalShared<kKeyDim>& shared;
    int pair, eighth;
    std::uint32_t q[kEighth], k[kEighth];
    Pair d_q[kEighth] = {}, d_k[kEighth] = {}, d_decay[kEighth] = {};

    __device__ __forceinline__ Channels(char* aligned, DiagonalShared<kKeyDim>& with, int t)
        : tiles(aligned), shared(with), pair(t % kPairs), eighth(t / kPairs) {}

    /// Rows past the chunk's `rows` are zero, with decay 1.
    __device__ __forceinline__ void load(const Diagonal& s, const DiagonalChunk& c, Pair (&decay)[kEighth]) {
        const MixerInputs& in = s.call.inputs;
        const std::int64_t row = c.first + eighth * kEighth;
        const std::int64_t key_column = static_cast<std::int64_t>(c.head / s.heads_per_key) * kKeyDim + 2 * pair;
        const float* log_decay =
            in.log_decay + row * in.decay_stride + static_cast<std::int64_t>(c.head) * kKeyDim + 2 * pair;
        const auto* q_from = static_cast<const __nv_bfloat16*>(in.q) + row * in.q_stride + key_column;
        const auto* k_from = static_cast<const __nv_bfloat16*>(in.k) + row * in.k_stride + key_column;
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            const bool live = eighth * kEighth + i < c.rows;
            decay[i] = live ? load_pair(log_decay + i * in.decay_stride) : Pair{0.0F, 0.0F};
            q[i] = live ? *reinterpret_cast<const std::uint32_t*>(q_from + i * in.q_stride) : 0U;
            k[i] = live ? *reinterpret_cast<const std::uint32_t*>(k_from + i * in.k_stride) : 0U;
        }
    }

    /// Log decays to decays, those of the eighth to shared memory.
    __device__ __forceinline__ void form_decays(Pair (&decay)[kEighth]) const {
        constexpr float kLog2 = 1.4426950408889634F;
        Pair all{1.0F, 1.0F};
#pragma unroll
        for (Pair& x : decay) {
            x.x = exp2_fast(fmaxf(x.x, diagonal::kLogDecayFloor) * kLog2);
            x.y = exp2_fast(fmaxf(x.y, diagonal::kLogDecayFloor) * kLog2);
            all = all * x;
        }
        store_pair(&shared.eighths[eighth][2 * pair], all);
    }

    /// Decay of the eighths [begin, end).
    __device__ __forceinline__ Pair between(int begin, int end) const {
        Pair x{1.0F, 1.0F};
        for (int e = begin; e < end; ++e) x = x * load_pair(&shared.eighths[e][2 * pair]);
        return x;
    }

    /// From a boundary `before` the eighth to each token, that one included; from each token to a boundary after it.
    static __device__ __forceinline__ void decays_from(Pair before, const Pair (&decay)[kEighth], Pair (&f)[kEighth]) {
#pragma unroll
        for (int i = 0; i < kEighth; ++i) f[i] = before = before * decay[i];
    }
    static __device__ __forceinline__ void decays_to(Pair after, const Pair (&decay)[kEighth], Pair (&f)[kEighth]) {
#pragma unroll
        for (int i = kEighth - 1; i >= 0; --i) {
            f[i] = after;
            after = after * decay[i];
        }
    }

    /// Pairs of runs of 2^kBit < 8 tokens: the decays between each token and its pair's boundary.
    template <int kBit>
    static __device__ __forceinline__ void decays_inside(const Pair (&decay)[kEighth], Pair (&f)[kEighth]) {
        constexpr int kMask = (1 << kBit) - 1;
        Pair x{1.0F, 1.0F};
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            x = (i & kMask) == 0 ? decay[i] : x * decay[i];
            if ((i >> kBit & 1) != 0) f[i] = x;
        }
#pragma unroll
        for (int i = kEighth - 1; i >= 0; --i) {
            if ((i & kMask) == kMask) x = {1.0F, 1.0F};
            if ((i >> kBit & 1) == 0) f[i] = x;
            x = x * decay[i];
        }
    }

    /// body(f, right) with the decays f between each token and the boundary of its pair of runs of 2^kBit tokens;
    /// right(i): whether token i lies in the right one.
    template <int kBit, class Body>
    __device__ __forceinline__ void with_factors(const Body& body) {
        Pair decay[kEighth];
#pragma unroll
        for (int i = 0; i < kEighth; ++i) decay[i] = load_pair(result(1, i));
        Pair f[kEighth];
        if constexpr (kBit < 3) {
            decays_inside<kBit>(decay, f);
            body(f, [](int i) { return (i >> kBit & 1) != 0; });
        } else {
            constexpr int kRun = 1 << (kBit - 3);
            const int begin = eighth & ~(kRun - 1);
            if ((eighth & kRun) != 0) {
                decays_from(between(begin, eighth), decay, f);
                body(f, [](int) { return true; });
            } else {
                decays_to(between(eighth + 1, begin + kRun), decay, f);
                body(f, [](int) { return false; });
            }
        }
    }

    /// Adds, inside runs of kRun tokens of the eighth, the sums of `y` from each token on, or before it. Returns the
    /// last run's.
    template <int kRun>
    __device__ __forceinline__ Pair add_later(const Pair (&y)[kEighth]) {
        Pair sum{0.0F, 0.0F};
#pragma unroll
        for (int i = kEighth - 1; i >= 0; --i) {
            if ((i & kRun) == 0 && kRun < kEighth) continue;  // right runs alone
            if (i % kRun == kRun - 1) sum = {0.0F, 0.0F};
            sum += y[i];
            d_decay[i] += sum;
        }
        return sum;
    }
    template <int kRun>
    __device__ __forceinline__ Pair add_earlier(const Pair (&y)[kEighth]) {
        Pair sum{0.0F, 0.0F};
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            if ((i & kRun) != 0 && kRun < kEighth) continue;  // left runs alone
            if (i % kRun == 0) sum = {0.0F, 0.0F};
            d_decay[i] += sum;
            sum += y[i];
        }
        return sum;
    }

    [[nodiscard]] __device__ __forceinline__ float* total(int which, int of_eighth) const {
        return reinterpret_cast<float*>(tiles + C::kTotals) + (which * 8 + of_eighth) * kKeyDim + 2 * pair;
    }
    /// The thread's own place in a result.
    [[nodiscard]] __device__ __forceinline__ float* result(int which, int i) const {
        return reinterpret_cast<float*>(tiles + C::kResults + which * C::kResultBytes) +
               (eighth * kEighth + i) * C::kResultStride + 2 * pair;
    }

    /// What states that dO read give to q: result 0.
    __device__ __forceinline__ void add_incoming(const Pair (&decay)[kEighth]) {
        Pair f[kEighth];
        decays_from(between(0, eighth), decay, f);
        Pair y[kEighth];
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            const Pair g = f[i] * load_pair(result(0, i));
            d_q[i] += g;
            y[i] = pair_of(q[i]) * g;
        }
        store_pair(total(2, eighth), add_later<kEighth>(y));
    }
    /// What gradients of states give to k: result 1, whose places get the decays.
    __device__ __forceinline__ void add_outgoing(const Pair (&decay)[kEighth]) {
        Pair f[kEighth];
        decays_to(between(eighth + 1, 8), decay, f);
        Pair y[kEighth];
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            const Pair g = f[i] * load_pair(result(1, i));
            d_k[i] += g;
            y[i] = pair_of(k[i]) * g;
            store_pair(result(1, i), decay[i]);
        }
        store_pair(total(3, eighth), add_earlier<kEighth>(y));
    }

    /// Each token with itself, and q_t . k_t for lambda's gradient.
    __device__ __forceinline__ void add_own(int lane) {
        float dot[kEighth];
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            const int row = eighth * kEighth + i;
            const float x = kLinear ? shared.diagonal[row] : shared.own[0].lambda[row] * shared.diagonal[row];
            const Pair query = pair_of(q[i]);
            const Pair key = pair_of(k[i]);
            d_q[i] += x * key;
            d_k[i] += x * query;
            dot[i] = fmaf(query.x, key.x, query.y * key.y);
        }
        if constexpr (kLinear) return;
        const float all = sum_quad(sum_rows_of_eight(dot, lane));  // of dot[lane / 4]
        if (lane % 4 == 0) shared.query_key[pair / 32][eighth * kEighth + lane / 4] = all;
    }

    /// Z of a bit, bf16.
    template <int kBit>
    __device__ __forceinline__ void write_rows() {
        char* to = tiles + C::kZ + pair / 32 * kPanelBytes + pair % 4 * 4;
        with_factors<kBit>([&](const Pair(&f)[kEighth], const auto& right) {
#pragma unroll
            for (int i = 0; i < kEighth; ++i) {
                const Pair z = f[i] * pair_of(right(i) ? q[i] : k[i]);
                *reinterpret_cast<std::uint32_t*>(to + tile_offset(eighth * kEighth + i, pair % 32 / 4)) =
                    pack_bf16(z.x, z.y);
            }
        });
    }
    /// R of a bit: result 0.
    template <int kBit>
    __device__ __forceinline__ void add_rows() {
        with_factors<kBit>([&](const Pair(&f)[kEighth], const auto& right) {
            Pair y[kEighth];
#pragma unroll
            for (int i = 0; i < kEighth; ++i) {
                const Pair g = f[i] * load_pair(result(0, i));
                if (right(i)) {
                    const Pair weighted = kLinear ? g : shared.own[kBit + 1].lambda[eighth * kEighth + i] * g;
                    d_q[i] += weighted;
                    y[i] = pair_of(q[i]) * weighted;
                } else {
                    d_k[i] += g;
                    y[i] = pair_of(k[i]) * g;
                }
            }
            if constexpr (kBit < 3) {
                add_later<1 << kBit>(y);
                add_earlier<1 << kBit>(y);
            } else {
                const Pair sum = right(0) ? add_later<kEighth>(y) : add_earlier<kEighth>(y);
                if constexpr (kBit > 3) store_pair(total(kBit - 4, eighth), sum);
            }
        });
    }

    /// After a barrier: what other eighths of a run have summed.
    __device__ __forceinline__ void add_totals(Pair sum) {
        const auto add = [&](int which, int begin, int end) {
            for (int e = begin; e < end; ++e) sum += load_pair(total(which, e));
        };
        if constexpr (kStep != DiagonalStep::kSummaries) {
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const int run = 2 << which;  // eighths
                const int begin = eighth & ~(run - 1);
                if ((eighth & run) != 0) {
                    add(which, eighth + 1, begin + run);
                } else {
                    add(which, begin, eighth);
                }
            }
            add(2, eighth + 1, 8);
        }
        add(3, 0, eighth);
#pragma unroll
        for (Pair& x : d_decay) x += sum;
    }

    /// A gradient's rows from the eighth's first on; `added`: to what is there.
    __device__ __forceinline__ void store(const Pair (&x)[kEighth], float* to, std::int64_t stride, int rows,
                                          bool added) const {
        to += static_cast<std::int64_t>(eighth) * kEighth * stride + 2 * pair;
        Pair old[kEighth] = {};
        if (added) {
#pragma unroll
            for (int i = 0; i < kEighth; ++i) {
                if (eighth * kEighth + i < rows) old[i] = load_pair(to + i * stride);
            }
        }
#pragma unroll
        for (int i = 0; i < kEighth; ++i) {
            if (eighth * kEighth + i >= rows) continue;
            old[i] += x[i];
            store_pair(to + i * stride, old[i]);
        }
    }
};

}  // namespace fenwick::cuda::backward
