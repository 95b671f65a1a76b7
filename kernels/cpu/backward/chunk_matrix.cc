// Matrix transitions in reverse. With L = strictly_lower(b * K K^T * D), T = (I + L)^-1 diag(b), M = (Q K^T) * D:
//   P  = M T                dM = dP T^T                    dT = M^T dP
//   Q~ = exp(G) Q - M W     dM -= dQ~ W^T                  dW = -M^T dQ~
//   X' = exp(G_C) X - K^^T (W X)                           dZ = -K^ dX',  dK^ -= (W X) dX'^T,  dW += dZ X^T
//   U  = T V                dV += T^T dU                   dT += dU V^T
//   W  = T (exp(G) K)       d(exp(G) K) = T^T dW           dT += dW (exp(G) K)^T
//   T                       F = (I + L)^-T dT              db_j += F_jj,  dL = -F T^T
// (dT_ij (I+L)^-1_ij summed over i is F_jj, so that nothing is divided by b.)
#include <cblas.h>

#include "kernels/cpu/backward/chunk.h"
#include "kernels/cpu/lanes.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;

void scale_rows(const float* from, const float* factor, std::int64_t cols, float* to) {
    for (std::int64_t i = 0; i < kC; ++i) {
        for (std::int64_t c = 0; c < cols; ++c) to[i * cols + c] = factor[i] * from[i * cols + c];
    }
}

void add_scaled_rows(const float* from, const float* factor, std::int64_t cols, float* to) {
    for (std::int64_t i = 0; i < kC; ++i) {
        for (std::int64_t c = 0; c < cols; ++c) to[i * cols + c] += factor[i] * from[i * cols + c];
    }
}

// M, which the forward left in one of two places.
const float* masked_scores(const MixerShape& shape, const ChunkScratch& chunk) {
    return shape.log_linear() ? chunk.tile : chunk.scores;
}

// From dT (destroyed) to beta and k, by the triangle; `masked` K K^T * D and the others are tiles.
void triangle_backward(const MixerShape& shape, const ChunkScratch& chunk, float* d_triangle, float* lower,
                       float* d_lower, const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    gemm_nt(kC, kC, dk, 1.0F, chunk.k, dk, chunk.k, dk, 0.0F, lower, kC);
    for (std::int64_t i = 0; i < kC; ++i) {
        for (std::int64_t j = 0; j < kC; ++j) lower[i * kC + j] *= chunk.beta[i] * g.decay[i * kC + j];
    }
    cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasTrans, CblasUnit, kC, kC, 1.0F, lower, kC, d_triangle, kC);
    for (std::int64_t j = 0; j < kC; ++j) g.beta[j] += d_triangle[j * kC + j];
    gemm_nt(kC, kC, kC, -1.0F, d_triangle, kC, chunk.triangle, kC, 0.0F, d_lower, kC);
    add_pair_decay(lower, d_lower, g.log_decay);
    // d(K K^T) = dL * b * D below the diagonal; db_i = sum over j of dL_ij (K K^T)_ij D_ij, formed again without b.
    gemm_nt(kC, kC, dk, 1.0F, chunk.k, dk, chunk.k, dk, 0.0F, lower, kC);
    for (std::int64_t i = 0; i < kC; ++i) {
        const float* decay = g.decay + i * kC;
        float* d = d_lower + i * kC;
        for (std::int64_t j = 0; j < i; ++j) d[j] *= decay[j];
        for (std::int64_t j = i; j < kC; ++j) d[j] = 0.0F;
        g.beta[i] += dot_product(d, lower + i * kC, i);
        for (std::int64_t j = 0; j < i; ++j) d[j] *= chunk.beta[i];
    }
    gemm_nn(kC, dk, kC, 1.0F, d_lower, kC, chunk.k, dk, 1.0F, g.k, dk);
    gemm_tn(kC, dk, kC, 1.0F, d_lower, kC, chunk.k, dk, 1.0F, g.k, dk);
}

}  // namespace

ChunkOperands MatrixChunkBackward::operands(const MixerShape& /*shape*/, bool /*with_outputs*/,
                                            const ChunkScratch& chunk, const ChunkGradients& /*g*/) {
    return {chunk.scores, chunk.values, chunk.q_read, chunk.k_write, chunk.u};
}

void MatrixChunkBackward::carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                                const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t columns = states.columns;
    gemm_nn(kC, columns, dk, 1.0F, chunk.w, dk, states.before, columns, 0.0F, states.read, columns);
    gemm_nn(kC, columns, dk, -1.0F, chunk.k_write, dk, states.d_after, states.after_stride, 0.0F, states.write,
            columns);
    gemm_nt(kC, dk, columns, -1.0F, states.read, columns, states.d_after, states.after_stride, 1.0F, g.k_write, dk);
    gemm_nt(kC, dk, columns, 1.0F, states.write, columns, states.before, columns, 1.0F, g.w, dk);
    gemm_tn(dk, columns, kC, 1.0F, chunk.w, dk, states.write, columns, 1.0F, states.d_before, columns);
    const float decay = chunk.decay_all;
    for (std::int64_t r = 0; r < dk; ++r) {
        const float* d_after = states.d_after + r * states.after_stride;
        float* d_before = states.d_before + r * columns;
        g.carried[0] += static_cast<double>(decay * dot_product(d_after, states.before + r * columns, columns));
        for (std::int64_t c = 0; c < columns; ++c) d_before[c] += decay * d_after[c];
    }
}

void MatrixChunkBackward::finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                 const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    float from_start[kC];
    float to_end[kC];
    for (std::int64_t i = 0; i < kC; ++i) {
        from_start[i] = vexp(static_cast<float>(chunk.cumulative[i]));
        to_end[i] = vexp(static_cast<float>(chunk.log_decay_all - chunk.cumulative[i]));
    }
    pair_decays(chunk, g.decay);
    float* d_triangle = g.tile_a;
    if (with_outputs) {
        const float* masked = masked_scores(shape, chunk);
        float* d_masked = g.scores;
        if (shape.log_linear()) {
            d_masked = g.tile_b;
            gemm_nt(kC, kC, kC, 1.0F, g.scores, kC, chunk.triangle, kC, 0.0F, d_masked, kC);
            gemm_tn(kC, kC, kC, 1.0F, masked, kC, g.scores, kC, 0.0F, d_triangle, kC);
        }
        gemm_nt(kC, kC, dk, -1.0F, g.q_read, dk, chunk.w, dk, 1.0F, d_masked, kC);
        gemm_tn(kC, dk, kC, -1.0F, masked, kC, g.q_read, dk, 1.0F, g.w, dk);
        add_pair_decay(masked, d_masked, g.log_decay);
        for (std::int64_t i = 0; i < kC * kC; ++i) d_masked[i] *= g.decay[i];
        scale_rows(chunk.q, from_start, dk, g.rows_a);
        add_reading_decay(g.rows_a, g.q_read, dk, g.log_decay);
        add_scaled_rows(g.q_read, from_start, dk, g.q);
        gemm_nn(kC, dk, kC, 1.0F, d_masked, kC, chunk.k, dk, 1.0F, g.q, dk);
        gemm_tn(kC, dk, kC, 1.0F, d_masked, kC, chunk.q, dk, 1.0F, g.k, dk);
    }
    const float keep = with_outputs && shape.log_linear() ? 1.0F : 0.0F;
    gemm_nt(kC, kC, dv, 1.0F, g.u, dv, chunk.v, dv, keep, d_triangle, kC);
    gemm_tn(kC, dv, kC, 1.0F, chunk.triangle, kC, g.u, dv, 1.0F, g.v, dv);

    scale_rows(chunk.k, from_start, dk, g.rows_a);
    gemm_nt(kC, kC, dk, 1.0F, g.w, dk, g.rows_a, dk, 1.0F, d_triangle, kC);
    gemm_tn(kC, dk, kC, 1.0F, chunk.triangle, kC, g.w, dk, 0.0F, g.rows_b, dk);
    add_reading_decay(g.rows_a, g.rows_b, dk, g.log_decay);
    add_scaled_rows(g.rows_b, from_start, dk, g.k);

    add_writing_decay(chunk.k_write, g.k_write, dk, g.log_decay);
    add_scaled_rows(g.k_write, to_end, dk, g.k);
    triangle_backward(shape, chunk, d_triangle, g.tile_b, g.tile_c, g);
    for (std::int64_t i = 0; i < kC; ++i) g.log_decay[i] += g.carried[0];
}

}  // namespace fenwick::cpu
