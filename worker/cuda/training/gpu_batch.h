// The documents of a micro-batch as rows on a GPU: those that lie on one rank packed into one run of rows
// (worker/packed_rows.h), every other one a run of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/training/batch.h"

namespace fenwick::cuda {

/// Rows that go through convolution and mixer together: packed documents from block 0 on, or this rank's shard of one.
struct GpuRun {
    std::int64_t first_row = 0;
    std::int64_t rows = 0;  ///< with padding up to a multiple of kChunkTokens; 0: this rank only takes part
    std::int64_t first_block = 0;
    std::int64_t complete = 0;            ///< blocks whose summaries anything reads
    const DocumentRows* shard = nullptr;  ///< of a document over ranks; null: packed documents
    std::int64_t first_place = 0;         ///< of its block summaries among all runs', in blocks

    /// Places of summaries, the open block's included.
    [[nodiscard]] std::int64_t blocks() const { return (rows + kBlockTokens - 1) / kBlockTokens; }
};

struct GpuBatch {
    Batch documents;  ///< as they were given; `tokens` and `targets` are those of the rows below
    std::vector<GpuRun> runs;
    std::vector<std::int64_t> first_rows;  ///< of each document that has rows here, else -1
    std::vector<std::int32_t> tokens;      ///< [rows]; padding: 0
    std::vector<std::int32_t> targets;     ///< [rows]; padding: kNoTarget
    std::vector<std::int32_t> positions;   ///< [rows] of each row in its document
    std::int64_t blocks = 0;               ///< sum of the runs'
    bool packed = false;                   ///< several documents share a run: positions matter

    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};

/// `documents` outlive the result. Throws as lay_out (worker/training/batch.h).
[[nodiscard]] GpuBatch pack_batch(std::span<const TrainingDocument> documents, const Communicator& group,
                                  bool log_linear);

}  // namespace fenwick::cuda
