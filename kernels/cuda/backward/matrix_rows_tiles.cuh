// The shared memory of matrix_rows_linear.cu's kernel: what lies where, how it gets there, and who waits for whom.
//
// The tensor memory accelerator copies; one thread asks it to, once all warps have left behind what lies in the place.
// Without the accelerator all threads copy and keep step.
#pragma once

#include "kernels/cuda/backward/matrix_pairs.cuh"
#include "kernels/cuda/backward/matrix_walk.cuh"
#include "kernels/cuda/box_copy.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fenwick::cuda::backward {

inline constexpr bool kByAccelerator = FENWICK_MATRIX_WGMMA != 0;

/// What a warpgroup sums: dQ; of dK what keys that are read get; Y (matrix.h), what keys that are written get.
enum class Role { kQueries, kReadKeys, kWrittenKeys };
inline constexpr int kRoleThreads = 128;
inline constexpr int kRowThreads = 3 * kRoleThreads;

struct RowBoxes {
    CUtensorMap q, k, d_out;
};

struct RowShared {
    alignas(16) float decays[3][kDecayFloats];  // of this turn and the next two
    float crossing[2][4][kChunk];               // by role and warp: pairs of the chunk
    float incoming[2][kChunk];                  // by role: what crosses every token up to a row
    // Of this turn and the next.
    float outgoing[2][kChunk];  // what crosses every token from the one after a row on
    float across[2][4];         // by warp: <dX', X>
    std::uint64_t columns_there[2];
    std::uint64_t keys_there;
    std::uint64_t handed;    // what the written keys' threads take
    std::uint64_t taken[2];  // the same, from each of the others
    // Warps that have left behind what is there.
    std::uint64_t columns_left[2];
    std::uint64_t keys_left;
};

template <int kKeyDim>
struct RowTiles {
    static constexpr int kKeyBytes = kKeyDim / 64 * kPanelBytes;
    static constexpr int kQ = 0;
    static constexpr int kK = kQ + kKeyBytes;
    static constexpr int kPairs = kK + kKeyBytes;  // F, then H
    /// The read keys' sum on its way to the written keys' threads: fp32, each thread its own.
    static constexpr int kHanded = kPairs + 2 * kPanelBytes;
    static constexpr int kSets = kHanded + 2 * kKeyBytes;
    // Of a set: 64 columns of values.
    static constexpr int kX = 0;
    static constexpr int kDX = kX + kKeyBytes;
    static constexpr int kZ = kDX + kKeyBytes;
    static constexpr int kDV = kZ + kPanelBytes;  // -dV
    static constexpr int kD = kDV + kPanelBytes;  // dO
    static constexpr int kSetBytes = kD + kPanelBytes;
    static constexpr int kShared = kSets + 2 * kSetBytes;
    static constexpr int kBytes = 1024 + kShared + static_cast<int>(sizeof(RowShared));
};
static_assert(RowTiles<128>::kBytes <= 227 * 1024);

/// What a thread block does next: a head of a chunk, the heads of a key head one after the other, so that gradients of
/// q and k are summed where they lie, by the same threads and in the heads' order.
struct Turn {
    unsigned pair;        // of a chunk and a key head
    unsigned index = 0;   // of the head among those of its key head
    unsigned number = 0;  // of the turn
    unsigned keys = 0;    // turns' key heads before

    __device__ __forceinline__ void next(unsigned heads_per_key) {
        ++number;
        if (++index < heads_per_key) return;
        index = 0;
        ++keys;
        pair += gridDim.x;
    }
};

struct Turns {
    unsigned pairs;  // of chunks and key heads
    unsigned heads_per_key, key_heads;

    [[nodiscard]] __device__ __forceinline__ bool has(const Turn& turn) const { return turn.pair < pairs; }
    [[nodiscard]] __device__ __forceinline__ bool ends_keys(const Turn& turn) const {
        return turn.index + 1 == heads_per_key;
    }
    [[nodiscard]] __device__ __forceinline__ int key_head(const Turn& turn) const {
        return static_cast<int>(turn.pair % key_heads);
    }
    [[nodiscard]] __device__ __forceinline__ MatrixChunk chunk(const Matrix& m, const Turn& turn) const {
        const unsigned head = turn.pair % key_heads * heads_per_key + turn.index;
        return chunk_of(m, turn.pair / key_heads, static_cast<int>(head));
    }
};

template <int kKeyDim>
class Copies {
public:
    using C = RowTiles<kKeyDim>;
    const Turns& turns;
    RowShared& shared;

    /// All threads. The pairs' blocks right of the diagonal stay zero.
    __device__ __forceinline__ Copies(const Matrix& m, const RowBoxes& boxes, const Turns& all, char* tiles)
        : turns(all),
          shared(*reinterpret_cast<RowShared*>(tiles + C::kShared)),
          m_(m),
          boxes_(boxes),
          start_(shared_address(tiles)),
          turn_{blockIdx.x},
          keys_turn_{blockIdx.x} {
        for (int i = static_cast<int>(threadIdx.x); i < 2 * kPanelBytes / 16; i += kRowThreads) {
            reinterpret_cast<uint4*>(tiles + C::kPairs)[i] = make_uint4(0, 0, 0, 0);
        }
        if (kByAccelerator && threadIdx.x == 0) {
            constexpr int kWarps = kRowThreads / 32;
            for (int i = 0; i < 2; ++i) {
                init_byte_barrier(shared_address(shared.columns_there + i));
                init_barrier(shared_address(shared.columns_left + i), kWarps);
                init_barrier(shared_address(shared.taken + i), kRoleThreads);
            }
            init_byte_barrier(shared_address(&shared.keys_there));
            init_barrier(shared_address(&shared.keys_left), kWarps);
            init_barrier(shared_address(&shared.handed), kRowThreads);
        }
        __syncthreads();
        if (!asks()) return;
        ask_columns();
        ask_keys();
        ask_columns();
    }
    /// Until the columns of use `use` (turn after turn, tile after tile) and, with a turn's first ones, its decays are
    /// there; or q and k of a turn.
    __device__ __forceinline__ void await_columns(unsigned use) const { await(shared.columns_there[use % 2], use / 2); }
    __device__ __forceinline__ void await_keys(const Turn& turn) const { await(shared.keys_there, turn.keys); }
    /// The warp has read them. kWritten: it is one of the written keys', which are the last to leave most things: one
    /// of their threads asks for what comes next.
    template <bool kWritten>
    __device__ __forceinline__ void leave_columns(unsigned use) {
        leave<kWritten>(shared.columns_left[use % 2], use / 2, [&] { ask_columns(); });
    }
    template <bool kWritten>
    __device__ __forceinline__ void leave_keys(const Turn& turn) {
        if (turns.ends_keys(turn)) leave<kWritten>(shared.keys_left, turn.keys, [&] { ask_keys(); });
    }
    /// The written keys' threads wait here for what all have handed over.
    __device__ __forceinline__ void hand_over(Role role, const Turn& turn) const {
        if constexpr (kByAccelerator) {
            arrive(shared_address(&shared.handed));
            if (role == Role::kWrittenKeys) await_phase(shared_address(&shared.handed), turn.number);
        } else {
            __syncthreads();
        }
    }
    /// They have taken it, and each of the others waits here for that before the next turn's. Without the accelerator
    /// all have met in between.
    __device__ __forceinline__ void take(Role role, const Turn& turn) const {
        if constexpr (!kByAccelerator) return;
        if (role == Role::kWrittenKeys) {
            for (std::uint64_t& taken : shared.taken) arrive(shared_address(&taken));
        } else if (turn.number > 0) {
            await_phase(shared_address(shared.taken + (role == Role::kQueries ? 0 : 1)), turn.number - 1);
        }
    }
    [[nodiscard]] __device__ __forceinline__ ChunkDecays decays(const Turn& turn) const {
        return {shared.decays[turn.number % 3]};
    }

private:
    static constexpr int kCopyThreads = 256;  // without the accelerator
    static constexpr int kUntilBytes = kChunk * sizeof(float);
    static constexpr int kGateBytes = 4 * kUntilBytes;

    [[nodiscard]] static __device__ __forceinline__ bool asks() {
        return kByAccelerator ? threadIdx.x == 2 * kRoleThreads : threadIdx.x < kCopyThreads;
    }
    __device__ __forceinline__ void await(const std::uint64_t& there, unsigned phase) const {
        if constexpr (kByAccelerator) {
            await_phase(shared_address(&there), phase);
        } else {
            copy_async_commit();
            copy_async_wait<0>();
            __syncthreads();
        }
    }
    // Who asks waits until all have left.
    template <bool kWritten, class Ask>
    __device__ __forceinline__ void leave(std::uint64_t& left, unsigned phase, const Ask& ask) const {
        if constexpr (kByAccelerator) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(shared_address(&left));
            if (!kWritten) return;
            if (asks()) {
                await_phase(shared_address(&left), phase);
                ask();
            }
            __syncwarp();
        } else {
            __syncthreads();
            if (asks()) ask();
        }
    }
    template <int kBytes>
    __device__ __forceinline__ void pieces(std::uint32_t to, const void* from, std::uint32_t there) const {
        if constexpr (kByAccelerator) {
            copy_bytes(to, from, kBytes, there);
        } else {
            copy_pieces<kCopyThreads>(to, static_cast<const __nv_bfloat16*>(from), Bytes<kBytes>{},
                                      static_cast<int>(threadIdx.x));
        }
    }
    // Panels of 64 columns of a chunk's rows, of which `columns` are there. The accelerator brings what lies there:
    // other heads' columns, which meet zeros alone.
    template <int kPanels>
    __device__ __forceinline__ void rows(std::uint32_t to, const void* all, std::int64_t stride, const CUtensorMap& box,
                                         const MatrixChunk& c, int column, int columns, std::uint32_t there) const {
        if constexpr (kByAccelerator) {
#pragma unroll
            for (int i = 0; i < kPanels; ++i) {
                copy_box(to + i * kPanelBytes, box, static_cast<int>(c.first), column + 64 * i, there);
            }
        } else {
            const auto* from = static_cast<const __nv_bfloat16*>(all) + c.first * stride + column;
            copy_rows<8 * kPanels, kCopyThreads>(to, from, stride, c.rows, columns / 8, static_cast<int>(threadIdx.x));
        }
    }
    // q and k into the second cache: there is no room for them yet.
    __device__ __forceinline__ void prefetch_keys(const MatrixChunk& c, int column) const {
#pragma unroll
        for (int i = 0; i < kKeyDim / 64; ++i) {
            prefetch_box(boxes_.k, static_cast<int>(c.first), column + 64 * i);
            prefetch_box(boxes_.q, static_cast<int>(c.first), column + 64 * i);
        }
    }
    // The next use's columns.
    __device__ __forceinline__ void ask_columns() {
        if (!turns.has(turn_)) return;
        if (tile_ == 0) chunk_ = turns.chunk(m_, turn_);
        const MatrixChunk& c = chunk_;
        const std::uint32_t to = start_ + C::kSets + use_ % 2 * C::kSetBytes;
        const std::uint32_t there = shared_address(shared.columns_there + use_ % 2);
        const std::int64_t place = c.place * m_.tiles + tile_;
        if constexpr (kByAccelerator) expect_bytes(there, C::kSetBytes + (tile_ == 0 ? kUntilBytes + kGateBytes : 0));
        const int column = c.head * m_.value_dim + tile_ * 64;
        rows<1>(to + C::kD, m_.call.d_out, m_.call.d_out_stride, boxes_.d_out, c, column, m_.value_dim - tile_ * 64,
                there);
        pieces<C::kKeyBytes>(to + C::kX, m_.states + place * m_.state_elements(), there);
        pieces<kPanelBytes>(to + C::kDV, m_.d_values + place * kChunk * kChunk, there);
        pieces<kPanelBytes>(to + C::kZ, m_.values + place * kChunk * kChunk, there);
        pieces<C::kKeyBytes>(to + C::kDX, m_.d_states + place * m_.state_elements(), there);
        if (tile_ == 0) ask_decays(c, there);
        ++use_;
        if (++tile_ < m_.tiles) return;
        tile_ = 0;
        turn_.next(turns.heads_per_key);
    }
    __device__ __forceinline__ void ask_decays(const MatrixChunk& c, std::uint32_t there) const {
        const float* until = m_.prepared.decays + c.place * 2 * kChunk;
        const float* gates = m_.prepared.gates + c.place * 4 * kChunk;
        const std::uint32_t to = shared_address(shared.decays[turn_.number % 3]);
        if constexpr (kByAccelerator) {
            copy_bytes(to, until, kUntilBytes, there);
            copy_bytes(to + kUntilBytes, gates, kGateBytes, there);
            if (turn_.index == 0) prefetch_keys(c, turns.key_head(turn_) * kKeyDim);
        } else if (const int piece = static_cast<int>(threadIdx.x) * 4; piece < kDecayFloats) {
            copy_async_16(to + 4 * piece, piece < kChunk ? until + piece : gates + piece - kChunk, true);
        }
    }
    // q and k of the next key head.
    __device__ __forceinline__ void ask_keys() {
        if (!turns.has(keys_turn_)) return;
        const MatrixChunk c = turns.chunk(m_, keys_turn_);
        const std::uint32_t there = shared_address(&shared.keys_there);
        if constexpr (kByAccelerator) expect_bytes(there, 2 * C::kKeyBytes);
        const int column = turns.key_head(keys_turn_) * kKeyDim;
        const MixerInputs& in = m_.call.inputs;
        rows<kKeyDim / 64>(start_ + C::kK, in.k, in.k_stride, boxes_.k, c, column, kKeyDim, there);
        rows<kKeyDim / 64>(start_ + C::kQ, in.q, in.q_stride, boxes_.q, c, column, kKeyDim, there);
        keys_turn_.pair += gridDim.x;
    }

    const Matrix& m_;
    const RowBoxes& boxes_;
    std::uint32_t start_;
    // What is asked for next: columns, and keys.
    Turn turn_;
    MatrixChunk chunk_{};  // of the turn
    int tile_ = 0;
    unsigned use_ = 0;
    Turn keys_turn_;
};

}  // namespace fenwick::cuda::backward
