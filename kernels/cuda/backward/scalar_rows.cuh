// What scalar_rows.cu's kernel keeps in shared memory.
#pragma once

#include "kernels/cuda/backward/products.cuh"
#include "kernels/cuda/backward/scalar.h"

namespace fenwick::cuda::backward {

inline constexpr int kRingSlots = 3;
/// Words from an entry of 64 rows to the next: threads may read rows of one entry or entries of one row.
inline constexpr int kEntryStride = kChunk + 1;

// Entries are the levels inside the chunk, then the states that it reads: at most kStates.

/// Of one column: what comes from global memory, one column ahead.
template <int kStates>
struct RowInputs {
    alignas(16) double cumulative[kChunk];
    double node[kStates];  // G where the state ends
    double start;          // G where the chunk starts
    float lambda[(kOwnLevels + kStates) * kEntryStride];
};

template <int kPanels, int kStates>
struct RowShared {
    RowInputs<kStates> inputs[2];
    float2 in_chunk[kChunk];  // log2(e) G from the chunk's start, in two floats
    // Sums over a head's value columns; a panel's share each: row sums of X P D by level, and e q^T N do.
    float entries[kPanels][(kOwnLevels + kStates) * kEntryStride];
    // Written two at a time.
    float columns[8][kChunk];  // column sums of X P D M over eight rows, below those
    float square[3][kChunk];   // over the rows of the column's own eight, by level - 1
    // The pairs that cross a token, with lambda: by level - 1 inside the chunk, and those that enter it.
    float crossing[kOwnLevels][kChunk];
    // What the chunk reads; the same for each column.
    const char* from[kStates];  // the tile of column 0
    int level[kOwnLevels + kStates];
    int end[kStates];                // first token after the state, in the block
    int sum[kStates];                // which of the chunk's sums
    int entry[kMostLevels];          // the level's first entry, or -1
    int next[kOwnLevels + kStates];  // the next entry of the same level, or -1
    int reads;
};

template <int kKeyDim, int kStates>
struct RowTiles {
    static constexpr int kPanels = kKeyDim / 64;  // a warpgroup each
    static constexpr int kThreads = 128 * kPanels;
    static constexpr int kKeyBytes = kPanels * kPanelBytes;
    // Tiles: q, v, dO and the ring; then RowShared. The weighted pairs take v's place when v has been read; k lies in
    // the ring before its last slot is needed and after the last state.
    static constexpr int kQ = 0;
    static constexpr int kV = kQ + kKeyBytes;
    static constexpr int kD = kV + kPanelBytes;
    static constexpr int kRing = kD + kPanelBytes;
    static constexpr int kK = kRing + (kRingSlots - 1) * kKeyBytes;
    static constexpr int kShared = kRing + kRingSlots * kKeyBytes;
    static constexpr int kBytes = 1024 + kShared + static_cast<int>(sizeof(RowShared<kPanels, kStates>));
    static constexpr int kTogether = 228 * 1024 / (kBytes + 1024);  // thread blocks of a multiprocessor
};
inline constexpr int kFewStates =
    kRunBits + 10;  // documents of up to 2^10 blocks: several thread blocks a multiprocessor
inline constexpr int kMostStates = kRunBits + kMostSlots;
static_assert(RowTiles<128, kFewStates>::kTogether == 2);
static_assert(RowTiles<128, kMostStates>::kBytes <= 227 * 1024);

/// Lists what chunk `chunk` of a block reads, and which entries each level has; one thread.
template <int kPanels, int kStates>
__device__ inline void list_states(const Scalar& s, std::int64_t in_batch, int chunk,
                                   RowShared<kPanels, kStates>& shared) {
    const std::int64_t node_bytes = s.columns * s.state_elements() * 2;
    const char* nodes = reinterpret_cast<const char*>(s.nodes) + in_batch * kChunks * node_bytes;
    const char* entering = reinterpret_cast<const char*>(s.entering) + in_batch * s.slots * node_bytes;
    const auto level_of = [&](int level) { return max(min(level, s.levels - 1), 0); };
    for (int level = 0; level < kOwnLevels; ++level) shared.level[level] = level_of(level);
    int n = 0;
    std::int64_t bits = s.call.first_block + s.batch_block + in_batch;
    for (int slot = 0; bits != 0; ++slot) {
        const int bit = 63 - __clzll(static_cast<long long>(bits));
        bits ^= std::int64_t{1} << bit;
        shared.from[n] = entering + slot * node_bytes;
        shared.level[kOwnLevels + n] = level_of(kBlockBits + 1 + bit);
        shared.end[n] = 0;
        shared.sum[n++] = kRunBits;
        if (s.linear) break;
    }
    for (int bit = kRunBits - 1; bit >= 0; --bit) {
        if ((chunk >> bit & 1) == 0) continue;
        const int end = chunk >> bit << bit;
        shared.from[n] = nodes + end * node_bytes;
        shared.level[kOwnLevels + n] = level_of(kChunkBits + 1 + bit);
        shared.end[n] = end * kChunk;
        shared.sum[n++] = bit;
    }
    shared.reads = n;
    for (int level = 0; level < s.levels; ++level) shared.entry[level] = -1;
    if (s.linear) return;
    for (int entry = kOwnLevels + n - 1; entry >= 0; --entry) {
        shared.next[entry] = shared.entry[shared.level[entry]];
        shared.entry[shared.level[entry]] = entry;
    }
}

}  // namespace fenwick::cuda::backward
