#include "parallel/node_gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/errors.h"

namespace fenwick {
namespace {

/// All whole nodes of one bit, [first, first + count), in a row: as cover_of_blocks lays them out.
struct NodeRow {
    std::int64_t first = 0;
    std::int64_t count = 0;
    const float* values = nullptr;
    float* gradients = nullptr;
};

std::vector<NodeRow> node_rows(std::int64_t first_block, MatrixView<const float> summaries, const float* scratch,
                               float* d_scratch, MatrixView<float> d_summaries) {
    std::vector<NodeRow> rows{{first_block, summaries.rows, summaries.data, d_summaries.data}};
    for (;;) {
        const NodeRow& below = rows.back();
        const std::int64_t first = (below.first + 1) / 2;
        const std::int64_t count = (below.first + below.count) / 2 - first;
        if (count <= 0) return rows;
        rows.push_back({first, count, scratch, d_scratch});
        scratch += count * summaries.cols;
        d_scratch += count * summaries.cols;
    }
}

}  // namespace

void HostSummaryGradients::zero(std::int64_t floats, float* to) {
    std::fill_n(to, floats, 0.0F);
}

void HostSummaryGradients::add(const float* from, std::int64_t floats, float* to) {
    for (std::int64_t i = 0; i < floats; ++i) to[i] += from[i];
}

void HostSummaryGradients::combine_siblings_backward(const float* children, const float* d_out, std::int64_t pairs,
                                                     std::int64_t floats, float* d_children) {
    for (std::int64_t i = 0; i < pairs; ++i) {
        const std::int64_t left = 2 * i * floats;
        combine_backward_(children + left, children + left + floats, d_out + i * floats, d_children + left,
                          d_children + left + floats);
    }
}

void cover_of_blocks_backward(std::int64_t first_block, MatrixView<const float> summaries, const float* scratch,
                              const NodeSummaries& d_cover, SummaryGradients& gradients, float* d_scratch,
                              MatrixView<float> d_summaries) {
    const std::int64_t floats = summaries.cols;
    const bool contiguous = summaries.rows <= 1 || (summaries.stride == floats && d_summaries.stride == floats);
    if (!contiguous || d_summaries.rows != summaries.rows || (summaries.rows > 0 && d_summaries.cols != floats)) {
        throw InternalError(fmt::format(
            "cover of blocks, backward: summaries [{}, {}] {} apart, gradients [{}, {}] {} apart", summaries.rows,
            floats, summaries.stride, d_summaries.rows, d_summaries.cols, d_summaries.stride));
    }
    const BlockRun run{first_block, first_block + summaries.rows};
    if (d_cover.blocks() != run || (!run.empty() && d_cover.floats() != floats)) {
        throw InternalError(fmt::format(
            "cover of blocks, backward: expected gradients of blocks [{}, {}) of {} floats, found [{}, {}) of {}",
            run.first, run.end, floats, d_cover.blocks().first, d_cover.blocks().end, d_cover.floats()));
    }
    if (run.empty()) return;
    const std::vector<NodeRow> rows = node_rows(first_block, summaries, scratch, d_scratch, d_summaries);
    // Every node that is formed makes one of two: so many are left, so many were formed.
    gradients.zero((summaries.rows - d_cover.size()) * floats, d_scratch);
    for (std::int64_t i = 0; i < d_cover.size(); ++i) {
        const Node& node = d_cover.node(i);
        const NodeRow& row = rows.at(static_cast<std::size_t>(node.bit));
        gradients.add(d_cover.values(i), floats, row.gradients + (node.index - row.first) * floats);
    }
    for (std::size_t bit = rows.size() - 1; bit > 0; --bit) {
        const NodeRow& above = rows[bit];
        const NodeRow& below = rows[bit - 1];
        const std::int64_t children = (2 * above.first - below.first) * floats;
        gradients.combine_siblings_backward(below.values + children, above.gradients, above.count, floats,
                                            below.gradients + children);
    }
}

}  // namespace fenwick
