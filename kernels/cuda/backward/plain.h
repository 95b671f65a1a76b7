// The plain path: fp32 sums on the CUDA cores, token by token, for every algebra, read-out and head shape.
//
// A mixer is a sum of walks, each with one state X that tokens write to, carry on, or read:
//
//   bit b < 12  for every pair of neighbouring runs of 2^b tokens: the left one writes, the right one reads, with the
//               lambda of level b + 1; level 0, a token's own share, is apart
//   slot s      what enters the block by E(z)[s]: all tokens read
//   summary     all tokens write; its end has the gradient dS
//   transition  (matrix) the block's A: a state that starts as I, neither written nor read; its end has dA
//
// (A linear read-out is the same with lambda = 1 and one slot: its in-block pairs are cut in the same way.) With
// p = X_(t-1)^T k and r = dX_t^T k, both of d_v values, no state is ever kept:
//
//   forward:        X = A X; dq += lambda X do; d lambda += q^T X do; keeps p (matrix)
//   back:           dX += lambda q do^T; dv += b r; dk += dX (b v - a b p); d beta += r.v - a r.p; dX = A^T dX; keeps r
//   forward again:  dk -= a b X_(t-1) r                                                                    (matrix)
//
// The log decay of a token gets every pair (s, t) that crosses it: in a right run those read at it or later, in a left
// run those written before it. Nothing cancels.
#pragma once

#include "kernels/cuda/backward/call.h"

namespace fenwick::cuda::backward {

/// Bytes of workspace, which is carved from `carver` after the tree.
struct PlainWorkspace {
    std::int64_t blocks_at_once = 0;
    float* d_q = nullptr;    ///< [blocks at once][heads][4096][d_k]: each head's own share
    float* d_k = nullptr;    ///< the same
    float* p = nullptr;      ///< matrix: [blocks at once][heads][4096][32]
    float* r = nullptr;      ///< the same
    float* pairs = nullptr;  ///< [blocks at once][heads][4096][1 or d_k]: what crosses a token, before the sums
};

[[nodiscard]] PlainWorkspace make_plain_workspace(const MixerShape& shape, std::int64_t rows, Carver& carver);

/// Gradients of rows are added to; tree.d_states of the shard's blocks are overwritten.
void launch_plain_outputs(const Call& call, const Tree& tree, const PlainWorkspace& workspace);
void launch_plain_summaries(const Call& call, std::int64_t blocks, const float* d_summaries,
                            const PlainWorkspace& workspace);

}  // namespace fenwick::cuda::backward
