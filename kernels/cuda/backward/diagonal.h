// The diagonal algebra's gradients on the matrix units: bf16 tiles, fp32 sums; every decay a product of numbers <= 1.
//
// Per channel c of a head, with a_t the decays. The leaf is a chunk of 64 tokens, prepared as in the forward pass
// (diagonal_plan.h): q~ = decay from the chunk's start to t, times q; k^ = decay from s to its end, times k. For every
// bit b < 6 of a chunk's number and each pair of neighbouring runs of 2^b chunks, of which the left one ends at n:
//
//   N  = sum over the left run's s of (decay from s to n) k_s v_s^T                its state, which the right run reads
//   dN = sum over the right run's t of (decay from n to t) q_t (lambda_t do_t)^T    its gradient
//
// and for every state E that enters the block the same with all of its tokens on the right. A chunk reads N and dN of
// its runs, carried over the whole chunks between (`carry`, [d_k]):
//
//   dq_t = (decay from the chunk's start to t) sum over states of lambda_t carry (N do_t)
//   dk_s = (decay from s to the chunk's end) sum over gradients of carry (dN v_s),   dv_s = sum of (carry dN)^T k^_s
//
// Linear (lambda = 1): one state H that enters each chunk and one gradient D of what leaves it. What comes after a
// block depends on its summary only by the state that leaves it, whose gradient dS is: with H of the true past and D
// from dS on one pass gives all gradients, and those of the block's decays are not needed. So the first step walks back
// from 0, for dE; the tree makes dS of it; the second step does all else.
//
// Inside the chunk the same by halves: for each b < 6 the pairs whose numbers differ first in bit b, t in the right run
// of 2^b tokens and s in the left one. With F_i the decay between token i and the runs' boundary, X = dO V^T, and
//
//   Z: rows F_i q_i (i right) or F_i k_i (i left)     Y: X_ij (i right, j left), lambda_j X_ji (i left, j right)
//
// one masked product R = Y Z gives dq_i += lambda_i F_i R_i, dk_i += F_i R_i, and lambda's gradient is Z_i . R_i.
//
//   diagonal_walks      N, dN and dE; H and D
//   diagonal_rows       all else per token: a thread block has a chunk of a head
//   diagonal_crossings  carries' parts; log decays: pairs that cross a chunk wholly, from sums of diagonal_rows
//
// A log decay gets the pairs that cross its token: prefix and suffix sums of terms of one kind; nothing of different
// roundings is subtracted. Value columns come in tiles of 64; a column of work is a (head, tile).
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/backward/batch.h"
#include "kernels/cuda/diagonal_plan.h"

namespace fenwick::cuda::backward {

inline constexpr int kDiagonalMostSlots = 16;  ///< states that may enter a block
inline constexpr int kDiagonalMostLevels = 64;
inline constexpr int kDiagonalSums = kChunkBits + 1;          ///< of a chunk: by bit, then what entered the block
inline constexpr int kDiagonalRuns = 2 * (int{kChunks} - 1);  ///< aligned runs of 1, 2, ... 32 chunks of a block

/// Place of the run of 2^bit chunks with number `index` in a block.
[[nodiscard]] constexpr int run_place(int bit, int index) {
    return 2 * kChunks - (2 * kChunks >> bit) + index;
}

/// What a thread block of diagonal_rows does.
enum class DiagonalStep {
    kOutputs,    ///< log-linear, first step
    kSummaries,  ///< log-linear, second step: what dS of the block gives
    kLinear,     ///< linear, second step: everything
};

/// Everything that the kernels of one batch of blocks share.
struct Diagonal : Batch {
    int columns = 0;            ///< heads * tiles
    std::int64_t d_blocks = 0;  ///< second step: blocks from the batch's first on for which d_summaries has a gradient

    diagonal::Prepared prepared;         ///< of the batch's chunks
    float* runs = nullptr;               ///< [batch blocks][heads][kDiagonalRuns][d_k]: decays of runs (log-linear)
    __nv_bfloat16* nodes = nullptr;      ///< [batch blocks][64][columns][d_k, 64]: N by the chunk after it; H by chunk
    __nv_bfloat16* d_nodes = nullptr;    ///< the same: dN; D by chunk
    __nv_bfloat16* entering = nullptr;   ///< [batch blocks][slots][columns][d_k, 64]: E, or (second step) dS
    const float* states = nullptr;       ///< [batch blocks][slots][heads][d_k, d_v]: E
    float* d_entering = nullptr;         ///< the same: dE
    const float* d_summaries = nullptr;  ///< [batch blocks][heads][d_k + d_k d_v]: dA, dS
    float* sums = nullptr;               ///< [batch blocks][heads][64 chunks][kDiagonalSums][d_k] (log-linear)
    float* d_q = nullptr;                ///< [heads][rows of the batch][d_k], where heads share keys
    float* d_k = nullptr;
};

/// Whether the shape and operand have these kernels, on this GPU.
[[nodiscard]] bool has_diagonal_kernels(const MixerShape& shape, Operand operand, std::int64_t rows,
                                        std::int64_t first_block);
/// `slots`: the tree's.
[[nodiscard]] Diagonal make_diagonal(const MixerShape& shape, std::int64_t rows, int slots, Carver& carver);

/// As the plain path's; gradients of rows are overwritten. Linear: nothing but dE; the rest is the next call's.
void launch_diagonal_outputs(const Diagonal& plan, const Call& call, const Tree& tree);
/// Gradients of rows are added to; linear: overwritten, those of blocks that d_summaries does not have as well. The
/// workspace is as launch_diagonal_outputs and the tree left it.
void launch_diagonal_summaries(const Diagonal& plan, const Call& call, const Tree& tree, std::int64_t blocks,
                               const float* d_summaries);

// The parts of these two.
void launch_diagonal_runs(const Diagonal& s);
/// N of all runs, or H of all chunks.
void launch_diagonal_walks(const Diagonal& s);
/// dN and dE, or D of all chunks.
void launch_diagonal_walks_back(const Diagonal& s);
/// Linear: dE alone.
void launch_diagonal_entering_gradients(const Diagonal& s);
void launch_diagonal_rows(const Diagonal& s, DiagonalStep step);
/// Log-linear. `summaries`: the second step.
void launch_diagonal_crossings(const Diagonal& s, bool summaries);

}  // namespace fenwick::cuda::backward
