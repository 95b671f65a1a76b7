// Scalar transitions (RetNet, Mamba-2, simple GLA): the matrix algebra with T = I and W = 0.
#include "kernels/cpu/chunk.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {

void ScalarChunk::prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk) {
    constexpr std::int64_t kC = kChunkTokens;
    const std::int64_t dv = shape.value_dim;
    accumulate_log_decay(chunk);
    for (std::int64_t j = 0; j < kC; ++j) {
        const float decay = vexp(static_cast<float>(chunk.log_decay_all - chunk.cumulative[j]));
        for (std::int64_t c = 0; c < dv; ++c) chunk.u[j * dv + c] = decay * chunk.v[j * dv + c];
    }
    if (!with_outputs) return;
    gemm_nt(kC, kC, shape.key_dim, 1.0F, chunk.q, shape.key_dim, chunk.k, shape.key_dim, 0.0F, chunk.scores, kC);
    for (std::int64_t i = 0; i < kC; ++i) {
        float* row = chunk.scores + i * kC;
        const double at = chunk.cumulative[i];
        for (std::int64_t j = 0; j <= i; ++j) row[j] *= vexp(static_cast<float>(at - chunk.cumulative[j]));
        for (std::int64_t j = i + 1; j < kC; ++j) row[j] = 0.0F;
    }
}

void ScalarChunk::carry(const MixerShape& /*shape*/, const ChunkScratch& /*chunk*/, float* /*states*/,
                        std::int64_t /*columns*/, std::int64_t /*stride*/, float* /*scratch*/) {
    // The walk adds G_C to the log factor kept beside each state.
}

}  // namespace fenwick::cpu
