// Scalar transitions in reverse: P = (Q K^T) * D, Q~ = exp(G) * Q, K^ = exp(G_C - G) * K, U = V.
#include "kernels/cpu/backward/chunk.h"
#include "kernels/cpu/lanes.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;

}  // namespace

ChunkOperands ScalarChunkBackward::operands(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                            const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    for (std::int64_t i = 0; i < kC; ++i) {
        const float to_end = vexp(static_cast<float>(chunk.log_decay_all - chunk.cumulative[i]));
        for (std::int64_t c = 0; c < dk; ++c) g.rows_b[i * dk + c] = to_end * chunk.k[i * dk + c];
        if (!with_outputs) continue;
        const float from_start = vexp(static_cast<float>(chunk.cumulative[i]));
        for (std::int64_t c = 0; c < dk; ++c) g.rows_a[i * dk + c] = from_start * chunk.q[i * dk + c];
    }
    return {chunk.scores, chunk.v, g.rows_a, g.rows_b, chunk.v};
}

void ScalarChunkBackward::carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                                const ChunkGradients& g) {
    const std::int64_t columns = states.columns;
    const float decay = chunk.decay_all;
    for (std::int64_t r = 0; r < shape.key_dim; ++r) {
        const float* d_after = states.d_after + r * states.after_stride;
        float* d_before = states.d_before + r * columns;
        g.carried[0] += static_cast<double>(decay * dot_product(d_after, states.before + r * columns, columns));
        for (std::int64_t c = 0; c < columns; ++c) d_before[c] += decay * d_after[c];
    }
}

void ScalarChunkBackward::finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                 const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    add_writing_decay(g.rows_b, g.k_write, dk, g.log_decay);
    for (std::int64_t i = 0; i < kC; ++i) {
        const float to_end = vexp(static_cast<float>(chunk.log_decay_all - chunk.cumulative[i]));
        for (std::int64_t c = 0; c < dk; ++c) g.k[i * dk + c] = to_end * g.k_write[i * dk + c];
    }
    if (with_outputs) {
        add_reading_decay(g.rows_a, g.q_read, dk, g.log_decay);
        for (std::int64_t i = 0; i < kC; ++i) {
            const float from_start = vexp(static_cast<float>(chunk.cumulative[i]));
            for (std::int64_t c = 0; c < dk; ++c) g.q[i * dk + c] = from_start * g.q_read[i * dk + c];
        }
        add_pair_decay(chunk.scores, g.scores, g.log_decay);
        pair_decays(chunk, g.decay);
        for (std::int64_t i = 0; i < kC * kC; ++i) g.scores[i] *= g.decay[i];
        gemm_nn(kC, dk, kC, 1.0F, g.scores, kC, chunk.k, dk, 1.0F, g.q, dk);
        gemm_tn(kC, dk, kC, 1.0F, g.scores, kC, chunk.q, dk, 1.0F, g.k, dk);
    }
    for (std::int64_t i = 0; i < kC; ++i) g.log_decay[i] += g.carried[0];
}

}  // namespace fenwick::cpu
