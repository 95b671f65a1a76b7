// Matrix transitions A_t = exp(g_t) (I - b_t k_t k_t^T) (DeltaNet, Gated DeltaNet) in chunk form.
#include <cblas.h>

#include <algorithm>

#include "kernels/cpu/chunk.h"
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

// T = (I + strictly_lower(b * K K^T * D))^-1 diag(b), lower triangular.
void solve_triangle(std::int64_t dk, ChunkScratch& chunk) {
    gemm_nt(kC, kC, dk, 1.0F, chunk.k, dk, chunk.k, dk, 0.0F, chunk.tile, kC);
    for (std::int64_t i = 0; i < kC; ++i) {
        float* row = chunk.tile + i * kC;
        const double at = chunk.cumulative[i];
        const float beta = chunk.beta[i];
        for (std::int64_t j = 0; j < i; ++j) {
            row[j] *= beta * vexp(static_cast<float>(at - chunk.cumulative[j]));
        }
    }
    std::fill_n(chunk.triangle, kC * kC, 0.0F);
    for (std::int64_t i = 0; i < kC; ++i) chunk.triangle[i * kC + i] = chunk.beta[i];
    cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, CblasNoTrans, CblasUnit, kC, kC, 1.0F, chunk.tile, kC,
                chunk.triangle, kC);
}

}  // namespace

void MatrixChunk::prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    float decay_in[kC];
    float decay_out[kC];
    accumulate_log_decay(chunk);
    for (std::int64_t i = 0; i < kC; ++i) {
        decay_in[i] = vexp(static_cast<float>(chunk.cumulative[i]));
        decay_out[i] = vexp(static_cast<float>(chunk.log_decay_all - chunk.cumulative[i]));
    }
    solve_triangle(dk, chunk);
    gemm_nn(kC, dv, kC, 1.0F, chunk.triangle, kC, chunk.v, dv, 0.0F, chunk.u, dv);
    scale_rows(chunk.k, decay_in, dk, chunk.k_write);  // exp(G) K, only until W is formed
    gemm_nn(kC, dk, kC, 1.0F, chunk.triangle, kC, chunk.k_write, dk, 0.0F, chunk.w, dk);
    scale_rows(chunk.k, decay_out, dk, chunk.k_write);
    if (!with_outputs) return;

    float* masked = shape.log_linear() ? chunk.tile : chunk.scores;  // (Q K^T) * D
    gemm_nt(kC, kC, dk, 1.0F, chunk.q, dk, chunk.k, dk, 0.0F, masked, kC);
    for (std::int64_t i = 0; i < kC; ++i) {
        float* row = masked + i * kC;
        const double at = chunk.cumulative[i];
        for (std::int64_t j = 0; j <= i; ++j) row[j] *= vexp(static_cast<float>(at - chunk.cumulative[j]));
        for (std::int64_t j = i + 1; j < kC; ++j) row[j] = 0.0F;
    }
    scale_rows(chunk.q, decay_in, dk, chunk.q_read);
    gemm_nn(kC, dk, kC, -1.0F, masked, kC, chunk.w, dk, 1.0F, chunk.q_read, dk);
    if (shape.log_linear()) {
        // lambda multiplies P = ((Q K^T) * D) T element by element, so P is formed; its upper half is 0 * 0 exactly.
        gemm_nn(kC, kC, kC, 1.0F, masked, kC, chunk.triangle, kC, 0.0F, chunk.scores, kC);
        chunk.values = chunk.v;
    } else {
        chunk.values = chunk.u;  // P V = ((Q K^T) * D) U
    }
}

void MatrixChunk::carry(const MixerShape& shape, const ChunkScratch& chunk, float* states, std::int64_t columns,
                        std::int64_t stride, float* scratch) {
    const std::int64_t dk = shape.key_dim;
    gemm_nn(kC, columns, dk, 1.0F, chunk.w, dk, states, stride, 0.0F, scratch, columns);
    gemm_tn(dk, columns, kC, -1.0F, chunk.k_write, dk, scratch, columns, chunk.decay_all, states, stride);
}

}  // namespace fenwick::cpu
