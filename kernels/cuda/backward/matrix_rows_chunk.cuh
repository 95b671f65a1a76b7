// What a chunk of a head gets of its own products once the walks have passed: the last part of matrix_rows' kernels.
#pragma once

#include "kernels/cuda/backward/matrix_row_sums.cuh"

namespace fenwick::cuda::backward {

/// Sums over the walks and their tiles, in the layouts of a warpgroup's [64, 64] and of OwnPlaces.
template <int kKeyDim>
struct MatrixSums {
    float d_reads[32] = {};                           // dQ~, columns [64 panel, + 64)
    float d_removes[32] = {};                         // dW
    float d_keys[32] = {};                            // e^(G_C - G) * dK^
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

    if constexpr (kForm == MatrixForm::kOutputs) {
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

    float pairs[kOwn / 2] = {};  // dS * S + dN * N
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
        // dS = dP T^T - dQ~ W^T; linear: (dP - (dQ~ K^T) * e^G by columns) T^T.
        float removed[kOwn / 2] = {};
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            multiply_tiles<kOwn, kColumns, false>(removed, start + C::kX + i * kPanelBytes,
                                                  start + (C::kLinear ? C::kK : C::kRemoves) + i * kPanelBytes,
                                                  own_first, warp, lane);
        }
        if constexpr (C::kLinear) {
#pragma unroll
            for (int i = 0; i < kOwn / 2; i += 2) {
                const int r = own_row(i);
                const int column = own_column(i);
                const float p0 = column <= r ? scores[i] : 0.0F;
                const float p1 = column < r ? scores[i + 1] : 0.0F;
                *pair_at(C::kDValues, r, column) =
                    pack_bf16(p0 - removed[i] * shared.decay[column], p1 - removed[i + 1] * shared.decay[column + 1]);
                removed[i] = 0.0F;
                removed[i + 1] = 0.0F;
            }
            written();
        }
        float d_s[kOwn / 2] = {};
        multiply_tiles<kOwn, kColumns, false>(d_s, start + (C::kLinear ? C::kDValues : C::kValues), start + C::kT,
                                              own_first, warp, lane);
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
    {           // dT
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
            solved[i] = column <= r ? fmaf(by_key[i], shared.decay[column], solved[i]) : 0.0F;
        }
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            *pair_at(C::kDValues, own_row(i), own_column(i)) = pack_bf16(solved[i], solved[i + 1]);
        }
    }
    float d_k[32];
    multiply_group<kDepth, true, false>(d_k, start + C::kT, start + C::kDX + panel * kPanelBytes, warp, lane);
    written();
    {  // R
        float r_tile[kOwn / 2] = {};
        multiply_tiles<kOwn, kDepth, true>(r_tile, start + C::kT, start + C::kDValues, own_first, warp, lane);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            *pair_at(C::kD, own_row(i), own_column(i)) = pack_bf16(r_tile[i], r_tile[i + 1]);
        }
    }
    written();
    float* added_by_pairs = pairs_of<kKeyDim, kForm>(shared, aligned);
    {  // dN, and beta
        float d_n[kOwn / 2] = {};
        float less[kOwn / 2] = {};
        float z[kOwn / 2] = {};
        multiply_tiles<kOwn, kColumns, false>(d_n, start + C::kD, start + C::kT, own_first, warp, lane);
        multiply_tiles<kOwn, kDepth, true>(less, start + C::kN, start + C::kD, own_first, warp, lane);
        multiply_tiles<kOwn, kDepth, false>(z, start + C::kN, start + C::kT, own_first, warp, lane);
        float beta[2] = {};
        float decays[kOwn / 2];
        own_decays<kKeyDim, kForm>(shared, places, decays);
#pragma unroll
        for (int i = 0; i < kOwn / 2; i += 2) {
            const int r = own_row(i);
            const int column = own_column(i);
            const float n0 = column < r ? -d_n[i] : 0.0F;
            const float n1 = column + 1 < r ? -d_n[i + 1] : 0.0F;
            const std::uint32_t n = *pair_at(C::kN, r, column);
            added_by_pairs[r * kPitch + column] = fmaf(n0, low_bf16(n), column < r ? pairs[i] : 0.0F);
            added_by_pairs[r * kPitch + column + 1] = fmaf(n1, high_bf16(n), column + 1 < r ? pairs[i + 1] : 0.0F);
            *pair_at(C::kValues, r, column) = pack_bf16(n0 * decays[i], n1 * decays[i + 1]);
            float& sum = beta[(i & 2) / 2];
            sum = fmaf(solved[i] - less[i], (column == r ? 1.0F : 0.0F) - z[i], sum);
            sum = fmaf(solved[i + 1] - less[i + 1], (column + 1 == r ? 1.0F : 0.0F) - z[i + 1], sum);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = sum_quad(beta[half]);
            if (lane % 4 == 0) shared.by_row[2][panel][row + 8 * half] = sum;
        }
    }
    // dQ = e^G dQ~ and dK = e^G T^T dW + e^(G_C - G) dK^, with their products with q and k: what crosses tokens.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + 8 * half;
        const float decay = shared.decay[r];
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
                incoming = fmaf(e == 0 ? low_bf16(q) : high_bf16(q), d_reads[at], incoming);
                incoming = fmaf(own_k, d_k[at], incoming);
                outgoing = fmaf(own_k, d_keys[at], outgoing);
                d_k[at] += d_keys[at];
            }
        }
        incoming = sum_quad(incoming);
        outgoing = sum_quad(outgoing);
        if (lane % 4 == 0) {
            shared.by_row[0][panel][r] = incoming;
            shared.by_row[1][panel][r] = outgoing;
        }
    }
    written();
    const std::uint32_t keys = start + C::kK + panel * kPanelBytes;
    multiply_group<kDepth, false, true>(d_k, start + C::kValues, keys, warp, lane);
    multiply_group<kDepth, true, true>(d_k, start + C::kValues, keys, warp, lane);
    if constexpr (!kSummaries) {
        multiply_group<kDepth, false, true>(d_reads, start + C::kV, keys, warp, lane);
        multiply_group<kDepth, true, true>(d_k, start + C::kV, start + C::kQ + panel * kPanelBytes, warp, lane);
    }
    const auto store = [&](const float(&x)[32], float* to, std::int64_t stride) {
        float* const first = to + (c.first + row) * stride + key_column + panel * 64 + lane % 4 * 2;
        float* const rows[2] = {row < c.rows ? first : nullptr, row + 8 < c.rows ? first + 8 * stride : nullptr};
        put_pairs(x, rows, 8, added);
    };
    if (!kSummaries) store(d_reads, g.q, g.q_stride);
    store(d_k, g.k, g.k_stride);

    write_decays<kKeyDim, kForm>(m, c, shared, aligned, t);
}

}  // namespace fenwick::cuda::backward
