#include "kernels/cpu/backward/walk_states.h"

#include <algorithm>
#include <bit>

namespace fenwick::cpu {

WalkStates::WalkStates(const MixerShape& shape, std::int64_t entering_slots, std::int64_t extra, Carver& carver)
    : shape_(shape), entering_slots_(entering_slots), extra_(extra) {
    const std::int64_t dk = shape.key_dim;
    for (std::int64_t c = 0; c < kChunksPerBlock; ++c) states_[c] = carver.take(dk * columns(c));
    const std::int64_t most = columns(kChunksPerBlock - 1);
    d_before_ = carver.take(dk * most);
    after_ = carver.take(dk * (most + shape.value_dim));
    read_ = carver.take(kChunkTokens * most);
    write_ = carver.take(kChunkTokens * most);
}

std::int64_t WalkStates::slots(std::int64_t chunk) const {
    return shape_.log_linear() ? entering_slots_ + std::popcount(static_cast<std::uint64_t>(chunk)) : 1;
}

std::int64_t WalkStates::columns(std::int64_t chunk) const {
    return slots(chunk) * shape_.value_dim + extra_;
}

std::int64_t WalkStates::after_columns(std::int64_t chunk) const {
    return columns(chunk) + (shape_.log_linear() ? shape_.value_dim : 0);
}

float* WalkStates::own(std::int64_t chunk) const {
    return after_ + (shape_.log_linear() ? columns(chunk) : 0);
}

void WalkStates::enter(std::span<const EnteringState> entering) {
    const std::int64_t dk = shape_.key_dim;
    const std::int64_t dv = shape_.value_dim;
    const std::int64_t stride = columns(0);
    std::fill_n(states_[0], dk * stride, 0.0F);
    for (std::int64_t r = 0; r < extra_; ++r) states_[0][r * stride + stride - extra_ + r] = 1.0F;
    std::int64_t slot = 0;
    for (const EnteringState& e : entering) {
        for (std::int64_t r = 0; r < dk; ++r) {
            float* row = states_[0] + r * stride + slot * dv;
            for (std::int64_t c = 0; c < dv; ++c) row[c] += e.state[r * dv + c];
        }
        if (!shape_.log_linear()) continue;
        levels_[slot++] = entering_level(e.bit);
    }
}

void WalkStates::leave(float* d_entering) const {
    const std::int64_t dk = shape_.key_dim;
    const std::int64_t dv = shape_.value_dim;
    for (std::int64_t e = 0; e < entering_slots_; ++e) {
        const float* from = d_before_ + (shape_.log_linear() ? e * dv : 0);
        for (std::int64_t r = 0; r < dk; ++r) std::copy_n(from + r * columns(0), dv, d_entering + (e * dk + r) * dv);
    }
}

void WalkStates::merge(std::int64_t chunk) {
    const std::int64_t dv = shape_.value_dim;
    const std::int64_t from_columns = after_columns(chunk);
    const std::int64_t to_columns = columns(chunk + 1);
    for (std::int64_t r = 0; r < shape_.key_dim; ++r) {
        float* row = after_ + r * from_columns;
        for (std::int64_t at = from_columns - 2 * dv; shape_.log_linear() && at >= to_columns - dv; at -= dv) {
            for (std::int64_t c = 0; c < dv; ++c) row[at + c] += row[at + dv + c];
        }
        std::copy_n(row, to_columns, states_[chunk + 1] + r * to_columns);
    }
}

void WalkStates::unmerge(std::int64_t chunk) {
    const std::int64_t dv = shape_.value_dim;
    const std::int64_t from_columns = columns(chunk);
    const std::int64_t to_columns = after_columns(chunk - 1);
    for (std::int64_t r = 0; r < shape_.key_dim; ++r) {
        const float* from = d_before_ + r * from_columns;
        float* to = after_ + r * to_columns;
        std::copy_n(from, from_columns, to);
        for (std::int64_t at = from_columns; at < to_columns; at += dv) {
            std::copy_n(from + from_columns - dv, dv, to + at);
        }
    }
}

ChunkStates WalkStates::of(std::int64_t chunk) {
    std::int64_t slot = entering_slots_;
    for (int bit = kBlockBits - kChunkBits - 1; bit >= 0; --bit) {
        if (((chunk >> bit) & 1) != 0) levels_[slot++] = kChunkBits + 1 + bit;
    }
    ChunkStates s;
    s.columns = columns(chunk);
    s.before = states_[chunk];
    s.d_before = d_before_;
    s.d_after = after_;
    s.d_own = own(chunk);
    s.after_stride = after_columns(chunk);
    s.levels = levels_;
    s.read = read_;
    s.write = write_;
    return s;
}

}  // namespace fenwick::cpu
