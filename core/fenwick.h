// Fenwick arithmetic over tokens, chunks, blocks and nodes: pure functions. DESIGN section 2 fixes the words.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace fenwick {

inline constexpr std::int64_t kChunkTokens = 64;
inline constexpr std::int64_t kChunksPerBlock = 64;
inline constexpr std::int64_t kBlockTokens = kChunkTokens * kChunksPerBlock;
inline constexpr int kChunkBits = 6;   ///< log2(kChunkTokens)
inline constexpr int kBlockBits = 12;  ///< log2(kBlockTokens)

// ---- Tokens -------------------------------------------------------------------------------------------------------

/// Consecutive tokens [first, end) of one document.
struct TokenRun {
    std::int64_t first = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t size() const { return end - first; }
    friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

/// Level at which token t sees token s, 0 <= s <= t: floor(log2(t xor s)) + 1, and 0 for the token itself.
/// Throws InternalError outside that range.
[[nodiscard]] int level_of_pair(std::int64_t t, std::int64_t s);

/// The bucket of token t for its set bit `bit`: level bit + 1, tokens [(t >> (bit+1)) << (bit+1), + 2^bit).
/// The same arithmetic gives the buckets of a chunk or a block number. Throws InternalError when the bit is not set in
/// t.
[[nodiscard]] TokenRun bucket(std::int64_t t, int bit);

/// Set bits of n >= 0, largest first: the oldest bucket first.
[[nodiscard]] std::vector<int> set_bits(std::int64_t n);

/// Token level of the state that enters a block for bit `bit` of the block's number: 13 + bit.
[[nodiscard]] constexpr int entering_level(int bit) {
    return kBlockBits + 1 + bit;
}

// ---- Blocks and nodes ---------------------------------------------------------------------------------------------

/// Consecutive blocks [first, end) of one document; may be empty (it still has a place).
struct BlockRun {
    std::int64_t first = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t size() const { return end - first; }
    [[nodiscard]] bool empty() const { return first == end; }
    friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

/// An inner vertex or leaf of the tree: blocks [index << bit, (index + 1) << bit).
struct Node {
    int bit = 0;
    std::int64_t index = 0;
    [[nodiscard]] std::int64_t first_block() const { return index << bit; }
    [[nodiscard]] std::int64_t end_block() const { return (index + 1) << bit; }
    friend auto operator<=>(const Node&, const Node&) = default;  // NOLINT(modernize-use-nullptr): a false finding
};

[[nodiscard]] constexpr bool is_left_child(const Node& node) {
    return (node.index & 1) == 0;
}
[[nodiscard]] constexpr Node parent(const Node& node) {
    return {node.bit + 1, node.index >> 1};
}
[[nodiscard]] constexpr Node sibling(const Node& node) {
    return {node.bit, node.index ^ 1};
}
/// Children of a node with bit >= 1; a block (bit 0) has none.
[[nodiscard]] constexpr Node left_child(const Node& node) {
    return {node.bit - 1, 2 * node.index};
}
[[nodiscard]] constexpr Node right_child(const Node& node) {
    return {node.bit - 1, 2 * node.index + 1};
}

/// The fewest complete nodes that partition blocks [first_block, end_block), left to right. For [0, z) these are the
/// buckets of block z: one node for each set bit of z, largest first. At most 2 log2(end - first) + 2 nodes.
/// Throws InternalError unless 0 <= first_block <= end_block.
[[nodiscard]] std::vector<Node> canonical_cover(std::int64_t first_block, std::int64_t end_block);
[[nodiscard]] std::vector<Node> canonical_cover(const BlockRun& run);

/// A node formed from its two children: the one way in which nodes above the block come to be.
struct Merge {
    Node left;
    Node right;
    Node formed;
};

struct Join {
    std::vector<Node> nodes;    ///< the canonical cover of both runs together, left to right
    std::vector<Merge> merges;  ///< in an order in which every child exists before its parent is formed
};

/// Joins the canonical covers of two neighbouring runs, merging siblings (and carrying on upwards) wherever both are
/// now complete. Either list may be empty. Throws InternalError when `right` does not start where `left` ends.
[[nodiscard]] Join join(std::span<const Node> left, std::span<const Node> right);

}  // namespace fenwick
