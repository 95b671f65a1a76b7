#include "worker/cuda/training/gpu_batch.h"

#include <algorithm>

#include "core/fenwick.h"
#include "kernels/backward/cross_entropy.h"
#include "worker/packed_rows.h"

namespace fenwick::cuda {
namespace {

std::int64_t whole_chunks(std::int64_t rows) {
    return (rows + kChunkTokens - 1) / kChunkTokens * kChunkTokens;
}

/// Appends a run with room for `rows` rows, all padding.
GpuRun& add_run(GpuBatch& batch, std::int64_t rows) {
    GpuRun& run = batch.runs.emplace_back();
    run.first_row = batch.rows();
    run.rows = whole_chunks(rows);
    run.first_place = batch.blocks;
    batch.blocks += run.blocks();
    const auto end = static_cast<std::size_t>(run.first_row + run.rows);
    batch.tokens.resize(end, 0);
    batch.targets.resize(end, kNoTarget);
    batch.positions.resize(end, 0);
    return run;
}

void place(GpuBatch& batch, const TrainingDocument& document, std::size_t number, std::int64_t first) {
    batch.first_rows[number] = first;
    std::copy(document.tokens.begin(), document.tokens.end(), batch.tokens.begin() + first);
    std::copy(document.targets.begin(), document.targets.end(), batch.targets.begin() + first);
}

}  // namespace

GpuBatch pack_batch(std::span<const TrainingDocument> documents, const Communicator& group, bool log_linear) {
    GpuBatch batch;
    batch.documents = lay_out(documents, group);
    batch.first_rows.assign(documents.size(), -1);
    batch.runs.reserve(documents.size() + 1);
    std::vector<std::size_t> here;
    std::vector<std::int64_t> lengths;
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const DocumentRows& rows = batch.documents.documents[i];
        if (rows.over_ranks || rows.shard.tokens == 0) continue;
        here.push_back(i);
        lengths.push_back(rows.shard.tokens);
    }
    if (!here.empty()) {
        const PackedRows packed = pack_rows(lengths, log_linear);
        GpuRun& run = add_run(batch, packed.rows);
        run.complete = std::max<std::int64_t>(run.blocks() - 1, 0);
        for (std::size_t i = 0; i < here.size(); ++i) {
            place(batch, documents[here[i]], here[i], run.first_row + packed.first_rows[i]);
        }
        const std::vector<std::int32_t> positions = positions_of(packed, run.rows);
        std::copy(positions.begin(), positions.end(), batch.positions.begin() + run.first_row);
        batch.packed = here.size() > 1;
    }
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const DocumentRows& rows = batch.documents.documents[i];
        if (!rows.over_ranks) continue;
        GpuRun& run = add_run(batch, rows.shard.tokens);
        run.shard = &rows;
        run.first_block = rows.shard.first_block;
        run.complete = rows.schedule.shard(group.rank()).size();
        if (rows.shard.tokens > 0) place(batch, documents[i], i, run.first_row);
        // Only whether a row is among a document's first ones is asked for.
        for (std::int64_t t = 0; t < run.rows; ++t) {
            batch.positions[static_cast<std::size_t>(run.first_row + t)] =
                static_cast<std::int32_t>(std::min<std::int64_t>(rows.shard.first_token + t, 1 << 30));
        }
    }
    return batch;
}

}  // namespace fenwick::cuda
