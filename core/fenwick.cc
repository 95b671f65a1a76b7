#include "core/fenwick.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/errors.h"

namespace fenwick {

int level_of_pair(std::int64_t t, std::int64_t s) {
    if (s < 0 || s > t) {
        throw InternalError(fmt::format("level_of_pair: expected 0 <= s <= t, found t = {}, s = {}", t, s));
    }
    return std::bit_width(static_cast<std::uint64_t>(t) ^ static_cast<std::uint64_t>(s));
}

TokenRun bucket(std::int64_t t, int bit) {
    if (t < 0 || bit < 0 || bit > 62 || ((t >> bit) & 1) == 0) {
        throw InternalError(fmt::format("bucket: bit {} is not set in {}", bit, t));
    }
    // t without its bits up to and including `bit`; a shift by bit + 1 would reach 63 for the largest t.
    const std::int64_t first = ((t >> bit) - 1) << bit;
    return {first, first + (std::int64_t{1} << bit)};
}

std::vector<int> set_bits(std::int64_t n) {
    if (n < 0) throw InternalError(fmt::format("set_bits: expected n >= 0, found {}", n));
    std::vector<int> bits;
    for (int bit = 62; bit >= 0; --bit) {
        if (((n >> bit) & 1) != 0) bits.push_back(bit);
    }
    return bits;
}

std::vector<Node> canonical_cover(std::int64_t first_block, std::int64_t end_block) {
    if (first_block < 0 || end_block < first_block) {
        throw InternalError(
            fmt::format("canonical_cover: expected 0 <= first <= end, found [{}, {})", first_block, end_block));
    }
    std::vector<Node> nodes;
    for (std::int64_t at = first_block; at < end_block;) {
        // The largest node that starts here: limited by the alignment of `at` and by what is left.
        const int fits = std::bit_width(static_cast<std::uint64_t>(end_block - at)) - 1;
        const int bit = at == 0 ? fits : std::min(fits, std::countr_zero(static_cast<std::uint64_t>(at)));
        nodes.push_back({bit, at >> bit});
        at += std::int64_t{1} << bit;
    }
    return nodes;
}

std::vector<Node> canonical_cover(const BlockRun& run) {
    return canonical_cover(run.first, run.end);
}

Join join(std::span<const Node> left, std::span<const Node> right) {
    if (!left.empty() && !right.empty() && left.back().end_block() != right.front().first_block()) {
        throw InternalError(fmt::format("join: the left list ends at block {}, the right one starts at block {}",
                                        left.back().end_block(), right.front().first_block()));
    }
    Join result;
    result.nodes.assign(left.begin(), left.end());
    for (const Node& next : right) {
        Node top = next;
        // A list without neighbouring siblings is canonical: two children that stand side by side are the only way in
        // which a partition into complete nodes can be larger than it must.
        while (!result.nodes.empty() && !is_left_child(top) && result.nodes.back() == sibling(top)) {
            result.merges.push_back({result.nodes.back(), top, parent(top)});
            result.nodes.pop_back();
            top = parent(top);
        }
        result.nodes.push_back(top);
    }
    return result;
}

}  // namespace fenwick
