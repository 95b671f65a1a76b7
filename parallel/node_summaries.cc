#include "parallel/node_summaries.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"

namespace fenwick {
std::shared_ptr<SummaryBuffer> HostSummaries::allocate(std::int64_t floats) {
    return std::make_shared<SummaryBuffer>(floats);
}

void HostSummaries::copy(const float* from, std::int64_t floats, float* to) {
    std::copy_n(from, floats, to);
}

void HostSummaries::combine_siblings(const float* children, std::int64_t pairs, std::int64_t floats, float* out) {
    for (std::int64_t i = 0; i < pairs; ++i) {
        combine_(children + 2 * i * floats, children + (2 * i + 1) * floats, out + i * floats);
    }
}

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
            const std::shared_ptr<SummaryBuffer> out = memory_.allocate(left.floats());
            memory_.combine(known.at(merge.left)->data(), known.at(merge.right)->data(), out->data());
            formed = out;
            if (record_ != nullptr) record_->push_back({known.at(merge.left), known.at(merge.right), formed});
        }
        known.insert_or_assign(merge.formed, formed);
    }
    std::vector<Summary> summaries;
    summaries.reserve(plan.nodes.size());
    for (const Node& node : plan.nodes) summaries.push_back(known.at(node));
    return {left.floats(), {left.blocks().first, right.blocks().end}, std::move(summaries)};
}

NodeSummaries cover_of_blocks(std::int64_t first_block, MatrixView<const float> summaries, SummaryMemory& memory,
                              float* scratch) {
    const std::int64_t floats = summaries.cols;
    if (summaries.rows > 1 && summaries.stride != floats) {
        throw InternalError(fmt::format("cover of blocks: rows of {} floats lie {} apart", floats, summaries.stride));
    }
    const BlockRun run{first_block, first_block + summaries.rows};
    std::map<Node, const float*> in_cover;
    const std::vector<Node> cover = canonical_cover(run);
    // All whole nodes of one bit: numbers [first, end) in a row at `nodes`.
    std::int64_t first = run.first;
    std::int64_t end = run.end;
    const float* nodes = summaries.data;
    for (int bit = 0; first < end; ++bit) {
        for (const Node& node : cover) {
            if (node.bit == bit) in_cover[node] = nodes + (node.index - first) * floats;
        }
        const std::int64_t first_pair = (first + 1) / 2;
        const std::int64_t pairs = end / 2 - first_pair;
        if (pairs <= 0) break;
        memory.combine_siblings(nodes + (2 * first_pair - first) * floats, pairs, floats, scratch);
        nodes = scratch;
        scratch += pairs * floats;
        first = first_pair;
        end = first_pair + pairs;
    }
    std::vector<Summary> nodes_in_order;
    for (const Node& node : cover) {
        nodes_in_order.push_back(std::make_shared<SummaryBuffer>(SummaryBuffer::borrowed(in_cover.at(node), floats)));
    }
    return {floats, run, std::move(nodes_in_order)};
}

NodeSummaries owned(const NodeSummaries& list, SummaryMemory& memory) {
    std::vector<Summary> summaries;
    for (std::int64_t i = 0; i < list.size(); ++i) {
        if (!list.summary(i)->is_borrowed()) {
            summaries.push_back(list.summary(i));
            continue;
        }
        const std::shared_ptr<SummaryBuffer> copy = memory.allocate(list.floats());
        memory.copy(list.values(i), list.floats(), copy->data());
        summaries.push_back(copy);
    }
    return {list.floats(), list.blocks(), std::move(summaries)};
}

}  // namespace fenwick
