#include "kernels/cpu/backward/chunk.h"

#include <algorithm>

#include "kernels/cpu/lanes.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;

// From d_scores = d(P * lambda) to dP in place, with lambda's gradients; forms P * lambda. The tokens that row i sees
// at one level are consecutive: one range for each set bit of i, and i itself.
void weigh_scores_backward(const MixerShape& shape, const ChunkScratch& chunk, const float* scores,
                           const ChunkGradients& g) {
    const std::int64_t last = shape.levels - 1;
    for (std::int64_t i = 0; i < kC; ++i) {
        const float* p = scores + i * kC;
        float* d = g.scores + i * kC;
        float* weighted = g.weighted + i * kC;
        const auto range = [&](std::int64_t level, std::int64_t begin, std::int64_t end) {
            const std::int64_t used = i * shape.levels + std::min(level, last);
            const float lambda = chunk.lambda[used];
            g.lambda[used] += dot_product(p + begin, d + begin, end - begin);
            for (std::int64_t j = begin; j < end; ++j) {
                weighted[j] = lambda * p[j];
                d[j] *= lambda;
            }
        };
        range(0, i, i + 1);
        for (std::int64_t b = 0; b < kChunkBits; ++b) {
            if (((i >> b) & 1) == 0) continue;
            const std::int64_t begin = (i >> (b + 1)) << (b + 1);
            range(b + 1, begin, begin + (std::int64_t{1} << b));
        }
        std::fill(d + i + 1, d + kC, 0.0F);
        std::fill(weighted + i + 1, weighted + kC, 0.0F);
    }
}

// states.read = Q~ X becomes lambda^(l) * dO, stream by stream, with lambda's gradients.
void weigh_reads_backward(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                          const float* d_out, const ChunkGradients& g) {
    const std::int64_t dv = shape.value_dim;
    for (std::int64_t s = 0; s < states.columns / dv; ++s) {
        const std::int64_t level = std::min(states.levels[s], shape.levels - 1);
        for (std::int64_t i = 0; i < kC; ++i) {
            float* read = states.read + i * states.columns + s * dv;
            const float* d = d_out + i * dv;
            const float lambda = chunk.lambda[i * shape.levels + level];
            g.lambda[i * shape.levels + level] += dot_product(read, d, dv);
            for (std::int64_t c = 0; c < dv; ++c) read[c] = lambda * d[c];
        }
    }
}

double dot_in_double(const float* x, const float* y, std::int64_t n) {
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < n; ++c) sum += static_cast<double>(x[c]) * static_cast<double>(y[c]);
    return sum;
}

}  // namespace

ChunkGradients carve_chunk_gradients(const MixerShape& s, Carver& carver) {
    const bool matrix = s.algebra == TransitionAlgebra::kMatrix;
    const bool diagonal = s.algebra == TransitionAlgebra::kDiagonal;
    ChunkGradients g;
    g.q = carver.take(kC * s.key_dim);
    g.k = carver.take(kC * s.key_dim);
    g.v = carver.take(kC * s.value_dim);
    g.beta = carver.take(matrix ? kC : 0);
    g.lambda = carver.take(kC * s.levels);
    g.log_decay = reinterpret_cast<double*>(carver.take(diagonal ? 0 : 2 * kC));
    g.log_decay_channel = carver.take(diagonal ? kC * s.key_dim : 0);
    g.scores = carver.take(kC * kC);
    g.q_read = carver.take(kC * s.key_dim);
    g.k_write = carver.take(kC * s.key_dim);
    g.u = matrix ? carver.take(kC * s.value_dim) : g.v;
    g.w = carver.take(matrix ? kC * s.key_dim : 0);
    // A linear read-out of the matrix algebra multiplies U, all others V.
    g.values = s.log_linear() ? g.v : g.u;
    g.carried = reinterpret_cast<double*>(carver.take(2 * (diagonal ? s.key_dim : 1)));
    g.weighted = carver.take(s.log_linear() ? kC * kC : 0);
    g.decay = carver.take(diagonal ? 0 : kC * kC);
    g.tile_a = carver.take(matrix ? kC * kC : 0);
    g.tile_b = carver.take(matrix ? kC * kC : 0);
    g.tile_c = carver.take(matrix ? kC * kC : 0);
    g.rows_a = carver.take(kC * s.key_dim);
    g.rows_b = carver.take(kC * s.key_dim);
    return g;
}

void clear_chunk_gradients(const MixerShape& s, const ChunkGradients& g) {
    const bool matrix = s.algebra == TransitionAlgebra::kMatrix;
    const bool diagonal = s.algebra == TransitionAlgebra::kDiagonal;
    for (float* rows : {g.q, g.k, g.q_read, g.k_write}) std::fill_n(rows, kC * s.key_dim, 0.0F);
    std::fill_n(g.v, kC * s.value_dim, 0.0F);
    std::fill_n(g.lambda, kC * s.levels, 0.0F);
    if (matrix) {
        std::fill_n(g.beta, kC, 0.0F);
        std::fill_n(g.u, kC * s.value_dim, 0.0F);
        std::fill_n(g.w, kC * s.key_dim, 0.0F);
    }
    if (diagonal) {
        std::fill_n(g.log_decay_channel, kC * s.key_dim, 0.0F);
    } else {
        std::fill_n(g.log_decay, kC, 0.0);
    }
    std::fill_n(g.carried, diagonal ? s.key_dim : 1, 0.0);
}

void chunk_outputs_backward(const MixerShape& shape, const ChunkScratch& chunk, const ChunkOperands& operands,
                            const ChunkStates& states, const float* d_out, const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    const std::int64_t columns = states.columns;
    gemm_nt(kC, kC, dv, 1.0F, d_out, dv, operands.values, dv, 0.0F, g.scores, kC);
    if (shape.log_linear()) weigh_scores_backward(shape, chunk, operands.scores, g);
    gemm_tn(kC, dv, kC, 1.0F, shape.log_linear() ? g.weighted : operands.scores, kC, d_out, dv, 1.0F, g.values, dv);
    if (columns == 0) return;
    const float* d_read = d_out;
    if (shape.log_linear()) {
        gemm_nn(kC, columns, dk, 1.0F, operands.q_read, dk, states.before, columns, 0.0F, states.read, columns);
        weigh_reads_backward(shape, chunk, states, d_out, g);
        d_read = states.read;
    }
    gemm_nt(kC, dk, columns, 1.0F, d_read, columns, states.before, columns, 0.0F, g.q_read, dk);
    gemm_tn(dk, columns, kC, 1.0F, operands.q_read, dk, d_read, columns, 0.0F, states.d_before, columns);
}

void own_state_backward(const MixerShape& shape, const ChunkOperands& operands, const ChunkStates& states,
                        const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    gemm_nt(kC, dk, dv, 1.0F, operands.u, dv, states.d_own, states.after_stride, 1.0F, g.k_write, dk);
    gemm_nn(kC, dv, dk, 1.0F, operands.k_write, dk, states.d_own, states.after_stride, 1.0F, g.u, dv);
}

void add_reading_decay(const float* x, const float* dx, std::int64_t cols, double* log_decay) {
    double sum = 0.0;
    for (std::int64_t i = kC - 1; i >= 0; --i) {
        sum += dot_in_double(x + i * cols, dx + i * cols, cols);
        log_decay[i] += sum;
    }
}

void add_writing_decay(const float* x, const float* dx, std::int64_t cols, double* log_decay) {
    double sum = 0.0;
    for (std::int64_t j = 0; j + 1 < kC; ++j) {
        sum += dot_in_double(x + j * cols, dx + j * cols, cols);
        log_decay[j + 1] += sum;
    }
}

void add_pair_decay(const float* x, const float* dx, double* log_decay) {
    for (std::int64_t i = 1; i < kC; ++i) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < i; ++j) {
            sum += static_cast<double>(x[i * kC + j]) * static_cast<double>(dx[i * kC + j]);
            log_decay[j + 1] += sum;
        }
    }
}

void pair_decays(const ChunkScratch& chunk, float* decay) {
    for (std::int64_t i = 0; i < kC; ++i) {
        const double at = chunk.cumulative[i];
        for (std::int64_t j = 0; j <= i; ++j) decay[i * kC + j] = vexp(static_cast<float>(at - chunk.cumulative[j]));
        std::fill(decay + i * kC + i + 1, decay + (i + 1) * kC, 0.0F);
    }
}

}  // namespace fenwick::cpu
