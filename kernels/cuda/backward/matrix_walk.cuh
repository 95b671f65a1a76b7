// Walks on the device, and the chunks that kernels work on.
#pragma once

#include "kernels/cuda/backward/matrix.h"

namespace fenwick::cuda::backward {

/// One chunk of a batch and one head.
struct MatrixChunk {
    std::int64_t in_batch;     // block
    std::int64_t block_first;  // row of the shard
    std::int64_t first;        // row of the shard
    int chunk;                 // of the block
    int chunks;                // of the block
    int rows;                  // of the chunk
    int head;
    std::int64_t place;  // chunk of the batch * heads + head
};

__device__ __forceinline__ MatrixChunk chunk_of(const Matrix& m, std::int64_t number, int head) {
    MatrixChunk c;
    c.in_batch = number / kChunks;
    c.chunk = static_cast<int>(number % kChunks);
    c.block_first = (m.batch_block + c.in_batch) * kBlockTokens;
    c.first = c.block_first + static_cast<std::int64_t>(c.chunk) * kChunk;
    const auto block_rows = static_cast<int>(min(m.rows - c.block_first, kBlockTokens));
    c.chunks = (block_rows + kChunk - 1) / kChunk;
    c.rows = min(block_rows - c.chunk * kChunk, kChunk);
    c.head = head;
    c.place = number * m.heads + head;
    return c;
}

__device__ __forceinline__ MatrixWalk walk_of(const Matrix& m, int number, std::int64_t in_batch, int head) {
    MatrixWalk w{};
    w.bit = -1;
    w.there = true;
    w.tiles = m.tiles;
    w.columns = m.value_dim;
    w.end_chunk = kChunks;
    const BlockMemory memory = m.memory[in_batch * m.heads + head];
    const std::int64_t state = static_cast<std::int64_t>(m.key_dim) * m.value_dim;
    if (m.summaries) {
        const std::int64_t transition = static_cast<std::int64_t>(m.key_dim) * m.key_dim;
        const float* d = m.d_summaries + (in_batch * m.heads + head) * (transition + state);
        w.writes = number == 0;
        w.last = number == 0 ? d + transition : d;
        if (number == 0) {
            w.first_chunk = memory.first_chunk;
        } else {
            w.identity = true;
            w.tiles = m.key_dim / 64;
            w.columns = m.key_dim;
            // Nothing is older than the first block.
            w.there = m.call.first_block + m.batch_block + in_batch != 0 && !memory.vanishes;
        }
        return w;
    }
    w.reads = true;
    if (number < kChunkBits) {
        w.bit = number;
        w.writes = true;
        w.level = min(kChunkBits + 1 + number, m.levels - 1);
        return w;
    }
    const int slot = number - kChunkBits;
    std::int64_t bits = m.call.first_block + m.batch_block + in_batch;
    for (int i = 0; bits != 0; ++i) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        if (i < slot) continue;
        w.level = min(kBlockBits + 1 + bit, m.levels - 1);
        const std::int64_t at = ((in_batch * m.slots + slot) * m.heads + head) * state;
        w.first = m.entering + at;
        w.d_first = m.d_entering + at;
        w.end_chunk = memory.end_chunk;
        return w;
    }
    w.there = false;  // a document's first block: nothing enters
    return w;
}

/// Place of a walk's tile: of states in units of [d_k, 64], of values in units of [64, 64].
__device__ __forceinline__ std::int64_t walk_place(const Matrix& m, std::int64_t number, int walk, int head, int tile) {
    return ((number * m.walks + walk) * m.heads + head) * m.walk_tiles + tile;
}

}  // namespace fenwick::cuda::backward
