// Lists of complete nodes with their summaries, and the one way in which they are joined.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/fenwick.h"
#include "core/tensor.h"

namespace fenwick {

/// out = combine(left, right): summaries of a node's children to the node's own, packed fp32 (kernels/summary.h).
/// `out` is memory apart from both.
using CombineFunction = std::function<void(const float* left, const float* right, float* out)>;

/// One node's summary: immutable, shared between the lists that contain it, never copied.
using Summary = std::shared_ptr<const Buffer<float>>;

/// The canonical cover of a run of complete blocks, left to right, one summary of `floats()` fp32 values per node.
/// Copying a list copies pointers.
class NodeSummaries {
public:
    NodeSummaries() = default;
    /// The empty list that stands before block `at_block`.
    NodeSummaries(std::int64_t floats, std::int64_t at_block) : floats_(floats), blocks_{at_block, at_block} {}
    /// `summaries`: one for each node of `blocks`' canonical cover, in order. Throws InternalError when their number or
    /// a size is another.
    NodeSummaries(std::int64_t floats, const BlockRun& blocks, std::vector<Summary> summaries);

    [[nodiscard]] std::int64_t floats() const { return floats_; }
    [[nodiscard]] const BlockRun& blocks() const { return blocks_; }
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(nodes_.size()); }  ///< nodes
    [[nodiscard]] bool empty() const { return nodes_.empty(); }
    [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
    [[nodiscard]] const Node& node(std::int64_t i) const { return nodes_.at(static_cast<std::size_t>(i)); }
    [[nodiscard]] const Summary& summary(std::int64_t i) const { return summaries_.at(static_cast<std::size_t>(i)); }
    /// `floats()` values of node i.
    [[nodiscard]] const float* values(std::int64_t i) const { return summary(i)->data(); }

private:
    std::int64_t floats_ = 0;
    BlockRun blocks_;
    std::vector<Node> nodes_;
    std::vector<Summary> summaries_;
};

/// Joins lists. Remembers the nodes that it formed, so that one which occurs in several joins is formed once. Use one
/// for each layer and pass: a node's summary is another one elsewhere.
class NodeJoiner {
public:
    explicit NodeJoiner(CombineFunction combine) : combine_(std::move(combine)) {}
    /// Throws InternalError when `right` does not start where `left` ends or the summaries differ in size.
    [[nodiscard]] NodeSummaries join(const NodeSummaries& left, const NodeSummaries& right);

private:
    CombineFunction combine_;
    std::map<Node, Summary> formed_;
};

/// The list of a shard's complete blocks: row i of `summaries` [blocks, floats] is block first_block + i. Rows are
/// copied. Without rows it is the empty list before `first_block`.
[[nodiscard]] NodeSummaries cover_of_blocks(std::int64_t first_block, MatrixView<const float> summaries,
                                            const CombineFunction& combine);

}  // namespace fenwick
