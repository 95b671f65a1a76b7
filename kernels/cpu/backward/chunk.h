// One head's chunk of 64 rows in reverse: gradients of what kernels/cpu/chunk.h prepares, and of the states' carry.
//
// With Q~, K^, U as there, P the scores, X_l the states before the chunk and dX'_l, dS the gradients of the states and
// of the chunk's own state after it:
//   O   = (P * lambda) V + sum over l of lambda^(l) (Q~ X_l)     d(P * lambda) = dO V^T,  dV = (P * lambda)^T dO
//                                                                dQ~ = sum_l (lambda^(l) dO) X_l^T
//                                                                dX_l = Q~^T (lambda^(l) dO) + A^T dX'_l
//   own = K^^T U                                                 dK^ = U dS^T,  dU = K^ dS
// What is left, from d(P), dQ~, dK^, dU to q, k, v, beta and the log decays, is each algebra's own.
//
// Gradients of log decays are sums over the pairs that a decay stands between. They are added as such: suffix sums of
// what decays from the chunk's start, prefix sums of what decays to its end, and pair by pair in between; nothing is
// added that is subtracted again, so that weak pairs keep their digits beside strong ones.
#pragma once

#include <cstdint>

#include "kernels/cpu/carver.h"
#include "kernels/cpu/chunk.h"

namespace fenwick::cpu {

/// The states that a chunk meets, side by side as in block_walk.cc, and their gradients.
struct ChunkStates {
    std::int64_t columns = 0;        ///< slots * dv, and the columns that are only carried
    const float* before = nullptr;   ///< X [dk, columns]
    float* d_before = nullptr;       ///< [dk, columns]
    const float* d_after = nullptr;  ///< of A X: [dk, columns] with row stride `after_stride`
    const float* d_own = nullptr;    ///< of the chunk's own state: [dk, dv], the same row stride
    std::int64_t after_stride = 0;
    const std::int64_t* levels = nullptr;  ///< token level of each slot
    float* read = nullptr;                 ///< [64, columns] free use
    float* write = nullptr;                ///< [64, columns] free use
};

/// What the chunk's outputs and its own state are products of; see kernels/cpu/chunk.h.
struct ChunkOperands {
    const float* scores = nullptr;
    const float* values = nullptr;
    const float* q_read = nullptr;   ///< with its decay, in every algebra
    const float* k_write = nullptr;  ///< likewise
    const float* u = nullptr;
};

/// Gradients of one chunk, and tiles to form them in. Cleared before each chunk; rows past the end stay unread.
struct ChunkGradients {
    float* q = nullptr;                  ///< [64, dk]
    float* k = nullptr;                  ///< [64, dk]
    float* v = nullptr;                  ///< [64, dv]
    float* beta = nullptr;               ///< [64], matrix
    float* lambda = nullptr;             ///< [64, levels]
    double* log_decay = nullptr;         ///< [64] scalar, matrix
    float* log_decay_channel = nullptr;  ///< [64, dk] diagonal

    float* scores = nullptr;   ///< [64, 64] of P
    float* values = nullptr;   ///< of ChunkOperands::values: `v` or `u`
    float* q_read = nullptr;   ///< [64, dk] of Q~
    float* k_write = nullptr;  ///< [64, dk] of K^
    float* u = nullptr;        ///< [64, dv] of U; `v` but for the matrix algebra
    float* w = nullptr;        ///< [64, dk] of W, matrix
    /// Of all the chunk's log decays alike; what comes from the states' carry. [1] or [dk].
    double* carried = nullptr;

    float* weighted = nullptr;  ///< [64, 64] P * lambda, log-linear
    float* decay = nullptr;     ///< [64, 64] scalar, matrix: D, zero above the diagonal
    float* tile_a = nullptr;    ///< [64, 64] free use, matrix
    float* tile_b = nullptr;    ///< [64, 64] free use, matrix
    float* tile_c = nullptr;    ///< [64, 64] free use, matrix
    float* rows_a = nullptr;    ///< [64, dk] free use; scalar: Q~
    float* rows_b = nullptr;    ///< [64, dk] free use; scalar: K^
};

[[nodiscard]] ChunkGradients carve_chunk_gradients(const MixerShape& shape, Carver& carver);
void clear_chunk_gradients(const MixerShape& shape, const ChunkGradients& g);

/// Of the chunk's output rows, d_out [64, dv]: sets d_before (the read-out's part), and adds to `scores`, `values`,
/// `q_read` and `lambda`.
void chunk_outputs_backward(const MixerShape& shape, const ChunkScratch& chunk, const ChunkOperands& operands,
                            const ChunkStates& states, const float* d_out, const ChunkGradients& g);

/// Of the chunk's own state: adds to `k_write` and `u`.
void own_state_backward(const MixerShape& shape, const ChunkOperands& operands, const ChunkStates& states,
                        const ChunkGradients& g);

/// The parts of dg, each added to log_decay[s], s in [0, 64); x, dx [64, cols].
///   reading: x_i has exp(g_0 + ... + g_i):        sum over i >= s of x_i . dx_i
///   writing: x_j has exp(g_(j+1) + ... + g_63):   sum over j < s of x_j . dx_j
///   pairs:   x_ij has exp(g_(j+1) + ... + g_i):   sum over i >= s > j of x_ij dx_ij
void add_reading_decay(const float* x, const float* dx, std::int64_t cols, double* log_decay);
void add_writing_decay(const float* x, const float* dx, std::int64_t cols, double* log_decay);
void add_pair_decay(const float* x, const float* dx, double* log_decay);

/// D[i][j] = exp(G_i - G_j) for j <= i, else 0.
void pair_decays(const ChunkScratch& chunk, float* decay);

// The algebras. `operands` names (scalar: forms) what chunk_outputs_backward and own_state_backward take, once the
// forward's `prepare` has run. `carry` adds A^T dX' to d_before. `finish` goes from the operands' gradients to the
// inputs'; without outputs those of `scores` and `q_read` are zero and not looked at.
struct ScalarChunkBackward {
    using Forward = ScalarChunk;
    static ChunkOperands operands(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                  const ChunkGradients& g);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                      const ChunkGradients& g);
    static void finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk, const ChunkGradients& g);
};
struct DiagonalChunkBackward {
    using Forward = DiagonalChunk;
    static ChunkOperands operands(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                  const ChunkGradients& g);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                      const ChunkGradients& g);
    static void finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk, const ChunkGradients& g);
};
struct MatrixChunkBackward {
    using Forward = MatrixChunk;
    static ChunkOperands operands(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk,
                                  const ChunkGradients& g);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, const ChunkStates& states,
                      const ChunkGradients& g);
    static void finish(const MixerShape& shape, bool with_outputs, const ChunkScratch& chunk, const ChunkGradients& g);
};

}  // namespace fenwick::cpu
