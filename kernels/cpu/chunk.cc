#include "kernels/cpu/chunk.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/carver.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;

ChunkScratch lay_out(const MixerShape& s, Carver& carver) {
    const bool matrix = s.algebra == TransitionAlgebra::kMatrix;
    const bool diagonal = s.algebra == TransitionAlgebra::kDiagonal;
    const bool scalar = s.algebra == TransitionAlgebra::kScalar;
    ChunkScratch c;
    c.q = carver.take(kC * s.key_dim);
    c.k = carver.take(kC * s.key_dim);
    c.v = carver.take(kC * s.value_dim);
    c.log_decay = carver.take(diagonal ? kC * s.key_dim : kC);
    c.beta = carver.take(matrix ? kC : 0);
    c.lambda = carver.take(kC * s.levels);
    c.scores = carver.take(kC * kC);
    c.values = c.v;
    c.q_read = scalar ? c.q : carver.take(kC * s.key_dim);
    c.k_write = scalar ? c.k : carver.take(kC * s.key_dim);
    c.u = diagonal ? c.v : carver.take(kC * s.value_dim);
    c.w = carver.take(matrix ? kC * s.key_dim : 0);
    c.triangle = carver.take(matrix ? kC * kC : 0);
    c.tile = carver.take(scalar ? 0 : kC * std::max(kC, s.key_dim));
    c.cumulative = reinterpret_cast<double*>(carver.take(2 * kC));
    c.decay_channel = carver.take(diagonal ? s.key_dim : 0);
    c.log_channel = carver.take(diagonal ? s.key_dim : 0);
    return c;
}

void gather(MatrixView<const float> from, std::int64_t first_col, std::int64_t cols, std::int64_t first,
            std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::copy_n(from.row(first + i) + first_col, cols, to + i * cols);
    }
    std::fill(to + count * cols, to + kC * cols, 0.0F);
}

}  // namespace

std::int64_t chunk_scratch_floats(const MixerShape& shape) {
    Carver carver{nullptr};
    lay_out(shape, carver);
    return carver.used;
}

ChunkScratch carve_chunk_scratch(const MixerShape& shape, float* memory) {
    Carver carver{memory};
    return lay_out(shape, carver);
}

void gather_chunk(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  std::int64_t count, bool with_outputs, ChunkScratch& chunk) {
    const std::int64_t key_head = head / (shape.heads / shape.key_heads);
    const std::int64_t dk = shape.key_dim;
    const std::int64_t dv = shape.value_dim;
    gather(inputs.k, key_head * dk, dk, first, count, chunk.k);
    gather(inputs.v, head * dv, dv, first, count, chunk.v);
    const std::int64_t decays = shape.algebra == TransitionAlgebra::kDiagonal ? dk : 1;
    gather(inputs.log_decay, head * decays, decays, first, count, chunk.log_decay);
    if (shape.algebra == TransitionAlgebra::kMatrix) gather(inputs.beta, head, 1, first, count, chunk.beta);
    if (!with_outputs) return;
    gather(inputs.q, key_head * dk, dk, first, count, chunk.q);
    if (shape.log_linear()) {
        gather(inputs.lambda, head * shape.levels, shape.levels, first, count, chunk.lambda);
    }
}

void accumulate_log_decay(ChunkScratch& chunk) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < kC; ++i) {
        const double step = chunk.log_decay[i];
        sum += step < kLogDecayFloor ? kLogDecayFloor : step;
        chunk.cumulative[i] = sum;
    }
    chunk.log_decay_all = sum;
    chunk.decay_all = vexp(static_cast<float>(sum));
}

void apply_lambda_to_scores(const MixerShape& shape, ChunkScratch& chunk) {
    const std::int64_t last = shape.levels - 1;
    for (std::int64_t i = 0; i < kC; ++i) {
        float* row = chunk.scores + i * kC;
        const float* lambda = chunk.lambda + i * shape.levels;
        row[i] *= lambda[0];
        for (std::int64_t b = 0; b < kChunkBits; ++b) {
            if (((i >> b) & 1) == 0) continue;
            const std::int64_t begin = (i >> (b + 1)) << (b + 1);
            const float factor = lambda[std::min(b + 1, last)];
            for (std::int64_t j = begin; j < begin + (std::int64_t{1} << b); ++j) row[j] *= factor;
        }
    }
}

}  // namespace fenwick::cpu
