// What the matrix algebra's kernels hand to each other through the workspace, and their launchers.
//
// 1. prepare:   per chunk and head M, P and the decays (DESIGN section 3, "Chunk form", with T = diag(b) M);
//    expand:    W~, Q~, U~ for the log-linear read-out.
// 2. summarise: per block and head (A, S), 64 columns of [A | S] a thread block, walking the block's chunks.
// 3. form_nodes, enter: the tree's nodes, then the states that enter each block.
// 4. read:      per block and head the outputs, walking the chunks with the entering states.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mixer_algebras.h"

namespace fenwick::cuda::matrix {

/// Bits that a block number may have.
inline constexpr int kMaxBits = 40;

/// Chunk c and head h: tile number c * heads + h. Rows past the document's end are zero. Of tiles [64, 64], all lower
/// triangular, only the 16x16 blocks up to the diagonal are there (load_triangle): five eighths of the traffic.
struct Prepared {
    __nv_bfloat16* triangle = nullptr;  ///< [tiles][64, 64] M = (I + strictly_lower(K K^T * D) diag(b))^-1
    __nv_bfloat16* rest = nullptr;      ///< [tiles][64, 64] what bf16 lost of M
    __nv_bfloat16* second = nullptr;    ///< [tiles][64, 64] P = ((Q K^T) * D) diag(b) (linear) or P M (log-linear)
    float* decays = nullptr;            ///< [tiles][2, 64] exp(G_i), b_i exp(G_C - G_i)
    /// [tiles][4, 64] exp(G_C - G_i), b_i and, as pairs whose sum it is, G_i / ln 2: for gradients; null: not wanted
    float* gates = nullptr;
    /// [tiles] exp(G_C), which the 2-norm of the chunk's transition does not exceed where every 0 <= beta_i k_i k_i^T
    /// <= 2; infinity where one is outside, or NaN.
    float* bounds = nullptr;
    // Log-linear only.
    __nv_bfloat16* scores = nullptr;   ///< [tiles][64, 64] lambda * (P M)
    __nv_bfloat16* removes = nullptr;  ///< [tiles][64, d_k] W~ (matrix_expand.cu)
    __nv_bfloat16* reads = nullptr;    ///< [tiles][64, d_k] Q~
    __nv_bfloat16* writes = nullptr;   ///< [tiles][64, d_v] U~
};

/// Where the tree's nodes lie. A node is a packed layer summary.
struct Nodes {
    std::int64_t first_block = 0;
    std::int64_t last_block = 0;           ///< the last block that anything enters
    std::int64_t layer = 0;                ///< floats of a layer summary
    const float* blocks = nullptr;         ///< [blocks of the shard][layer]
    const float* entering[kMaxBits] = {};  ///< by bit; null where the shard's first block has none
    /// By bit, from the first node on that lies whole in the shard; null: those are in `formed`.
    const float* above[kMaxBits] = {};
    /// By bit, from the node of the shard's first block on. With `above` only that one, where it starts before the
    /// shard.
    float* formed[kMaxBits] = {};
};

/// Number of nodes of `bit` >= 1 that are formed in the shard.
[[nodiscard]] inline std::int64_t formed_nodes(std::int64_t first_block, std::int64_t last_block, int bit) {
    return (last_block >> bit) - (first_block >> bit);
}

/// The number of the first node of `bit` that lies whole in the shard.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline std::int64_t
    first_whole_node(std::int64_t first_block, int bit) {
    return (first_block + (std::int64_t{1} << bit) - 1) >> bit;
}

/// Node (bit, index): carried in, a block of the shard, formed before, or formed by the mixer.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline const float*
    find_node(const Nodes& nodes, int bit, std::int64_t index) {
    if ((index + 1) << bit <= nodes.first_block) return nodes.entering[bit];
    if (bit == 0) return nodes.blocks + (index - nodes.first_block) * nodes.layer;
    if (nodes.above[bit] != nullptr && index << bit >= nodes.first_block) {
        return nodes.above[bit] + (index - first_whole_node(nodes.first_block, bit)) * nodes.layer;
    }
    return nodes.formed[bit] + (index - (nodes.first_block >> bit)) * nodes.layer;
}

/// `from` into the places that find_node looks at.
inline void place_nodes(const ShardNodes& from, Nodes& nodes) {
    nodes.blocks = from.blocks;
    const float* next = from.above;
    const std::int64_t end = nodes.first_block + from.above_blocks;
    for (int bit = 1; next != nullptr && bit < kMaxBits; ++bit) {
        nodes.above[bit] = next;
        const std::int64_t count = (end >> bit) - first_whole_node(nodes.first_block, bit);
        if (count > 0) next += count * nodes.layer;
    }
}

struct Walk {
    MixerShape shape;
    MixerInputs inputs;
    Prepared prepared;
    const float* entering =
        nullptr;  ///< [blocks][slots][heads][d_k, d_v] (linear: one slot); block 0 of a document: unread
    std::int64_t first_block = 0;
    int slots = 0;             ///< most states that enter a block of the shard; linear: 1
    float* partial = nullptr;  ///< log-linear, needs_partial_sums(slots): [rows, heads * d_v]
};

/// Whether the log-linear read-out takes so many entering states in several passes.
[[nodiscard]] bool needs_partial_sums(int slots);
/// Least shared memory of a thread block with which launch_log_linear works.
[[nodiscard]] int log_linear_shared_bytes(std::int64_t key_dim);

/// What the outputs leave in their workspace, of shapes that the matrix units take.
struct Kept {
    Prepared prepared;
    Nodes nodes;                ///< `formed`; the caller's are null
    float* entering = nullptr;  ///< as Walk's
};
[[nodiscard]] Kept kept_in(const MixerShape& shape, Operand operand, std::int64_t rows, std::int64_t first_block,
                           void* workspace);
/// Prepares all chunks.
void launch_prepare(const MixerShape& shape, const MixerInputs& inputs, const Prepared& to, cudaStream_t stream);
/// Summaries of the shard's first blocks; the document's first block gets A = 0, for nothing is older.
void launch_summaries(const Walk& walk, std::int64_t blocks, float* out, cudaStream_t stream);
/// Forms the nodes that the shard reads and that are not there yet, as kernels/cuda/summary.h's combine does: a node
/// has the same bits wherever it is formed. Every algebra.
void form_nodes(const MixerShape& shape, const Nodes& nodes, cudaStream_t stream);
/// to [blocks][slots][heads][d_k, d_v]: slot s of block z is E_b of z's s-th set bit, largest first; linear: their sum.
void launch_enter(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                  cudaStream_t stream);
void launch_linear(const Walk& walk, void* out, cudaStream_t stream);
/// W~, Q~ and U~ of all chunks, after launch_prepare.
void launch_expand(const Walk& walk, cudaStream_t stream);
void launch_log_linear(const Walk& walk, void* out, cudaStream_t stream);

// The plain path: sums in fp32 on the CUDA cores, token by token, for either operand type.
[[nodiscard]] std::size_t plain_state_floats(const MixerShape& shape, std::int64_t blocks, int slots);
void launch_plain_summaries(const Walk& walk, Operand operand, std::int64_t blocks, float* out, float* states,
                            cudaStream_t stream);
void launch_plain_enter(const MixerShape& shape, const Nodes& nodes, std::int64_t blocks, int slots, float* to,
                        cudaStream_t stream);
void launch_plain_outputs(const Walk& walk, Operand operand, void* out, float* states, cudaStream_t stream);

}  // namespace fenwick::cuda::matrix
