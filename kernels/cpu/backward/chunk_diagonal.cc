// Diagonal transitions in reverse, pair by pair of the chunk's tree as in kernels/cpu/chunk_diagonal.cc: with a token m
// between j and i, q'_i = q_i exp(g_m + ... + g_i) and k'_j = k_j exp(g_(j+1) + ... + g_(m-1)) have scores Q' K'^T, so
//   dQ' = dP K',  dK' = dP^T Q',  dg_s += sum over i >= s of q'_i dq'_i  (s >= m),  sum over j < s of k'_j dk'_j (s <
//   m).
#include <algorithm>

#include "kernels/cpu/backward/chunk.h"
#include "kernels/cpu/lanes.h"
#include "kernels/gemm.h"
#include "kernels/vector_math.h"

namespace fenwick::cpu {
namespace {

constexpr std::int64_t kC = kChunkTokens;
constexpr std::int64_t kDirect = 8;  // tokens of the recursion's last step

// Rows [first, last) that decay from `first` on: value = exp(g_first + ... + g_i), x_i = value * from_i.
// `backward` then takes d(x): d_from += value * dx, and the decays' gradients.
struct Span {
    const ChunkScratch& chunk;
    const ChunkGradients& g;
    std::int64_t dk;
    std::int64_t first;
    std::int64_t last;

    // exp(g_first + ... + g_i) for each i, into g.rows_a.
    void reading_decays() const {
        float* sum = chunk.decay_channel;
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t i = first; i < last; ++i) {
            for (std::int64_t c = 0; c < dk; ++c) {
                sum[c] += chunk.log_decay[i * dk + c];
                g.rows_a[i * dk + c] = vexp(sum[c]);
            }
        }
    }

    // exp(g_(j+1) + ... + g_(last-1)) for each j, into g.rows_a.
    void writing_decays() const {
        float* sum = chunk.decay_channel;
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t j = last - 1; j >= first; --j) {
            for (std::int64_t c = 0; c < dk; ++c) {
                g.rows_a[j * dk + c] = vexp(sum[c]);
                sum[c] += chunk.log_decay[j * dk + c];
            }
        }
    }

    // x [64, dk] = rows_a * from.
    void scale(const float* from, float* x) const {
        for (std::int64_t i = first * dk; i < last * dk; ++i) x[i] = g.rows_a[i] * from[i];
    }

    void reading_backward(const float* x, const float* dx, float* d_from) const {
        float* sum = chunk.decay_channel;
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t i = last - 1; i >= first; --i) add_row(i, i, x, dx, d_from, sum);
    }

    void writing_backward(const float* x, const float* dx, float* d_from) const {
        float* sum = chunk.decay_channel;
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t j = first; j + 1 < last; ++j) add_row(j, j + 1, x, dx, d_from, sum);
        for (std::int64_t c = (last - 1) * dk; c < last * dk; ++c) d_from[c] += g.rows_a[c] * dx[c];
    }

private:
    void add_row(std::int64_t row, std::int64_t decay_row, const float* x, const float* dx, float* d_from,
                 float* sum) const {
        float* d_log = g.log_decay_channel + decay_row * dk;
        for (std::int64_t c = 0; c < dk; ++c) {
            const std::int64_t i = row * dk + c;
            sum[c] += x[i] * dx[i];
            d_log[c] += sum[c];
            d_from[i] += g.rows_a[i] * dx[i];
        }
    }
};

// The pairs within [first, first + kDirect), one by one.
void direct_backward(const ChunkScratch& chunk, std::int64_t dk, std::int64_t first, const ChunkGradients& g) {
    float* sum = chunk.decay_channel;
    for (std::int64_t j = first; j < first + kDirect; ++j) {
        const float* k = chunk.k + j * dk;
        float* d_k = g.k + j * dk;
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t i = j; i < first + kDirect; ++i) {
            const float d = g.scores[i * kC + j];
            const float* q = chunk.q + i * dk;
            float* d_q = g.q + i * dk;
            float* term = g.rows_a + i * dk;  // d q_i k_j exp(g_(j+1) + ... + g_i)
            for (std::int64_t c = 0; c < dk; ++c) {
                if (i > j) sum[c] += chunk.log_decay[i * dk + c];
                const float weight = d * vexp(sum[c]);
                d_q[c] += weight * k[c];
                d_k[c] += weight * q[c];
                term[c] = weight * q[c] * k[c];
            }
        }
        std::fill_n(sum, dk, 0.0F);
        for (std::int64_t i = first + kDirect - 1; i > j; --i) {
            for (std::int64_t c = 0; c < dk; ++c) {
                sum[c] += g.rows_a[i * dk + c];
                g.log_decay_channel[i * dk + c] += sum[c];
            }
        }
    }
}

void scores_backward(const ChunkScratch& chunk, std::int64_t dk, const ChunkGradients& g) {
    for (std::int64_t half = kC / 2; half >= kDirect; half /= 2) {
        for (std::int64_t first = 0; first < kC; first += 2 * half) {
            const std::int64_t middle = first + half;
            const Span reading{chunk, g, dk, middle, middle + half};
            const Span writing{chunk, g, dk, first, middle};
            reading.reading_decays();
            writing.writing_decays();
            reading.scale(chunk.q, chunk.tile);
            writing.scale(chunk.k, chunk.tile);
            const float* d_scores = g.scores + middle * kC + first;
            float* d_q = g.rows_b + middle * dk;
            float* d_k = g.rows_b + first * dk;
            gemm_nn(half, dk, half, 1.0F, d_scores, kC, chunk.tile + first * dk, dk, 0.0F, d_q, dk);
            gemm_tn(half, dk, half, 1.0F, d_scores, kC, chunk.tile + middle * dk, dk, 0.0F, d_k, dk);
            reading.reading_backward(chunk.tile, g.rows_b, g.q);
            writing.writing_backward(chunk.tile, g.rows_b, g.k);
        }
    }
    for (std::int64_t first = 0; first < kC; first += kDirect) direct_backward(chunk, dk, first, g);
}

}  // namespace

ChunkOperands DiagonalChunkBackward::operands(const MixerShape& /*shape*/, bool /*with_outputs*/,
                                              const ChunkScratch& chunk, const ChunkGradients& /*g*/) {
    return {chunk.scores, chunk.v, chunk.q_read, chunk.k_write, chunk.v};
}

void DiagonalChunkBackward::carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                                  const ChunkGradients& g) {
    const std::int64_t columns = states.columns;
    for (std::int64_t r = 0; r < shape.key_dim; ++r) {
        const float decay = chunk.decay_channel[r];
        const float* d_after = states.d_after + r * states.after_stride;
        float* d_before = states.d_before + r * columns;
        g.carried[r] += static_cast<double>(decay * dot_product(d_after, states.before + r * columns, columns));
        for (std::int64_t c = 0; c < columns; ++c) d_before[c] += decay * d_after[c];
    }
}

void DiagonalChunkBackward::finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                   const ChunkGradients& g) {
    const std::int64_t dk = shape.key_dim;
    const Span whole{chunk, g, dk, 0, kC};  // decay_channel is free once the states are carried
    whole.writing_decays();
    whole.writing_backward(chunk.k_write, g.k_write, g.k);
    if (with_outputs) {
        whole.reading_decays();
        whole.reading_backward(chunk.q_read, g.q_read, g.q);
        scores_backward(chunk, dk, g);
    }
    for (std::int64_t i = 0; i < kC; ++i) {
        for (std::int64_t c = 0; c < dk; ++c) {
            g.log_decay_channel[i * dk + c] += static_cast<float>(g.carried[c]);
        }
    }
}

}  // namespace fenwick::cpu
