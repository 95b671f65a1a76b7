// The mixers' gradients where a document is cut into shards, and how the kernels treat the memory that they are given.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/errors.h"
#include "kernels/backward/summary.h"
#include "tests/kernels/backward/mixer_gradients.h"

namespace fenwick {
namespace {

using testing::MixerCase;
using testing::MixerGradientRows;

constexpr TransitionAlgebra kAlgebras[] = {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal,
                                           TransitionAlgebra::kMatrix};

/// A node of the document's tree, with its gradient.
struct NodeValues {
    std::vector<float> summary;
    std::vector<float> gradient;
};

/// Every node of a document, formed from its blocks' summaries as the exchange forms them.
std::map<Node, NodeValues> tree_of(const MixerCase& c, const std::vector<float>& summaries, std::int64_t blocks) {
    const std::int64_t one = summary_floats(c.shape);
    std::map<Node, NodeValues> tree;
    for (std::int64_t b = 0; b < blocks; ++b) {
        const float* block = summaries.data() + b * one;
        tree[{0, b}] = {{block, block + one}, std::vector<float>(static_cast<std::size_t>(one), 0.0F)};
    }
    for (int bit = 1; (std::int64_t{1} << bit) <= blocks; ++bit) {
        for (std::int64_t i = 0; ((i + 1) << bit) <= blocks; ++i) {
            const Node node{bit, i};
            NodeValues values;
            values.summary.assign(static_cast<std::size_t>(one), NAN);
            values.gradient.assign(static_cast<std::size_t>(one), 0.0F);
            combine_summaries(c.shape, tree.at(left_child(node)).summary.data(),
                              tree.at(right_child(node)).summary.data(), values.summary.data(), 1);
            tree[node] = std::move(values);
        }
    }
    return tree;
}

/// Gradients with the document cut at the blocks `cuts`: each shard by itself, the tree's gradients by hand.
MixerGradientRows sharded_gradients(const MixerCase& c, const std::vector<float>& d_out,
                                    const std::vector<std::int64_t>& cuts) {
    const std::int64_t blocks = c.tokens / kBlockTokens;  // whole ones
    const std::int64_t one = summary_floats(c.shape);
    const std::int64_t columns = c.shape.heads * c.shape.value_dim;
    Buffer<float> workspace(
        std::max(mixer_workspace_floats(c.shape, blocks), mixer_backward_workspace_floats(c.shape, blocks, blocks)));
    std::vector<float> summaries(static_cast<std::size_t>(blocks * one));
    mixer_block_summaries(c.shape, c.rows(0, c.tokens), blocks, summaries.data(), 1, workspace.data());
    std::map<Node, NodeValues> tree = tree_of(c, summaries, blocks);
    std::vector<float> d_summaries(summaries.size(), 0.0F);
    MixerGradientRows out(c);
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
        const std::int64_t first = cuts[s] * kBlockTokens;
        const std::int64_t count = std::min(c.tokens, cuts[s + 1] * kBlockTokens) - first;
        std::vector<EnteringNode> entering;
        std::vector<float*> d_entering;
        for (const Node& node : canonical_cover(0, cuts[s])) {
            entering.push_back({node.bit, tree.at(node).summary.data()});
            d_entering.push_back(tree.at(node).gradient.data());
        }
        mixer_outputs_backward(c.shape, c.rows(first, count), cuts[s], entering, summaries.data() + cuts[s] * one,
                               {d_out.data() + first * columns, count, columns}, out.rows(c, first, count), d_entering,
                               d_summaries.data() + cuts[s] * one, 1, workspace.data());
    }
    for (auto node = tree.rbegin(); node != tree.rend() && node->first.bit > 0; ++node) {
        NodeValues& left = tree.at(left_child(node->first));
        NodeValues& right = tree.at(right_child(node->first));
        combine_summaries_backward(c.shape, left.summary.data(), right.summary.data(), node->second.gradient.data(),
                                   left.gradient.data(), right.gradient.data(), 1);
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
        const std::vector<float>& gradient = tree.at({0, b}).gradient;
        for (std::int64_t i = 0; i < one; ++i) {
            d_summaries[static_cast<std::size_t>(b * one + i)] += gradient[static_cast<std::size_t>(i)];
        }
    }
    mixer_block_summaries_backward(c.shape, c.rows(0, c.tokens), blocks, d_summaries.data(), out.rows(c, 0, c.tokens),
                                   1, workspace.data());
    return out;
}

}  // namespace

// Shards of one block and of several, entered by one node and by more, whose merges reach back into what entered.
TEST_CASE("gradients of a document in shards are those of the whole") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = testing::long_memory_case({algebra, 2, 1, 6, 5, levels}, 5 * kBlockTokens + 130, 21);
            const std::vector<float> d_out = testing::random_d_out(c);
            const MixerGradientRows whole = testing::kernel_gradients(c, d_out);
            const reference::MixerInputs bound = testing::gradient_magnitudes(c, d_out);
            for (const std::vector<std::int64_t>& cuts :
                 {std::vector<std::int64_t>{0, 1, 3, 6}, std::vector<std::int64_t>{0, 2, 5, 6}}) {
                const MixerGradientRows parts = sharded_gradients(c, d_out, cuts);
                for (const testing::NamedField& field : testing::kGradientFields) {
                    const std::vector<float>& want = whole.*field.got;
                    INFO("algebra " << static_cast<int>(algebra) << ", levels " << levels << ", gradient of "
                                    << field.name);
                    // The nodes' gradients are the same sums in another order: a few roundings of each term.
                    CHECK(testing::worst_error(parts.*field.got, {want.begin(), want.end()}, bound.*field.want) < 8);
                }
            }
        }
    }
}

// Whatever the summary's gradient is: dA of the scalar and diagonal algebras goes to every log decay but these.
TEST_CASE("a summary's gradient gives nothing to log decays of minus infinity") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        MixerCase c = testing::random_case({algebra, 2, 1, 3, 2, 15}, 2 * kBlockTokens, 3);
        for (std::size_t i = 0; i < c.log_decay.size(); i += 3001) c.log_decay[i] = -INFINITY;
        const std::vector<float> d_summaries(static_cast<std::size_t>(2 * summary_floats(c.shape)), 1.0F);
        MixerGradientRows out(c);
        Buffer<float> workspace(mixer_backward_workspace_floats(c.shape, 2, 1));
        mixer_block_summaries_backward(c.shape, c.rows(0, c.tokens), 2, d_summaries.data(), out.rows(c, 0, c.tokens), 1,
                                       workspace.data());
        for (std::size_t i = 0; i < c.log_decay.size(); ++i) {
            REQUIRE(std::isfinite(out.log_decay[i]));
            if (std::isinf(c.log_decay[i])) REQUIRE(out.log_decay[i] == 0.0F);
            if (algebra != TransitionAlgebra::kMatrix && !std::isinf(c.log_decay[i])) REQUIRE(out.log_decay[i] != 0.0F);
        }
        CHECK(std::all_of(out.lambda.begin(), out.lambda.end(), [](float x) { return x == 0.0F; }));
        CHECK(std::all_of(out.q.begin(), out.q.end(), [](float x) { return x == 0.0F; }));
    }
}

// Layers hold q, k and v as column ranges of one matrix, and gradients gather several contributions.
TEST_CASE("mixer gradients are added to column ranges of wider matrices") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        const MixerShape shape{algebra, 2, 1, 7, 5, 15};
        const MixerCase c = testing::random_case(shape, 200, 3);
        const std::vector<float> d_out = testing::random_d_out(c);
        const MixerGradientRows apart = testing::kernel_gradients(c, d_out);
        constexpr std::int64_t kWide = 7 + 7 + 10 + 1;
        std::vector<float> rows(static_cast<std::size_t>(c.tokens * kWide), 0.5F);
        for (std::int64_t t = 0; t < c.tokens; ++t) {
            float* row = rows.data() + t * kWide;
            std::copy_n(c.q.data() + t * 7, 7, row);
            std::copy_n(c.k.data() + t * 7, 7, row + 7);
            std::copy_n(c.v.data() + t * 10, 10, row + 14);
        }
        std::vector<float> gradient(rows.size(), 1.0F);
        const MatrixView<const float> wide(rows.data(), c.tokens, kWide);
        const MatrixView<float> d_wide(gradient.data(), c.tokens, kWide);
        MixerInputs inputs = c.rows(0, c.tokens);
        inputs.q = wide.col_range(0, 7);
        inputs.k = wide.col_range(7, 7);
        inputs.v = wide.col_range(14, 10);
        MixerGradientRows other(c);
        MixerGradients gradients = other.rows(c, 0, c.tokens);
        gradients.q = d_wide.col_range(0, 7);
        gradients.k = d_wide.col_range(7, 7);
        gradients.v = d_wide.col_range(14, 10);
        Buffer<float> workspace(mixer_backward_workspace_floats(shape, 1, 0));
        mixer_outputs_backward(shape, inputs, 0, {}, nullptr, {d_out.data(), c.tokens, 10}, gradients, {}, nullptr, 1,
                               workspace.data());
        for (std::int64_t t = 0; t < c.tokens; ++t) {
            const float* row = gradient.data() + t * kWide;
            // v has one contribution: 1 plus it, rounded once.
            for (std::int64_t i = 0; i < 10; ++i) {
                REQUIRE(row[14 + i] == 1.0F + apart.v[static_cast<std::size_t>(t * 10 + i)]);
            }
            // q and k have one from each head: roundings of a sum below 8.
            for (std::int64_t i = 0; i < 7; ++i) {
                REQUIRE(row[i] == Approx(1.0F + apart.q[static_cast<std::size_t>(t * 7 + i)]).margin(8 * 0x1p-22));
                REQUIRE(row[7 + i] == Approx(1.0F + apart.k[static_cast<std::size_t>(t * 7 + i)]).margin(8 * 0x1p-22));
            }
            REQUIRE(row[kWide - 1] == 1.0F);
        }
        CHECK(other.log_decay == apart.log_decay);
        CHECK(other.lambda == apart.lambda);
    }
}

TEST_CASE("mixer gradients name views and nodes that do not fit") {
    const MixerShape shape{TransitionAlgebra::kMatrix, 2, 1, 7, 5, 15};
    const MixerCase c = testing::random_case(shape, 64, 3);
    const std::vector<float> d_out = testing::random_d_out(c);
    MixerGradientRows out(c);
    const MixerInputs rows = c.rows(0, 64);
    const MatrixView<const float> d(d_out.data(), 64, 10);
    Buffer<float> workspace(mixer_backward_workspace_floats(shape, 1, 1));
    std::vector<float> node(static_cast<std::size_t>(summary_floats(shape)), 0.0F);
    const EnteringNode entering[] = {{0, node.data()}};
    float* const d_entering[] = {node.data()};
    const MixerGradients good = out.rows(c, 0, 64);
    const auto call = [&](const MixerGradients& gradients, std::int64_t first_block, std::span<float* const> d_nodes,
                          MatrixView<const float> d_rows) {
        mixer_outputs_backward(shape, rows, first_block, entering, nullptr, d_rows, gradients, d_nodes, nullptr, 1,
                               workspace.data());
    };
    CHECK_NOTHROW(call(good, 1, d_entering, d));
    CHECK_THROWS_AS(call(good, 2, d_entering, d), InternalError);
    CHECK_THROWS_AS(call(good, 1, {}, d), InternalError);
    CHECK_THROWS_AS(call(good, 1, d_entering, d.row_range(0, 63)), InternalError);
    MixerGradients bad = good;
    bad.beta = {};
    CHECK_THROWS_WITH(call(bad, 1, d_entering, d),
                      "mixer_outputs_backward: gradient of beta is [0, 0], expected [64, 2]");
}

}  // namespace fenwick
