#include "kernels/cpu/entering_stack.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/errors.h"

namespace fenwick::cpu {
namespace {

// Nodes that a prefix of at most last_block + 1 blocks can have.
std::int64_t most_nodes(std::int64_t last_block) {
    return std::bit_width(static_cast<std::uint64_t>(last_block) + 1) + 1;
}

}  // namespace

void check_entering(const char* caller, std::int64_t first_block, std::span<const EnteringNode> entering) {
    const std::string name = caller;
    std::int64_t covered = 0;
    for (const EnteringNode& node : entering) {
        const std::int64_t blocks = std::int64_t{1} << node.bit;
        if (covered % (2 * blocks) != 0 || (first_block & blocks) == 0) {
            throw InternalError(name + ": node of bit " + std::to_string(node.bit) + " does not enter block " +
                                std::to_string(first_block));
        }
        covered += blocks;
    }
    if (covered != first_block) {
        throw InternalError(name + ": entering nodes cover " + std::to_string(covered) + " blocks, expected " +
                            std::to_string(first_block));
    }
}

std::int64_t EnteringStack::workspace_floats(const MixerShape& shape, std::int64_t last_block) {
    const std::int64_t nodes = most_nodes(last_block);
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    return nodes * (nodes - 1) / 2 * state_floats(shape) + 2 * nodes * one;
}

EnteringStack::EnteringStack(const MixerShape& shape, std::int64_t last_block, float* workspace)
    : shape_(shape), transition_(transition_floats(shape)), state_(state_floats(shape)) {
    const std::int64_t nodes = most_nodes(last_block);
    for (std::int64_t i = 0; i < nodes; ++i) {
        frames_[i].carried = workspace;
        workspace += i * state_;
    }
    merged_ = workspace;
}

const float* EnteringStack::state_at(int frame, int node) const {
    return node == frame ? frames_[frame].node + transition_ : frames_[frame].carried + node * state_;
}

void EnteringStack::push(int bit, const float* node) {
    Frame& top = frames_[count_];
    top.bit = bit;
    top.node = node;
    for (int i = 0; i < count_; ++i) carry_state(shape_, node, state_at(count_ - 1, i), top.carried + i * state_);
    ++count_;
    for (int i = 0; i < count_; ++i) entering_[i] = {frames_[i].bit, state_at(count_ - 1, i)};
}

void EnteringStack::append_block(const float* node) {
    int bit = 0;
    while (count_ > 0 && frames_[count_ - 1].bit == bit) {
        // Two places for each bit: a right sibling is formed while its left one still stands on the stack.
        const bool right_sibling = count_ > 1 && frames_[count_ - 2].bit == bit + 1;
        float* out = merged_ + (2 * (bit + 1) + (right_sibling ? 1 : 0)) * (transition_ + state_);
        combine_head(shape_, frames_[count_ - 1].node, node, out);
        --count_;
        node = out;
        ++bit;
    }
    push(bit, node);
}

std::span<const EnteringState> EnteringStack::entering() const {
    return {entering_, static_cast<std::size_t>(count_)};
}

}  // namespace fenwick::cpu
