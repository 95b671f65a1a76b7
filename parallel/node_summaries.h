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

/// Memory of one node's values, or of several in a row: the host's, or a device's (where only kernels and copies
/// reach).
class SummaryBuffer {
public:
    /// Host memory, uninitialised.
    explicit SummaryBuffer(std::int64_t floats)
        : SummaryBuffer(host_memory(std::make_shared<Buffer<float>>(floats)), floats) {}
    SummaryBuffer(std::shared_ptr<float> memory, std::int64_t floats) : memory_(std::move(memory)), floats_(floats) {}
    /// Somebody else's memory, for as long as that stays. `owned` makes lists of such nodes last.
    [[nodiscard]] static SummaryBuffer borrowed(const float* data, std::int64_t floats) {
        SummaryBuffer buffer(std::shared_ptr<float>(const_cast<float*>(data), [](float*) {}), floats);
        buffer.borrowed_ = true;
        return buffer;
    }
    [[nodiscard]] bool is_borrowed() const { return borrowed_; }

    [[nodiscard]] float* data() { return memory_.get(); }
    [[nodiscard]] const float* data() const { return memory_.get(); }
    [[nodiscard]] std::int64_t size() const { return floats_; }

private:
    [[nodiscard]] static std::shared_ptr<float> host_memory(std::shared_ptr<Buffer<float>> buffer) {
        float* data = buffer->data();
        return {std::move(buffer), data};
    }

    std::shared_ptr<float> memory_;
    std::int64_t floats_;
    bool borrowed_ = false;
};

/// One node's summary: immutable, shared between the lists that contain it, never copied.
using Summary = std::shared_ptr<const SummaryBuffer>;

/// Where summaries lie, and what can be done with them there: host memory and functions, or a device and its stream.
/// With a stream, everything is done in its order and nothing waits.
class SummaryMemory {
public:
    virtual ~SummaryMemory() = default;
    [[nodiscard]] virtual std::shared_ptr<SummaryBuffer> allocate(std::int64_t floats) = 0;
    virtual void copy(const float* from, std::int64_t floats, float* to) = 0;
    /// Siblings to parents: out[i] = combine(children[2 i], children[2 i + 1]) for i < pairs, summaries of `floats` in
    /// a row. `out` is memory apart from `children`.
    virtual void combine_siblings(const float* children, std::int64_t pairs, std::int64_t floats, float* out) = 0;
    virtual void combine(const float* left, const float* right, float* out) = 0;
};

/// Host memory and a function.
class HostSummaries final : public SummaryMemory {
public:
    explicit HostSummaries(CombineFunction combine) : combine_(std::move(combine)) {}
    [[nodiscard]] std::shared_ptr<SummaryBuffer> allocate(std::int64_t floats) override;
    void copy(const float* from, std::int64_t floats, float* to) override;
    void combine_siblings(const float* children, std::int64_t pairs, std::int64_t floats, float* out) override;
    void combine(const float* left, const float* right, float* out) override { combine_(left, right, out); }

private:
    CombineFunction combine_;
};

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

/// A node and the two that it was formed from, by their memory's identity.
struct FormedNode {
    Summary left;
    Summary right;
    Summary formed;
};

/// Joins lists. Remembers the nodes that it formed, so that one which occurs in several joins is formed once. Use one
/// for each layer and pass: a node's summary is another one elsewhere.
class NodeJoiner {
public:
    /// `memory` is where the lists lie. `record`, where given, gets every node that is formed, in order. Both outlive
    /// this object.
    explicit NodeJoiner(SummaryMemory& memory, std::vector<FormedNode>* record = nullptr)
        : memory_(memory), record_(record) {}
    /// Throws InternalError when `right` does not start where `left` ends or the summaries differ in size.
    [[nodiscard]] NodeSummaries join(const NodeSummaries& left, const NodeSummaries& right);

private:
    SummaryMemory& memory_;
    std::vector<FormedNode>* record_;
    std::map<Node, Summary> formed_;
};

/// Floats of scratch that `cover_of_blocks` needs: all nodes of a shard of so many blocks, wherever it starts.
[[nodiscard]] constexpr std::int64_t cover_scratch_floats(std::int64_t blocks, std::int64_t floats) {
    return blocks > 1 ? (blocks - 1) * floats : 0;
}

/// The list of a shard's complete blocks: row i of `summaries` [blocks, floats], contiguous and in `memory`, is block
/// first_block + i. All nodes of one bit are formed together. The list's nodes stay where they are, in `summaries` and
/// `scratch`, and are borrowed from there. Without rows it is the empty list before `first_block`. `scratch`:
/// cover_scratch_floats(blocks, floats) floats of the same memory.
[[nodiscard]] NodeSummaries cover_of_blocks(std::int64_t first_block, MatrixView<const float> summaries,
                                            SummaryMemory& memory, float* scratch);

/// The same list, with copies of the nodes that are borrowed.
[[nodiscard]] NodeSummaries owned(const NodeSummaries& list, SummaryMemory& memory);

}  // namespace fenwick
