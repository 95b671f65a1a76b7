// The device memory of a training pass, planned before it is asked for: pass_memory.h's places, those of the way back,
// a tile's, and as many layer inputs as there is room for (worker/training/recompute_plan.h).
//
// Bytes a row (e = 2 for bf16, 4 for fp32; gates, heads, channels, values of pass_memory.h's PassSizes):
//
//   12 + 4 + hidden (4 + 4 + e) + e (projected + channels + 2 values) + 4 (3 gates + 2 heads + channels + values)
//   + 4 hidden for every kept input                  + per block of rows: 4 summaries and the mixers' workspace
#pragma once

#include <cstdint>
#include <string>

#include "worker/cuda/pass_memory.h"

namespace fenwick::cuda {

/// Rows of a tile: of the steps that go row by row, whose wide intermediates exist for so many rows at a time.
inline constexpr std::int64_t kTileRows = kMlpRows;

struct TrainingMemory {
    PassMemory pass;                    ///< x: the working rows (recompute_plan.h)
    std::int32_t* positions = nullptr;  ///< [rows]
    float* d = nullptr;                 ///< [rows, hidden] gradient of the residual stream
    float* raw_gates = nullptr;         ///< [rows, gates] as they were projected
    float* d_gates = nullptr;           ///< [rows, gates] of time steps (or log decays, beta) and lambda
    float* d_log_decay = nullptr;       ///< [rows, heads] Mamba-2
    float* d_convolved = nullptr;       ///< [rows, convolved]
    float* d_v = nullptr;               ///< [rows, values] Mamba-2
    float* d_summaries = nullptr;       ///< as pass.summaries
    float* d_node_scratch = nullptr;
    // Of a tile, T = min(rows, kTileRows).
    float* tile_x = nullptr;         ///< [T, hidden] the rows between mixer and MLP
    void* tile_normed = nullptr;     ///< [T, hidden]
    void* tile_d = nullptr;          ///< [T, hidden] gradient for products, of the operand type
    float* tile_d_normed = nullptr;  ///< [T, hidden]
    void* tile_y = nullptr;          ///< [T, values] what the read-out gives
    void* tile_d_y = nullptr;        ///< [T, values]
    void* tile_d_gate = nullptr;     ///< [T, values]
    void* tile_inner = nullptr;      ///< [T, intermediate]
    float* unused = nullptr;         ///< gradient of taps that are not trained
    void* row_workspace = nullptr;   ///< of any row-wise backward kernel, and the loss's
    float* kept = nullptr;           ///< [places][rows, hidden]
    std::int64_t bytes = 0;          ///< of all of them
};

struct TrainingSizes {
    PassSizes pass;
    std::int64_t row_workspace = 0;  ///< bytes, for passes of `rows` rows
    std::int64_t mixer_workspace = 0;
    std::int64_t rows = 0;  ///< a multiple of kBlockTokens
};

/// `base` null: sizes alone.
[[nodiscard]] TrainingMemory lay_out(const TrainingSizes& sizes, std::int64_t places, unsigned char* base);

/// For one run of `rows` rows that starts at `first_block`; several runs: the largest of each.
[[nodiscard]] TrainingSizes training_sizes(const Model& model, Operand operand, std::int64_t rows,
                                           std::int64_t first_block);

/// The plan in words, for people: what a rank of `ranks` keeps on its device for passes of `rows` rows.
struct TrainingPlan {
    std::int64_t parameters = 0;
    std::int64_t weights_bytes = 0;    ///< of the operand type
    std::int64_t optimiser_bytes = 0;  ///< gradients, and this rank's slices of values and moments
    std::int64_t pass_bytes = 0;       ///< without kept inputs
    std::int64_t mixer_bytes = 0;      ///< of those
    std::int64_t input_bytes = 0;      ///< of one layer's input rows
    std::int64_t places = 0;           ///< inputs that are kept
    std::int64_t layer_runs = 0;       ///< times that a layer is run forward beside its way back
    [[nodiscard]] std::int64_t total() const {
        return weights_bytes + optimiser_bytes + pass_bytes + places * input_bytes;
    }
    [[nodiscard]] std::string text() const;
};

/// With `budget` bytes of device memory in all. places < 1: it does not fit.
[[nodiscard]] TrainingPlan plan_training(const Model& model, Operand operand, std::int64_t rows, int ranks,
                                         std::int64_t budget);

/// Inputs that fit into `left` bytes: at most one for each layer.
[[nodiscard]] std::int64_t places_that_fit(const TrainingSizes& sizes, std::int64_t left);

}  // namespace fenwick::cuda
