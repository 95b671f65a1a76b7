#include "parallel/node_summaries.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace fenwick {
namespace {

template <class Fill>
Summary make_summary(std::int64_t floats, Fill fill) {
    auto buffer = std::make_shared<Buffer<float>>(floats);
    fill(buffer->data());
    return buffer;
}

}  // namespace

NodeSummaries::NodeSummaries(std::int64_t floats, const BlockRun& blocks, std::vector<Summary> summaries)
    : floats_(floats), blocks_(blocks), nodes_(canonical_cover(blocks)), summaries_(std::move(summaries)) {
    if (summaries_.size() != nodes_.size()) {
        throw InternalError(fmt::format("summaries of blocks [{}, {}): expected {} nodes, found {}", blocks.first,
                                        blocks.end, nodes_.size(), summaries_.size()));
    }
    for (const Summary& each : summaries_) {
        if (each == nullptr || each->size() != floats) {
            throw InternalError(fmt::format("summaries of blocks [{}, {}): expected {} floats a node, found {}",
                                            blocks.first, blocks.end, floats, each ? each->size() : 0));
        }
    }
}

NodeSummaries NodeJoiner::join(const NodeSummaries& left, const NodeSummaries& right) {
    if (left.blocks().end != right.blocks().first || left.floats() != right.floats()) {
        throw InternalError(fmt::format("join: blocks [{}, {}) of {} floats, then blocks [{}, {}) of {} floats",
                                        left.blocks().first, left.blocks().end, left.floats(), right.blocks().first,
                                        right.blocks().end, right.floats()));
    }
    if (left.empty() && right.empty()) return right;
    const Join plan = fenwick::join(left.nodes(), right.nodes());
    std::map<Node, Summary> known;
    for (const NodeSummaries* list : {&left, &right}) {
        for (std::int64_t i = 0; i < list->size(); ++i) known.emplace(list->node(i), list->summary(i));
    }
    for (const Merge& merge : plan.merges) {
        Summary& formed = formed_[merge.formed];
        if (formed == nullptr) {
            const float* children[] = {known.at(merge.left)->data(), known.at(merge.right)->data()};
            formed = make_summary(left.floats(), [&](float* out) { combine_(children[0], children[1], out); });
        }
        known.insert_or_assign(merge.formed, formed);
    }
    std::vector<Summary> summaries;
    summaries.reserve(plan.nodes.size());
    for (const Node& node : plan.nodes) summaries.push_back(known.at(node));
    return {left.floats(), {left.blocks().first, right.blocks().end}, std::move(summaries)};
}

NodeSummaries cover_of_blocks(std::int64_t first_block, MatrixView<const float> summaries,
                              const CombineFunction& combine) {
    const std::int64_t floats = summaries.cols;
    NodeSummaries cover(floats, first_block);
    for (std::int64_t i = 0; i < summaries.rows; ++i) {
        const float* row = summaries.row(i);
        const Summary block = make_summary(floats, [&](float* out) { std::copy_n(row, floats, out); });
        const std::int64_t number = first_block + i;
        NodeJoiner joiner(combine);  // a new one each time: what it formed is not needed once it was merged again
        cover = joiner.join(cover, NodeSummaries(floats, {number, number + 1}, {block}));
    }
    return cover;
}

}  // namespace fenwick
