// The scalar algebra's gradients on the matrix units: bf16 tiles, fp32 sums.
//
// The leaf is a chunk of 64 tokens. With G the cumulative log decay inside the block, and for every bit b < 6 the pairs
// of neighbouring runs of 2^b chunks, the left one ending at token n:
//
//   N  = sum over the left run's s of exp(G_n - G_s) k_s v_s^T             its state, which the right run reads
//   dN = sum over the right run's t of lambda_t exp(G_t - G_n) q_t do_t^T  its gradient
//
// and for every state E that enters the block, the same with all of the block's tokens on the right. Then, per token,
//
//   dq_t = sum over states of lambda_t e_t N do_t                e_t = exp(G_t - G_n)
//   dk_s = sum over gradients of e_s dN v_s                      e_s = exp(G_n - G_s)
//   dv_s = sum over gradients of e_s dN^T k_s
//
// and the chunk's own pairs as masked products: with X = dO V^T, P = Q K^T, D = exp(G_t - G_s) and the lambda of each
// pair's level M,  dV += (P D M)^T dO,  dQ += W K,  dK += W^T Q,  W = X D M. (W is summed over the heads of a key head
// before its products.) Gradients of lambda are row sums of X P D, and row products of q with N do.
//
//   scalar_products   N of all runs; dN and dE
//   scalar_rows       all else per token: a thread block has a chunk and walks over the heads that share its keys
//   scalar_gradients  what gradients of states (dN; dS of block summaries) add to dk, dv and log decays
//   scalar_crossings  log decays: pairs that cross a chunk wholly, from sums that these two leave
//
// A log decay gets the pairs that cross its token: inside the chunk from one fp32 array of pairs, elsewhere sums of
// one kind over runs; nothing of different roundings is subtracted. The linear read-out has lambda = 1 and one E.
//
// Value columns come in tiles of 64; a column of work is a (head, tile).
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/backward/batch.h"

namespace fenwick::cuda::backward {

inline constexpr int kRunBits = kChunkBits;  ///< bits of a chunk's number inside its block

inline constexpr int kMostSlots = 24;   ///< states that may enter a block
inline constexpr int kMostLevels = 64;  ///< of lambda
inline constexpr int kChunkSums = kRunBits + 1;

/// Everything that the kernels of one batch of blocks share.
struct Scalar : Batch {
    int columns = 0;  ///< heads * tiles
    int parts = 0;    ///< thread blocks that share a chunk: a multiple of the key heads

    double* cumulative = nullptr;       ///< [heads][padded_rows]: G, inclusive, from each block's start
    __nv_bfloat16* nodes = nullptr;     ///< [batch blocks][64][columns][d_k, 64]: N by the chunk that follows it
    __nv_bfloat16* d_nodes = nullptr;   ///< the same: dN
    __nv_bfloat16* entering = nullptr;  ///< [batch blocks][slots][columns][d_k, 64]: E, or (summaries' step) dS
    float* d_entering = nullptr;        ///< [batch blocks][slots][heads][d_k, d_v]: dE
    float* sums = nullptr;              ///< [batch blocks][heads][64 chunks][kChunkSums]
    float* d_q = nullptr;               ///< [parts][rows of the batch][d_k], where a key head has several parts
    float* d_k = nullptr;
};

/// Whether the shape and operand have these kernels, on this GPU.
[[nodiscard]] bool has_scalar_kernels(const MixerShape& shape, Operand operand, std::int64_t rows,
                                      std::int64_t first_block);
/// `slots`: the tree's.
[[nodiscard]] Scalar make_scalar(const MixerShape& shape, std::int64_t rows, int slots, Carver& carver);

/// As the plain path's; gradients of rows are overwritten.
void launch_scalar_outputs(const Scalar& plan, const Call& call, const Tree& tree);
/// Gradients of rows are added to.
void launch_scalar_summaries(const Scalar& plan, const Call& call, std::int64_t blocks, const float* d_summaries);

// The parts of these two.
void launch_nodes(const Scalar& s);
void launch_node_gradients(const Scalar& s);
/// fp32 states [states][heads][d_k, d_v], heads `head_stride` floats apart, to the first `states` tiles of `entering`.
void launch_state_tiles(const Scalar& s, const float* from, std::int64_t head_stride, std::int64_t states);
/// All that is per token, but what comes from gradients of states.
void launch_rows(const Scalar& s);
/// What gradients of states add to those of k, v and log decays; `summaries`: the step of the block summaries.
void launch_state_gradients(const Scalar& s, bool summaries);
/// d_summaries: null for the outputs' step.
void launch_crossings(const Scalar& s, const float* d_summaries);

}  // namespace fenwick::cuda::backward
