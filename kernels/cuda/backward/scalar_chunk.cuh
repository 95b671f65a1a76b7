// What a thread block of the scalar algebra's kernels works on: a chunk, and the heads of one part of a key head.
#pragma once

#include "kernels/cuda/backward/scalar.h"

namespace fenwick::cuda::backward {

struct ScalarChunk {
    std::int64_t in_batch;     // block
    std::int64_t block_first;  // row of the shard
    std::int64_t first;        // row of the shard
    std::int64_t key_head;
    int part;
    int chunk;       // of the block
    int block_rows;  // from the block's first row on, in the shard
    int rows;        // of the chunk
    int columns;     // of work (head, 64 value columns) of the part
    int first_column;
};

/// Of this thread block, with `chunks` chunks in the batch: parts follow each other.
__device__ __forceinline__ ScalarChunk own_chunk(const Scalar& s, int chunks) {
    ScalarChunk c;
    c.part = static_cast<int>(blockIdx.x) / chunks;
    const int number = static_cast<int>(blockIdx.x) % chunks;  // of the chunk, in the batch
    c.in_batch = number / kChunks;
    c.chunk = number % kChunks;
    c.block_first = (s.batch_block + c.in_batch) * kBlockTokens;
    c.first = c.block_first + static_cast<std::int64_t>(c.chunk) * kChunk;
    c.block_rows = static_cast<int>(min(s.rows - c.block_first, kBlockTokens));
    c.rows = min(c.block_rows - c.chunk * kChunk, kChunk);
    c.columns = s.columns / s.parts;
    c.first_column = c.part * c.columns;
    c.key_head = c.first_column / s.tiles / s.heads_per_key;
    return c;
}

}  // namespace fenwick::cuda::backward
