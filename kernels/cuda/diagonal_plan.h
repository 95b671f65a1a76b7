// The diagonal algebra on the GPU (GLA, HGRN-2): what its kernels share. Every decay is a running product of numbers
// <= 1 or the exp of a sum of log decays of one sign: nothing overflows, nothing cancels, -inf is harmless.
//
//   diagonal_prepare     per chunk and head: keys decayed to the chunk's end, queries from its start, the chunk's own
//                        scores (lambda included), its decay per channel
//   diagonal_summary     S = Diag(decay) S + K^T V over spans of 1,024 tokens, then blocks: summaries
//   diagonal_walk        the same from prepared chunks: nodes of groups for the log-linear read-out
//   diagonal_nodes       the tree above the block, and what of it the outputs read
//   diagonal_linear      outputs of the one state: walks a block's chunks with the state in registers
//   diagonal_log_linear  outputs of the levels: a group of two chunks against every node that enters it
//   diagonal_plain       the checking path, and head shapes without matrix-unit kernels: fp32, token by token
//
// A group is two chunks: the leaf of the tree for the log-linear read-out. Bits 0 to 4 of a group's number are nodes
// inside its block. A node is kept as its own state, in bf16; older nodes are decayed while they are read.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/fenwick.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/mixer_algebras.h"

namespace fenwick::cuda::diagonal {

using matrix::kMaxBits;
using matrix::Nodes;

inline constexpr int kGroupTokens = 128;
inline constexpr int kGroupChunks = 2;
inline constexpr int kGroupBits = 7;  ///< log2(kGroupTokens)
inline constexpr int kGroupsPerBlock = 32;
inline constexpr int kGroupNodeBits = 5;   ///< bits of a group's number inside its block
inline constexpr int kMostGroupBits = 35;  ///< of a group's number in its document: 2^30 blocks
inline constexpr int kSpanGroups = 8;
inline constexpr int kSpanChunks = 16;
inline constexpr int kSpansPerBlock = 4;
inline constexpr float kLogDecayFloor = -1000.0F;  ///< exp of it is 0; sums of it stay finite (kernels/cpu/chunk.h)

/// Chunk c and head h have tile number c * heads + h. Rows past the document's end are zero.
struct Prepared {
    __nv_bfloat16* queries = nullptr;  ///< [tiles][64, d_k] exp(G_i) q_i
    __nv_bfloat16* keys = nullptr;     ///< [tiles][64, d_k] exp(G_C - G_j) k_j
    __nv_bfloat16* scores = nullptr;   ///< [tiles][64, 64], swizzled as kernels/cuda/matrix_tile.cuh says
    float* decays = nullptr;           ///< [tiles][d_k] exp(G_C)
};

/// States in the order of the walk's registers: [columns][128 threads], a column of work being (head, 64 value
/// columns).
struct Spans {
    float* states = nullptr;  ///< [blocks][4][columns][d_k / 8][128] float4
    float* logs = nullptr;    ///< [blocks][4][heads][d_k] summaries: log decays
    float* decays = nullptr;  ///< [blocks][4][heads][d_k] nodes: decays
};

/// Nodes for the log-linear read-out: matrix operands [slot][columns][d_k / 16][128] uint4, decays [slot][heads][d_k].
struct Operands {
    uint4* states = nullptr;
    float* decays = nullptr;
};

/// One call.
struct Work {
    MixerShape shape;
    MixerInputs inputs;
    std::int64_t first_block = 0;
    std::int64_t blocks = 0;  ///< of the shard, the open one included
    std::int64_t chunks = 0;  ///< a multiple of kGroupChunks
    std::int64_t groups = 0;
    int tiles = 0;           ///< of 64 value columns a head
    int entering_nodes = 0;  ///< nodes that enter first_block
    int slots = 1;           ///< most states that enter a block; linear: 1
    Prepared prepared;
    Spans spans;
    Operands group_nodes;       ///< slot: the group that the node ends with
    Operands block_nodes;       ///< slots: entering_nodes, oldest first, then the shard's blocks that nodes end with
    Nodes nodes;                ///< the tree above the block, fp32
    float* entering = nullptr;  ///< [blocks][slots][heads][d_k, d_v]: carried states (linear, and the plain path)
};

void launch_prepare(const Work& work, cudaStream_t stream);
void launch_summaries(const Work& work, float* out, cudaStream_t stream);
void launch_group_nodes(const Work& work, cudaStream_t stream);
/// Of the tree's nodes: carried states into `entering`, or operands into `block_nodes`.
void launch_enter(const Work& work, cudaStream_t stream);
void launch_block_operands(const Work& work, cudaStream_t stream);
void launch_linear(const Work& work, void* out, cudaStream_t stream);
void launch_log_linear(const Work& work, void* out, cudaStream_t stream);
void launch_plain_summaries(const Work& work, Operand operand, float* out, cudaStream_t stream);
void launch_plain_outputs(const Work& work, Operand operand, void* out, cudaStream_t stream);
/// Most states that a block's plain kernel holds at once.
inline constexpr int kPlainMostSlots = 40;

}  // namespace fenwick::cuda::diagonal
