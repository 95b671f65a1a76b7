// What a chunk of a head gets of its own products once the walks have passed: the last part of matrix_rows' kernels.
#pragma once

#include "kernels/cuda/backward/matrix_row_sums.cuh"

namespace fenwick::cuda::backward {

/// Sums over the walks and their tiles, in the layouts of a warpgroup's [64, 64] and of OwnPlaces.
template <int kKeyDim>
struct MatrixSums {
    float d_reads[32] = {};                           // dQ~, columns [64 panel, + 64)
    float d_removes[32] = {};                         // dW
    float d_keys[32] = {};                            // dK^
    float scores[OwnPlaces<kKeyDim>::kOwn / 2] = {};  // dO V^T
    float solved[OwnPlaces<kKeyDim>::kOwn / 2] = {};  // dU V^T
    float across = 0.0F;                              // <dX', X>
};

/// All threads; the walks' tiles have been read. `added`: gradients of q and k are added to what is there.
template <int kKeyDim, MatrixForm kForm>
__device__ __forceinline__ void finish_rows(const Matrix& m, const MatrixChunk& c, char* aligned,
                                            MatrixSums<kKeyDim>& sums, bool added) {
    using C = MatrixTiles<kKeyDim, kForm>;
    constexpr bool kSummaries = kForm == MatrixForm::kSummaries;
    constexpr int kPanels = C::kPanels;
    constexpr int kOwn = 64 / kPanels;
    constexpr auto kDepth = Rows::kDepth;
    constexpr auto kColumns = Rows::kColumns;
    const std::uint32_t start = shared_address(aligned);
    auto& shared = *reinterpret_cast<MatrixShared<kPanels, kForm>*>(aligned + C::kShared);
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    const int warp = t / 32 % 4;
    const int panel = t / 128;
    const int row = 16 * warp + lane / 4;  // and row + 8
    const int own_first = panel * kOwn;
    const MixerGradients& g = m.call.gradients;
    const std::int64_t key_column = static_cast<std::int64_t>(c.head / m.heads_per_key) * kKeyDim;
    const OwnPlaces<kKeyDim> places{aligned, t};
    const auto own_row = [&](int i) { return places.row(i); };
    const auto own_column = [&](int i) { return places.column(i); };
    const auto pair_at = [&](int tile, int r, int column) { return places.pair(tile, r, column); };
    const auto written = [&] {  // makes ordinary stores visible to all
        fence_for_wgmma();
        __syncthreads();
    };
    auto& [d_reads, d_removes, d_keys, scores, solved, across] = sums;
    across = sum_warp(across);
    if (lane == 0) shared.across[t / 32] = across;

    const ChunkDecays decays_at{shared.decays};
    if constexpr (!kSummaries) {
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = own_row(i);
            const int column = own_column(i);
            const std::uint32_t p = *pair_at(C::kP, r, column);
            shared.pairs[r * kPitch + column] = scores[i] * low_bf16(p);
            shared.pairs[r * kPitch + column + 1] = scores[i + 1] * high_bf16(p);
        }
        write_lambda<kKeyDim>(m, c, shared, reinterpret_cast<float*>(aligned + C::kX), t);
    }

    float pairs[kOwn / 2] = {};  // dS * S + dL * L
    if constexpr (!kSummaries) {
        // dQ~ and dP as tiles; dW -= S^T dQ~; of dS S * dS and D * dS are wanted.
        store_tile(d_reads, aligned + C::kX + panel * kPanelBytes, row, lane);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = own_row(i);
            const int column = own_column(i);
            *pair_at(C::kValues, r, column) = pack_bf16(scores[i] * pair_lambda(shared, r, column),
                                                        scores[i + 1] * pair_lambda(shared, r, column + 1));
        }
        written();
        float part[32];
        multiply_group<kDepth, true, false>(part, start + C::kS, start + C::kX + panel * kPanelBytes, warp, lane);
#pragma unroll
        for (int i = 0; i < 32; ++i) d_removes[i] -= part[i];
        // dS = dP M^T - dQ~ W^T.
        float removed[kOwn / 2] = {};
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            multiply_tiles<kOwn, kColumns, false>(removed, start + C::kX + i * kPanelBytes,
                                                  start + C::kRemoves + i * kPanelBytes, own_first, warp, lane);
        }
        float d_s[kOwn / 2] = {};
        multiply_tiles<kOwn, kColumns, false>(d_s, start + C::kValues, start + C::kM, own_first, warp, lane);
        multiply_tiles<kOwn, kDepth, true>(solved, start + C::kS, start + C::kValues, own_first, warp, lane);
        float decays[kOwn / 2];
        own_decays<kKeyDim, kForm>(shared, places, decays);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = own_row(i);
            const int column = own_column(i);
            const float s0 = d_s[i] - removed[i];
            const float s1 = d_s[i + 1] - removed[i + 1];
            const std::uint32_t s = *pair_at(C::kS, r, column);
            pairs[i] = s0 * low_bf16(s);
            pairs[i + 1] = s1 * high_bf16(s);
            *pair_at(C::kV, r, column) = pack_bf16(s0 * decays[i], s1 * decays[i + 1]);
        }
    }
    store_tile(d_removes, aligned + C::kDX + panel * kPanelBytes, row, lane);
    written();  // dW and dS * D; dP has been read
    {           // dM
        float by_key[kOwn / 2] = {};
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            multiply_tiles<kOwn, kColumns, false>(by_key, start + C::kDX + i * kPanelBytes,
                                                  start + C::kK + i * kPanelBytes, own_first, warp, lane);
        }
#pragma unroll
        for (int i = 0; i < kOwn / 2; ++i) {
            const int r = own_row(i);
            const int column = own_column(i & ~1) + (i & 1);
            solved[i] = column <= r ? fmaf(by_key[i], decays_at.until()[column], solved[i]) : 0.0F;
        }
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            *pair_at(C::kDValues, own_row(i), own_column(i)) = pack_bf16(solved[i], solved[i + 1]);
        }
    }
    float d_k[32];
    multiply_group<kDepth, true, false>(d_k, start + C::kM, start + C::kDX + panel * kPanelBytes, warp, lane);
    written();
    {  // R
        float r_tile[kOwn / 2] = {};
        multiply_tiles<kOwn, kDepth, true>(r_tile, start + C::kM, start + C::kDValues, own_first, warp, lane);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            *pair_at(C::kD, own_row(i), own_column(i)) = pack_bf16(r_tile[i], r_tile[i + 1]);
        }
    }
    written();
    {  // dL
        float d_l[kOwn / 2] = {};
        multiply_tiles<kOwn, kColumns, false>(d_l, start + C::kD, start + C::kM, own_first, warp, lane);
        float decays[kOwn / 2];
        own_decays<kKeyDim, kForm>(shared, places, decays);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = own_row(i);
            const int column = own_column(i);
            const float l0 = column < r ? -d_l[i] : 0.0F;
            const float l1 = column + 1 < r ? -d_l[i + 1] : 0.0F;
            const std::uint32_t l = *pair_at(C::kL, r, column);
            shared.pairs[r * kPitch + column] = fmaf(l0, low_bf16(l), column < r ? pairs[i] : 0.0F);
            shared.pairs[r * kPitch + column + 1] = fmaf(l1, high_bf16(l), column + 1 < r ? pairs[i + 1] : 0.0F);
            *pair_at(C::kValues, r, column) = pack_bf16(l0 * decays[i], l1 * decays[i + 1]);
        }
    }
    // e^G dQ~, e^G M^T dW and e^(G_C - G) dK^, with their products with q and k: what crosses tokens.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        const float decay = decays_at.until()[r];
        const float to_end = decays_at.writes()[r];
        float incoming = 0.0F;
        float outgoing = 0.0F;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            std::uint32_t q = 0;
            if constexpr (!kSummaries) q = *pair_at(C::kQ + panel * kPanelBytes, r, 8 * j + lane % 4 * 2);
            const std::uint32_t k = *pair_at(C::kK + panel * kPanelBytes, r, 8 * j + lane % 4 * 2);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int at = 4 * j + 2 * half + e;
                const float own_k = e == 0 ? low_bf16(k) : high_bf16(k);
                d_reads[at] *= decay;
                d_k[at] *= decay;
                d_keys[at] *= to_end;
                incoming = fmaf(e == 0 ? low_bf16(q) : high_bf16(q), d_reads[at], incoming);
                incoming = fmaf(own_k, d_k[at], incoming);
                outgoing = fmaf(own_k, d_keys[at], outgoing);
            }
        }
        incoming = sum_quad(incoming);
        outgoing = sum_quad(outgoing);
        if (lane % 4 == 0) {
            shared.by_row[0][panel][r] = incoming;
            shared.by_row[1][panel][r] = decays_at.beta()[r] * outgoing;
        }
    }
    written();
    const std::uint32_t keys = start + C::kK + panel * kPanelBytes;
    // What is read takes keys times beta, what is written gives beta its gradient: Y of matrix.h.
    const auto add_weighed = [&](float(&sum)[32], int tile) {
        std::uint32_t a[4][4];
        load_fragments<false>(a, start + tile, warp, lane);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 f =
                    *reinterpret_cast<const float2*>(decays_at.beta() + 16 * step + 8 * (i / 2) + lane % 4 * 2);
                a[step][i] = pack_bf16(low_bf16(a[step][i]) * f.x, high_bf16(a[step][i]) * f.y);
            }
        }
        issue_product<4, kDepth, true>(sum, a, keys, lane);
        product_commit();
        product_wait<0>();
        product_done(sum);
    };
    add_weighed(d_k, C::kValues);
    multiply_group<kDepth, true, true>(d_keys, start + C::kValues, keys, warp, lane);
    if constexpr (!kSummaries) {
        add_weighed(d_reads, C::kV);
        multiply_group<kDepth, true, true>(d_keys, start + C::kV, start + C::kQ + panel * kPanelBytes, warp, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        const float beta = decays_at.beta()[r];
        float dot = 0.0F;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const std::uint32_t k = *pair_at(C::kK + panel * kPanelBytes, r, 8 * j + lane % 4 * 2);
            const int at = 4 * j + 2 * half;
            dot = fmaf(low_bf16(k), d_keys[at], dot);
            dot = fmaf(high_bf16(k), d_keys[at + 1], dot);
            d_k[at] = fmaf(beta, d_keys[at], d_k[at]);
            d_k[at + 1] = fmaf(beta, d_keys[at + 1], d_k[at + 1]);
        }
        dot = sum_quad(dot);
        if (lane % 4 == 0) shared.by_row[2][panel][r] = dot;
    }
    const auto store = [&](const float(&x)[32], float* to, std::int64_t stride) {
        float* const first = to + (c.first + row) * stride + key_column + panel * 64 + lane % 4 * 2;
        float* const rows[2] = {row < c.rows ? first : nullptr, row + 8 < c.rows ? first + 8 * stride : nullptr};
        put_pairs(x, rows, 8, added);
    };
    if (!kSummaries) store(d_reads, g.q, g.q_stride);
    store(d_k, g.k, g.k_stride);

    write_decays<kKeyDim, kForm>(m, c, shared, t);
}

}  // namespace fenwick::cuda::backward
