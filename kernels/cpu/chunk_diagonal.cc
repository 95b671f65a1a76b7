// Diagonal transitions A_t = Diag(exp(g_t)) (GLA, HGRN-2, HGRN): the decay stands inside the product Q K^T, per
// channel.
//
// exp(G_i - G_j) cannot be split into exp(G_i) exp(-G_j) (the second overflows). It can be split at any token m with
// j < m <= i: both factors are then decays <= 1. The chunk's own Fenwick tree offers such an m for every pair, so the
// pairs of one tree vertex are one small product; the last 8 tokens of the recursion are summed pair by pair. All
// exponents are sums of log decays of one sign, never differences: -inf is harmless and nothing cancels.
#include <algorithm>

#include "kernels/cpu/chunk.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;
constexpr std::int64_t kDirect = 8;

// to_i = from_i * exp(g_first + ... + g_i) for i in [first, last).
void decay_forward(const ChunkScratch& chunk, std::int64_t dk, const float* from, std::int64_t first, std::int64_t last,
                   float* sum, float* to) {
    std::fill_n(sum, dk, 0.0F);
    for (std::int64_t i = first; i < last; ++i) {
        for (std::int64_t c = 0; c < dk; ++c) {
            sum[c] += chunk.log_decay[i * dk + c];
            to[i * dk + c] = from[i * dk + c] * vexp(sum[c]);
        }
    }
}

// to_j = from_j * exp(g_(j+1) + ... + g_(last-1)) for j in [first, last).
void decay_backward(const ChunkScratch& chunk, std::int64_t dk, const float* from, std::int64_t first,
                    std::int64_t last, float* sum, float* to) {
    std::fill_n(sum, dk, 0.0F);
    for (std::int64_t j = last - 1; j >= first; --j) {
        for (std::int64_t c = 0; c < dk; ++c) {
            to[j * dk + c] = from[j * dk + c] * vexp(sum[c]);
            sum[c] += chunk.log_decay[j * dk + c];
        }
    }
}

void direct_scores(const ChunkScratch& chunk, std::int64_t dk, std::int64_t first, float* sum) {
    for (std::int64_t j = first; j < first + kDirect; ++j) {
        std::fill_n(sum, dk, 0.0F);
        const float* k = chunk.k + j * dk;
        for (std::int64_t i = j; i < first + kDirect; ++i) {
            const float* q = chunk.q + i * dk;
            const float* g = chunk.log_decay + i * dk;
            float score = 0.0F;
            if (i == j) {
#pragma omp simd reduction(+ : score)
                for (std::int64_t c = 0; c < dk; ++c) score += q[c] * k[c];
            } else {
#pragma omp simd reduction(+ : score)
                for (std::int64_t c = 0; c < dk; ++c) {
                    sum[c] += g[c];
                    score += q[c] * k[c] * vexp(sum[c]);
                }
            }
            chunk.scores[i * kC + j] = score;
        }
    }
}

}  // namespace

void DiagonalChunk::prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk) {
    const std::int64_t dk = shape.key_dim;
    float* sum = chunk.log_channel;
    if (with_outputs) {
        std::fill_n(chunk.scores, kC * kC, 0.0F);
        for (std::int64_t half = kC / 2; half >= kDirect; half /= 2) {
            for (std::int64_t first = 0; first < kC; first += 2 * half) {
                const std::int64_t middle = first + half;
                decay_forward(chunk, dk, chunk.q, middle, middle + half, sum, chunk.tile);
                decay_backward(chunk, dk, chunk.k, first, middle, sum, chunk.tile);
                gemm_nt(half, half, dk, 1.0F, chunk.tile + middle * dk, dk, chunk.tile + first * dk, dk, 0.0F,
                        chunk.scores + middle * kC + first, kC);
            }
        }
        for (std::int64_t first = 0; first < kC; first += kDirect) direct_scores(chunk, dk, first, sum);
        decay_forward(chunk, dk, chunk.q, 0, kC, sum, chunk.q_read);
    }
    decay_backward(chunk, dk, chunk.k, 0, kC, sum, chunk.k_write);  // leaves G_C in `sum`
    for (std::int64_t c = 0; c < dk; ++c) chunk.decay_channel[c] = vexp(sum[c]);
}

void DiagonalChunk::carry(const MixerShape& shape, const ChunkScratch& chunk, float* states, std::int64_t columns,
                          std::int64_t stride, float* /*scratch*/) {
    for (std::int64_t r = 0; r < shape.key_dim; ++r) {
        const float decay = chunk.decay_channel[r];
        for (std::int64_t c = 0; c < columns; ++c) states[r * stride + c] *= decay;
    }
}

}  // namespace fenwick::cpu
