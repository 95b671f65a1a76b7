// The matrix algebra's gradients on the matrix units: DESIGN section 3's chunk form, chunk by chunk.
//
// With S = ((Q K^T) * D) diag(b), L = strictly_lower(K K^T * D) diag(b), M = (I + L)^-1, W = M (e^G * K), U = M V,
// Q~ = e^G * Q - S W and P = S M, a chunk takes a state X to
//
//   X' = e^(G_C) X + K^^T Z,   Z = (U, where it writes) - W X,   K^ = b e^(G_C - G) * K
//   O += lambda * Q~ X where it reads, and its own pairs:  O += (P * Lambda) V
//
// and back:
//
//   dZ = K^ dX',   dX = e^(G_C) dX' - W^T dZ + Q~^T (lambda * dO)
//   dQ~ += lambda * dO X^T,   dW -= dZ X^T,   dK^ += Z dX'^T,   dU += dZ where it writes
//   dP = (dO V^T) * Lambda,   dW -= S^T dQ~,   dS = dP M^T - dQ~ W^T,
//   dM = S^T dP + dW (e^G * K)^T + dU V^T,   dV = (P * Lambda)^T dO + M^T dU
//   R = M^T dM,   dL = -strictly_lower(R M^T),   F = dS * D,   H = dL * D
//   Y = e^(G_C - G) * dK^ + F^T Q + H^T K
//   dQ = e^G * dQ~ + F (b * K),   dK = e^G * (M^T dW) + H (b * K) + b * Y,   d beta = the rows' <K, Y>
//
// Y is the gradient of b * K, which is all that keys do where they write; Z is what tokens would write with b = 1:
// nothing is divided by b. A log decay gets the pairs dS * S + dL * L that cross its token, e^G's products from it on,
// e^(G_C - G)'s before it, and e^(G_C) <dX', X>.
//
// The walks of a block, each a state X with one gradient: log-linear: for each bit < 6 of the chunk's number its pairs
// of runs (the left one writes, the right one reads), and every state that enters; in the step of the block summaries:
// the block's own state, and A (from I, neither written nor read).
//
// Linear: one walk, of the state that enters, which all chunks read and write. What comes after a block depends on its
// summary only by the state A X + S that leaves it, so with that state's gradient dS and the true X one pass gives all,
// and A needs no gradient. The first step walks back from 0, for what each block's own outputs add to dX; the tree
// makes dS of it; the second step walks with both and forms all gradients of rows. With one walk W, U and Q~ need not
// be formed, pairs come of Z, and V's gradient of the walk:
//
//   Z = M (V - e^G * K X),   O = e^G * Q X + S Z
//   dV = M^T (K^ dX' + S^T dO),   dX = e^(G_C) dX' + Q^T (e^G * dO) - K^T (e^G * dV)
//   dS = lower(dO Z^T),   dL = -strictly_lower(dV Z^T),   dQ~ = dO X^T,   M^T dW = -dV X^T
//
// Where decays make a block forget (vanished.cuh) walks have fewer chunks: what entered it ends with the chunk before
// which it has vanished, its own state's starts with the last one after which nothing of older ones is left, and A that
// the forward pass takes for zero has none.
//
//   matrix_prepare      M and S, as the forward pass has them, and what blocks remember; log-linear: W, U, Q~
//   matrix_walks        X and Z forward, dX' and dZ back, by columns of 64; matrix_walks_linear: of linear models, dV
//                       for dZ
//   matrix_rows         everything per token; matrix_rows_linear: of linear models, but V's
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/backward/batch.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/vanished.cuh"

namespace fenwick::cuda::backward {

inline constexpr int kMatrixMostSlots = 16;  ///< states that may enter a block
inline constexpr int kMatrixMostWalks = kChunkBits + kMatrixMostSlots;

/// What all kernels of one batch of blocks share. "Tile": 64 x 64 bf16 as tile.cuh lays them; a matrix [64 or d_k, n]
/// is panels of 64 columns, a state [d_k, 64 columns] one panel of d_k rows.
struct Matrix : Batch {
    int walks = 0;              ///< of a block
    int walk_tiles = 0;         ///< places for 64-column tiles of a walk: `tiles`, or more where A's columns need them
    bool summaries = false;     ///< the step of the block summaries
    std::int64_t d_blocks = 0;  ///< blocks from the batch's first on for which d_summaries has a gradient

    /// Of the batch's chunks, as of a linear model: `second` is S. In the plan of a linear model: of the shard's.
    matrix::Prepared prepared;
    BlockMemory* memory = nullptr;  ///< [batch blocks][heads]
    // By chunk of the batch, then head; log-linear.
    __nv_bfloat16* removes = nullptr;  ///< W [64, d_k]
    __nv_bfloat16* reads = nullptr;    ///< Q~ [64, d_k]
    __nv_bfloat16* writes = nullptr;   ///< U [64, tiles * 64]
    // By chunk of the batch, walk, head and tile; linear: transposed, a state as panels of 64 key columns.
    __nv_bfloat16* states = nullptr;     ///< X before the chunk [d_k, 64]
    __nv_bfloat16* values = nullptr;     ///< Z [64, 64]
    __nv_bfloat16* d_states = nullptr;   ///< dX' after the chunk [d_k, 64]
    __nv_bfloat16* d_values = nullptr;   ///< -dZ; linear: -dV [64, 64]
    const float* entering = nullptr;     ///< E  [batch blocks][slots][heads][d_k, d_v]
    float* d_entering = nullptr;         ///< dE, the same
    const float* d_summaries = nullptr;  ///< [batch blocks][heads][d_k, d_k + d_v]: dA, then dS
};

/// One walk of one block of a log-linear model, as the kernels see it.
struct MatrixWalk {
    int bit;  ///< of the chunks' numbers; -1: one run
    bool reads, writes, there;
    int level;  ///< of lambda
    int tiles;  ///< of 64 columns
    int columns;
    const float* first;  ///< X before the block [d_k, columns], or null: zero, or (identity) I
    bool identity;
    float* d_first;     ///< gets dX before the block, or null
    const float* last;  ///< dX' after the block, or null: zero
    int first_chunk;    ///< [first_chunk, end_chunk) have a part in it, the others none
    int end_chunk;

    /// The chunk that follows the left run of the pair of `chunk`.
    [[nodiscard]] constexpr int end(int chunk) const { return ((chunk >> (bit + 1)) << (bit + 1)) + (1 << bit); }
    /// Whether, for the chunk's pair of runs, there is a right one.
    [[nodiscard]] constexpr bool has_pair(int chunk, int chunks) const { return bit < 0 || end(chunk) < chunks; }
    /// Whether the chunk has a part in it.
    [[nodiscard]] constexpr bool takes(int chunk, int chunks) const {
        return chunk >= first_chunk && chunk < end_chunk && has_pair(chunk, chunks);
    }
    [[nodiscard]] constexpr bool reads_at(int chunk) const { return reads && (bit < 0 || (chunk >> bit & 1) != 0); }
    [[nodiscard]] constexpr bool writes_at(int chunk) const { return writes && (bit < 0 || (chunk >> bit & 1) == 0); }
};

[[nodiscard]] bool has_matrix_kernels(const MixerShape& shape, Operand operand, std::int64_t rows,
                                      std::int64_t first_block);
/// `slots`: the tree's; `kept`: of a linear model, what the forward pass leaves.
[[nodiscard]] Matrix make_matrix(const MixerShape& shape, std::int64_t rows, int slots, const matrix::Kept* kept,
                                 Carver& carver);

/// As the plain path's; gradients of rows are overwritten. Linear: nothing but dE; the rest is the next call's.
void launch_matrix_outputs(const Matrix& plan, const Call& call, const Tree& tree);
/// Gradients of rows are added to; linear: overwritten, those of blocks that d_summaries does not have as well. The
/// workspace is as launch_matrix_outputs and the tree left it.
void launch_matrix_summaries(const Matrix& plan, const Call& call, const Tree& tree, std::int64_t blocks,
                             const float* d_summaries);

// The parts of these two.
/// M and S.
void launch_matrix_prepare(const Matrix& m);
/// `memory`.
void launch_matrix_memory(const Matrix& m);
/// W, U and Q~ of a log-linear model, from M and S.
void launch_matrix_expand(const Matrix& m);
void launch_matrix_walks(const Matrix& m);
void launch_matrix_walks_linear(const Matrix& m);
/// Back with nothing kept but dE.
void launch_matrix_entering_gradients(const Matrix& m);
void launch_matrix_rows(const Matrix& m);
void launch_matrix_rows_linear(const Matrix& m);

}  // namespace fenwick::cuda::backward
