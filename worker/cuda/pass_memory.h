// The device memory of one pass, planned once: every intermediate has its place, and the size is known beforehand.
#pragma once

#include <cstdint>

#include "core/cuda/device_buffer.h"
#include "worker/cuda/gpu_model.h"

namespace fenwick::cuda {

/// Rows of the MLP's wide activations that exist at a time.
inline constexpr std::int64_t kMlpRows = 16384;

/// What a pass of some number of rows needs, over all layers.
struct PassSizes {
    std::int64_t hidden = 0;
    std::int64_t projected = 0;  ///< columns of the operand type
    std::int64_t gates = 0;      ///< fp32 columns, a multiple of 4
    std::int64_t heads = 0;
    std::int64_t convolved = 0;
    std::int64_t values = 0;  ///< heads * d_v
    std::int64_t intermediate = 0;
    std::int64_t summary = 0;  ///< floats of a summary
    std::int64_t halo = 0;     ///< elements of a convolution's halo
    std::int64_t layers = 0;
    std::int64_t vocab = 0;
    std::int64_t element = 0;  ///< bytes of the operand type
};

[[nodiscard]] PassSizes pass_sizes(const Model& model, Operand operand);

/// Columns of a layer's fp32 gates: a multiple of 4, for accesses of 16 bytes.
[[nodiscard]] constexpr std::int64_t gate_stride(std::int64_t columns) {
    return (columns + 3) / 4 * 4;
}

/// Places in device memory, each for `rows` rows (a multiple of kBlockTokens).
struct PassMemory {
    std::int32_t* tokens = nullptr;       ///< [2, rows]: tokens, then targets
    float* nll = nullptr;                 ///< [rows]
    std::uint8_t* most_likely = nullptr;  ///< [rows]
    float* x = nullptr;                   ///< [rows, hidden] the residual stream
    void* normed = nullptr;               ///< [rows, hidden]
    void* projected = nullptr;            ///< [rows, projected]
    float* gates = nullptr;               ///< [rows, gates]
    float* log_decay = nullptr;           ///< [rows, heads]
    void* convolved = nullptr;            ///< [rows, convolved]
    void* v = nullptr;                    ///< [rows, values]
    void* o = nullptr;                    ///< [rows, values]
    float* summaries = nullptr;           ///< [rows / kBlockTokens, summary]
    float* node_scratch = nullptr;        ///< all nodes above those (cover_scratch_floats)
    void* halo = nullptr;                 ///< [halo]
    void* wide = nullptr;                 ///< [min(rows, kMlpRows), 2 * intermediate]
    void* matmul_workspace = nullptr;
    void* mixer_workspace = nullptr;
    void* loss_workspace = nullptr;
    std::int64_t bytes = 0;  ///< of all of them
};

/// `base` null: sizes alone.
[[nodiscard]] PassMemory lay_out(const PassSizes& sizes, std::int64_t rows, std::int64_t mixer_bytes,
                                 unsigned char* base);

/// Most bytes of mixer workspace of any layer for a pass of `rows` rows that starts at `first_block`, or anywhere in a
/// document of 2^20 blocks, so that it does not grow on the way.
[[nodiscard]] std::int64_t mixer_bytes(const Model& model, Operand operand, std::int64_t rows,
                                       std::int64_t first_block);

/// Device memory, beside the weights, of a run with passes of `rows` rows: the pass and what the layers carry.
[[nodiscard]] std::int64_t run_bytes(const Model& model, Operand operand, std::int64_t rows);

}  // namespace fenwick::cuda
