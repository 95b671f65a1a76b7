// One head's chunk of 64 rows: the tile that all mixers are built from (DESIGN section 3, "Chunk form").
#pragma once

#include <cstdint>

#include "core/fenwick.h"
#include "kernels/mixer.h"

namespace fenwick::cpu {

/// exp of anything at or below this is 0 in fp32 and in double, so it stands for -inf in sums of log decays: such sums
/// stay exact enough in double, and their differences never become inf - inf.
inline constexpr double kLogDecayFloor = -1000.0;

/// Scratch of one thread for one chunk. All tiles have 64 rows; rows past the document's end are zero (log decay 0),
/// which adds nothing to any sum and keeps every shape fixed.
struct ChunkScratch {
    float* q = nullptr;          ///< [64, dk] gathered queries
    float* k = nullptr;          ///< [64, dk] gathered keys
    float* v = nullptr;          ///< [64, dv] gathered values
    float* log_decay = nullptr;  ///< [64] (scalar, matrix) or [64, dk] (diagonal)
    float* beta = nullptr;       ///< [64], matrix
    float* lambda = nullptr;     ///< [64, levels]

    float* scores = nullptr;  ///< [64, 64] what multiplies `values` for the chunk's own part of the output
    const float* values = nullptr;
    float* q_read = nullptr;    ///< [64, dk] Q~: what reads the states (scalar: q; the row factor is exp(G_i))
    float* k_write = nullptr;   ///< [64, dk] K^: what writes the chunk's own state (scalar: k; u carries the decay)
    float* u = nullptr;         ///< [64, dv] what K^ is multiplied by
    float* w = nullptr;         ///< [64, dk] matrix: W
    float* triangle = nullptr;  ///< [64, 64] matrix: T
    float* tile = nullptr;      ///< [64, max(64, dk)] free use inside `prepare`

    double* cumulative = nullptr;    ///< [64] G_i, scalar and matrix
    float* decay_channel = nullptr;  ///< [dk] exp(G_C), diagonal
    float* log_channel = nullptr;    ///< [dk] G_C, diagonal
    double log_decay_all = 0.0;      ///< G_C, scalar and matrix
    float decay_all = 1.0F;          ///< exp(G_C), scalar and matrix
};

[[nodiscard]] std::int64_t chunk_scratch_floats(const MixerShape& shape);
/// Lays the scratch out in `memory` (64-byte aligned, chunk_scratch_floats long).
[[nodiscard]] ChunkScratch carve_chunk_scratch(const MixerShape& shape, float* memory);

/// Copies rows [first, first + count) of `head` into the scratch, zero-padded to 64 rows; with `with_outputs` queries
/// and lambda too.
void gather_chunk(const MixerShape& shape, const MixerInputs& inputs, std::int64_t head, std::int64_t first,
                  std::int64_t count, bool with_outputs, ChunkScratch& chunk);

/// G, exp(G_C) of a chunk whose decay is one number a token.
void accumulate_log_decay(ChunkScratch& chunk);

// The algebras. `prepare` fills decays, K^, U (and W); with outputs also `scores` (lambda not yet applied) and Q~.
// `carry` is X <- A_chunk X on wide states X [dk, columns] with row stride `stride`; `scratch` holds 64 * columns.
struct ScalarChunk {
    /// States stay as they are and a log factor is kept beside them: an entering state is its node times a number.
    static constexpr bool kLazyCarry = true;
    static void prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, float* states, std::int64_t columns,
                      std::int64_t stride, float* scratch);
};
struct DiagonalChunk {
    static constexpr bool kLazyCarry = false;
    static void prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, float* states, std::int64_t columns,
                      std::int64_t stride, float* scratch);
};
struct MatrixChunk {
    static constexpr bool kLazyCarry = false;
    static void prepare(const MixerShape& shape, bool with_outputs, ChunkScratch& chunk);
    static void carry(const MixerShape& shape, const ChunkScratch& chunk, float* states, std::int64_t columns,
                      std::int64_t stride, float* scratch);
};

/// scores[i][j] *= lambda_i^(level(i, j)) for j <= i.
void apply_lambda_to_scores(const MixerShape& shape, ChunkScratch& chunk);

}  // namespace fenwick::cpu
