// The states before every chunk of one head's block, kept for the walk in reverse.
#pragma once

#include <cstdint>
#include <span>

#include "core/fenwick.h"
#include "kernels/cpu/backward/chunk.h"
#include "kernels/cpu/block_walk.h"
#include "kernels/cpu/carver.h"

namespace fenwick::cpu {

/// X(c) [dk, columns(c)] for each chunk c, side by side as in the forward's walk: what entered, then the buckets of the
/// chunk's number, oldest first; a linear read-out has one slot. `extra` columns on the right are carried with them and
/// never written (a summary's A).
///
/// After a chunk and before its merges there are the carried slots and, log-linear, the chunk's own on their right:
/// after() [dk, after_columns(c)]. It holds states on the way forward and their gradients on the way back.
class WalkStates {
public:
    /// Takes its memory from `carver`. As many states enter the block as `entering_slots` says.
    WalkStates(const MixerShape& shape, std::int64_t entering_slots, std::int64_t extra, Carver& carver);

    [[nodiscard]] std::int64_t columns(std::int64_t chunk) const;
    [[nodiscard]] std::int64_t after_columns(std::int64_t chunk) const;

    /// X(0): what enters, each in its slot (linear: added up, oldest first); zero, and the identity in extra columns.
    void enter(std::span<const EnteringState> entering);
    /// Of a walk whose states' gradients have arrived at X(0): those of what entered, [entering][dk, dv].
    void leave(float* d_entering) const;

    /// after() of `chunk`, its own state added, to X(chunk + 1): the chunk's trailing ones merge.
    void merge(std::int64_t chunk);
    /// d_before() of `chunk` to after() of the chunk before it: every slot that was merged gets the merged one's.
    void unmerge(std::int64_t chunk);

    [[nodiscard]] float* before(std::int64_t chunk) const { return states_[chunk]; }
    [[nodiscard]] float* d_before() const { return d_before_; }
    [[nodiscard]] float* after() const { return after_; }
    /// Where the chunk's own state stands in after().
    [[nodiscard]] float* own(std::int64_t chunk) const;
    /// Free use, [64, columns].
    [[nodiscard]] float* read() const { return read_; }

    /// All that the chunk in reverse takes. Valid until the next call.
    [[nodiscard]] ChunkStates of(std::int64_t chunk);

private:
    static constexpr std::int64_t kMaxSlots = 64 + kBlockBits - kChunkBits;

    [[nodiscard]] std::int64_t slots(std::int64_t chunk) const;

    const MixerShape& shape_;
    std::int64_t entering_slots_;
    std::int64_t extra_;
    float* states_[kChunksPerBlock];
    float* d_before_ = nullptr;  // [dk, columns]
    float* after_ = nullptr;
    float* read_ = nullptr;
    float* write_ = nullptr;
    std::int64_t levels_[kMaxSlots];  // of the slots; those of what entered stay
};

}  // namespace fenwick::cpu
