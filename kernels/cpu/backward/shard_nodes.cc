#include "kernels/cpu/backward/shard_nodes.h"

#include <algorithm>
#include <bit>

#include "kernels/backward/summary.h"
#include "kernels/cpu/carver.h"
#include "kernels/summary.h"

namespace fenwick::cpu {
namespace {

int bits_of(std::int64_t n) {
    return std::bit_width(static_cast<std::uint64_t>(n));
}

// Nodes of two blocks and more that end at or before block `end`: the sum of the trailing zeros of 1 .. end.
std::int64_t merged_until(std::int64_t end) {
    return end - std::popcount(static_cast<std::uint64_t>(end));
}

struct Memory {
    float* merged;
    float* d_merged;
    float* carried;
    float* carry;
};

Memory carve(const MixerShape& shape, std::int64_t blocks, std::int64_t last_block, Carver& carver) {
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    const std::int64_t bits = bits_of(last_block);
    // Block by block the trailing zeros of a number: one on average, and `bits` more at most.
    const std::int64_t merged = blocks > 1 ? blocks - 1 + bits : 0;
    Memory m{};
    m.merged = carver.take(merged * one);
    m.d_merged = carver.take(merged * one);
    m.carried = carver.take(bits * (bits - 1) / 2 * state_floats(shape));
    m.carry = carver.take(state_floats(shape));
    return m;
}

}  // namespace

std::int64_t ShardNodes::workspace_floats(const MixerShape& shape, std::int64_t blocks, std::int64_t last_block) {
    Carver carver{nullptr};
    carve(shape, blocks, last_block, carver);
    return carver.used;
}

ShardNodes::ShardNodes(const MixerShape& shape, const ShardTree& tree, std::int64_t head, float* workspace)
    : shape_(shape), tree_(tree), head_(head), transition_(transition_floats(shape)), state_(state_floats(shape)) {
    Carver carver{workspace};
    const Memory memory = carve(shape, tree.end_block - tree.first_block, tree.end_block - 1, carver);
    merged_ = memory.merged;
    d_merged_ = memory.d_merged;
    carried_ = memory.carried;
    carry_ = memory.carry;
}

ShardNodes::Place ShardNodes::at(int bit, std::int64_t end) const {
    const std::int64_t one = transition_ + state_;
    if (end <= tree_.first_block) {
        // Nodes that enter the shard are the set bits of its first block, largest first.
        const int index = std::popcount(static_cast<std::uint64_t>(tree_.first_block >> bit >> 1));
        return {tree_.entering[index].summary + head_ * one, tree_.d_entering[index] + head_ * one};
    }
    if (bit == 0) {
        const std::int64_t offset = ((end - 1 - tree_.first_block) * shape_.heads + head_) * one;
        return {tree_.blocks + offset, tree_.d_blocks + offset};
    }
    const std::int64_t offset = merged_offset(bit, end);
    return {merged_ + offset, d_merged_ + offset};
}

std::int64_t ShardNodes::merged_offset(int bit, std::int64_t end) const {
    return (merged_until(end - 1) - merged_until(tree_.first_block) + bit - 1) * (transition_ + state_);
}

float* ShardNodes::carried(int younger, int older) const {
    return carried_ + (static_cast<std::int64_t>(younger) * (younger - 1) / 2 + older) * state_;
}

void ShardNodes::form() {
    for (std::int64_t end = tree_.first_block + 1; end < tree_.end_block; ++end) {
        for (int bit = 1; bit <= std::countr_zero(static_cast<std::uint64_t>(end)); ++bit) {
            const Place left = at(bit - 1, end - (std::int64_t{1} << (bit - 1)));
            const Place right = at(bit - 1, end);
            const std::int64_t offset = merged_offset(bit, end);
            combine_head(shape_, left.summary, right.summary, merged_ + offset);
            std::fill_n(d_merged_ + offset, transition_ + state_, 0.0F);
        }
    }
}

const float* ShardNodes::state_at(int younger, int node) const {
    return younger == node ? met_[node].summary + transition_ : carried(younger, node);
}

std::span<const EnteringState> ShardNodes::entering(std::int64_t block) {
    count_ = 0;
    std::int64_t end = 0;
    for (int bit = bits_of(block) - 1; bit >= 0; --bit) {
        if (((block >> bit) & 1) == 0) continue;
        end += std::int64_t{1} << bit;
        met_[count_] = at(bit, end);
        entering_[count_].bit = bit;
        for (int older = 0; older < count_; ++older) {
            carry_state(shape_, met_[count_].summary, state_at(count_ - 1, older), carried(count_, older));
        }
        ++count_;
    }
    for (int i = 0; i < count_; ++i) entering_[i].state = state_at(count_ - 1, i);
    return {entering_, static_cast<std::size_t>(count_)};
}

void ShardNodes::entering_backward(float* d_states) {
    for (int younger = count_ - 1; younger >= 0; --younger) {
        const Place& node = met_[younger];
        const float* own = d_states + younger * state_;
        for (std::int64_t i = 0; i < state_; ++i) node.gradient[transition_ + i] += own[i];
        for (int older = 0; older < younger; ++older) {
            float* d = d_states + older * state_;
            std::fill_n(carry_, state_, 0.0F);
            carry_state_backward(shape_, node.summary, state_at(younger - 1, older), d, node.gradient, carry_);
            std::copy_n(carry_, state_, d);
        }
    }
}

void ShardNodes::take_apart() {
    for (std::int64_t end = tree_.end_block - 1; end > tree_.first_block; --end) {
        for (int bit = std::countr_zero(static_cast<std::uint64_t>(end)); bit >= 1; --bit) {
            const Place left = at(bit - 1, end - (std::int64_t{1} << (bit - 1)));
            const Place right = at(bit - 1, end);
            combine_head_backward(shape_, left.summary, right.summary, at(bit, end).gradient, left.gradient,
                                  right.gradient);
        }
    }
}

}  // namespace fenwick::cpu
