// What diagonal_rows.cu's kernel keeps in shared memory, and which states a chunk reads.
#pragma once

#include "kernels/cuda/backward/diagonal.h"
#include "kernels/cuda/backward/products.cuh"

namespace fenwick::cuda::backward {

/// Of a level inside the chunk, or of a state that dO reads.
template <int kKeyDim>
struct alignas(8) DiagonalEntry {
    float lambda[kChunk];
    float rows[kKeyDim / 32][kChunk];  ///< lambda's gradient, 32 channels' share each
    int level;                         ///< of lambda; -1: none
};

template <int kKeyDim>
struct alignas(8) DiagonalState {
    float carry[kKeyDim];  ///< decay of the whole chunks between
    DiagonalEntry<kKeyDim> entry;
    int sum;           ///< which of the chunk's sums
    const char* from;  ///< the tile of column 0
};

/// States follow it: those that dO reads, then those that v does.
template <int kKeyDim>
struct alignas(8) DiagonalShared {
    DiagonalEntry<kKeyDim> own[kOwnLevels];
    float columns[4][kDiagonalSums][kKeyDim];  ///< pairs from before the chunk or to after it, 16 rows' share each
    float eighths[8][kKeyDim];                 ///< decay of eight tokens
    float crossing[kKeyDim];                   ///< linear: pairs that cross the whole chunk
    float diagonal[kChunk];                    ///< X_tt
    float query_key[kKeyDim / 64][kChunk];     ///< q_t . k_t
    int of_bit[kChunkBits];                    ///< the state of a bit of the chunk's number, or -1
    int slots, reads, states;                  ///< states that entered the block; that dO reads; all

    [[nodiscard]] __device__ __forceinline__ DiagonalState<kKeyDim>& state(int i) {
        return reinterpret_cast<DiagonalState<kKeyDim>*>(this + 1)[i];
    }
    /// Of the levels inside the chunk, then the states.
    [[nodiscard]] __device__ __forceinline__ DiagonalEntry<kKeyDim>& entry(int i) {
        return i < kOwnLevels ? own[i] : state(i - kOwnLevels).entry;
    }
};

template <int kKeyDim, DiagonalStep kStep>
struct DiagonalTiles {
    static constexpr int kThreads = 4 * kKeyDim;
    static constexpr int kGroups = kKeyDim / 32;  // of warps: 32 channels each
    static constexpr int kOwn = 64 / kGroups;     // columns of a 64 x 64 product for one warp
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    // Of the ring. A step of the linear read-out reads the tile of the step before, too; 64 channels: two thread blocks
    // a multiprocessor.
    static constexpr int kSlots = kStep != DiagonalStep::kLinear && kKeyDim == 64 ? 3 : 4;
    // While states are read: q~, k^, the scores, two of (v, dO), and the ring.
    static constexpr int kQ = 0;
    static constexpr int kK = kKeyBytes;
    static constexpr int kScores = 2 * kKeyBytes;
    static constexpr int kStage = kScores + kPanelBytes;
    static constexpr int kRing = kStage + 4 * kPanelBytes;
    static constexpr int kShared = kRing + kSlots * kKeyBytes;
    // After that: Z, all Y in one tile, two fp32 results, and sums of eighths.
    static constexpr int kZ = 0;
    static constexpr int kY = kKeyBytes;
    static constexpr int kResultStride = kKeyDim + 8;  // floats: rows of a quarter of a warp lie in other banks
    static constexpr int kResultBytes = kChunk * kResultStride * 4;
    static constexpr int kResults = kY + kPanelBytes;
    static constexpr int kTotals = kResults + 2 * kResultBytes;
    static_assert(kTotals + 4 * 8 * kKeyDim * 4 <= kShared);

    [[nodiscard]] static constexpr int bytes(int states) {
        return 1024 + kShared + static_cast<int>(sizeof(DiagonalShared<kKeyDim>)) +
               states * static_cast<int>(sizeof(DiagonalState<kKeyDim>));
    }
};
static_assert(DiagonalTiles<128, DiagonalStep::kOutputs>::bytes(kChunkBits + kDiagonalMostSlots) <= 227 * 1024);
static_assert(DiagonalTiles<64, DiagonalStep::kOutputs>::bytes(kChunkBits + 6) <= 113 * 1024);
static_assert(DiagonalTiles<64, DiagonalStep::kLinear>::bytes(2) <= 113 * 1024);

/// A chunk of a head.
struct DiagonalChunk {
    std::int64_t in_batch;  // block
    std::int64_t first;     // row of the shard
    int chunk, rows, head;
    int block_rows;  // from the block's first row on, in the shard
};

/// Lists the states; one thread.
template <DiagonalStep kStep, int kKeyDim>
__device__ inline void list_states(const Diagonal& s, const DiagonalChunk& c, DiagonalShared<kKeyDim>& shared) {
    const std::int64_t node_bytes = s.columns * s.state_elements() * 2;
    const char* nodes = reinterpret_cast<const char*>(s.nodes) + c.in_batch * kChunks * node_bytes;
    const char* d_nodes = reinterpret_cast<const char*>(s.d_nodes) + c.in_batch * kChunks * node_bytes;
    const char* entering = reinterpret_cast<const char*>(s.entering) + c.in_batch * s.slots * node_bytes;
    int n = 0;
    for (int bit = 0; bit < kChunkBits; ++bit) shared.of_bit[bit] = -1;
    if constexpr (kStep == DiagonalStep::kLinear) {
        shared.state(n++).from = nodes + c.chunk * node_bytes;
        shared.reads = n;
        shared.state(n++).from = d_nodes + c.chunk * node_bytes;
        shared.slots = 0;
    } else if constexpr (kStep == DiagonalStep::kSummaries) {
        shared.state(n).from = entering;
        shared.state(n++).sum = 0;
        shared.slots = 1;
        shared.reads = 0;
    } else {
        const auto level_of = [&](int level) { return min(level, s.levels - 1); };
        for (int level = 0; level < kOwnLevels; ++level) shared.own[level].level = level_of(level);
        std::int64_t bits = s.call.first_block + s.batch_block + c.in_batch;
        while (bits != 0) {
            const int bit = 63 - __clzll(static_cast<long long>(bits));
            bits ^= std::int64_t{1} << bit;
            shared.state(n).from = entering + n * node_bytes;
            shared.state(n).entry.level = level_of(kBlockBits + 1 + bit);
            shared.state(n++).sum = kChunkBits;
        }
        shared.slots = n;
        for (int bit = kChunkBits - 1; bit >= 0; --bit) {
            if ((c.chunk >> bit & 1) == 0) continue;
            shared.of_bit[bit] = n;
            shared.state(n).from = nodes + (c.chunk >> bit << bit) * node_bytes;
            shared.state(n).entry.level = level_of(kChunkBits + 1 + bit);
            shared.state(n++).sum = bit;
        }
        shared.reads = n;
        for (int bit = 0; bit < kChunkBits; ++bit) {
            const int end = ((c.chunk >> bit) + 1) << bit;
            if ((c.chunk >> bit & 1) != 0 || end * kChunk >= c.block_rows) continue;  // nobody reads the run
            shared.of_bit[bit] = n;
            shared.state(n).from = d_nodes + end * node_bytes;
            shared.state(n).entry.level = -1;
            shared.state(n++).sum = bit;
        }
    }
    shared.states = n;
}

/// After the list and a barrier: what the states are carried by, of channel `channel`; log-linear.
template <DiagonalStep kStep, int kKeyDim>
__device__ __forceinline__ void form_carries(const Diagonal& s, const DiagonalChunk& c, DiagonalShared<kKeyDim>& shared,
                                             int channel) {
    const float* runs = s.runs + (c.in_batch * s.heads + c.head) * kDiagonalRuns * kKeyDim + channel;
    float decay[kChunkBits];  // of the run beside the chunk's own
#pragma unroll
    for (int bit = 0; bit < kChunkBits; ++bit) {
        decay[bit] = __ldg(runs + run_place(bit, (c.chunk >> bit) ^ 1) * kKeyDim);
    }
    float before = 1.0F;
    float after = 1.0F;
#pragma unroll
    for (int bit = 0; bit < kChunkBits; ++bit) {
        const bool right = (c.chunk >> bit & 1) != 0;
        const int state = shared.of_bit[bit];
        if (state >= 0) shared.state(state).carry[channel] = right ? before : after;
        (right ? before : after) *= decay[bit];
    }
    for (int slot = 0; slot < shared.slots; ++slot) {
        shared.state(slot).carry[channel] = kStep == DiagonalStep::kSummaries ? after : before;
    }
}

/// Lambda of the entries' levels, all threads; log-linear, first step.
template <int kKeyDim>
__device__ __forceinline__ void load_lambda(const Diagonal& s, const DiagonalChunk& c, DiagonalShared<kKeyDim>& shared,
                                            int t) {
    const int entries = kOwnLevels + shared.reads;
    for (int i = t; i < kChunk * 32; i += 4 * kKeyDim) {  // neighbouring levels
        const int row = i / 32;
        const int entry = i % 32;
        if (entry >= entries) continue;
        shared.entry(entry).lambda[row] =
            row < c.rows ? __ldg(s.call.inputs.lambda + (c.first + row) * s.call.inputs.lambda_stride +
                                 static_cast<std::int64_t>(c.head) * s.levels + shared.entry(entry).level)
                         : 0.0F;
    }
}

/// The gradient of lambda, after all sums and a barrier; all threads.
template <int kKeyDim>
__device__ __forceinline__ void store_lambda(const Diagonal& s, const DiagonalChunk& c, DiagonalShared<kKeyDim>& shared,
                                             int t) {
    const MixerGradients& g = s.call.gradients;
    for (int i = t; i < c.rows * s.levels; i += 4 * kKeyDim) {
        const int row = i / s.levels;
        const int level = i % s.levels;
        float sum = 0.0F;
        if (level == 0) {
#pragma unroll
            for (const auto& part : shared.query_key) sum += part[row];
            sum *= shared.diagonal[row];
        }
        for (int entry = 1; entry < kOwnLevels + shared.reads; ++entry) {
            if (shared.entry(entry).level != level) continue;
#pragma unroll
            for (const auto& group : shared.entry(entry).rows) sum += group[row];
        }
        g.lambda[(c.first + row) * g.lambda_stride + static_cast<std::int64_t>(c.head) * s.levels + level] = sum;
    }
}

}  // namespace fenwick::cuda::backward
