// Gradients through the exchange as a check that any world can run: every rank forms the gradients of the whole tree in
// double, from numbers that follow from blocks, nodes and ranks alone, and compares its own blocks' with them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/backward/summary.h"
#include "kernels/reference/summary.h"
#include "kernels/summary.h"
#include "parallel/exchange_backward.h"

namespace fenwick::test {

using Doubles = std::vector<double>;

/// The loss is sum over ranks q and the nodes n of cover(0, f_q) of <d_entering(q, n), summary of n>.
class TreeModel {
public:
    TreeModel(const MixerShape& shape, std::vector<std::int64_t> boundaries)
        : shape_(shape), boundaries_(std::move(boundaries)) {}

    /// Normal values; log decays in [-0.2, 0], transitions of the matrix algebra about as large as orthogonal ones, so
    /// that neither vanishes nor grows over the tree.
    [[nodiscard]] std::vector<float> block(std::int64_t number) const {
        std::mt19937_64 random(0x9e3779b97f4a7c15ULL ^ static_cast<std::uint64_t>(number));
        std::normal_distribution<float> normal;
        std::uniform_real_distribution<float> decay(-0.2F, 0.0F);
        const std::int64_t transition = transition_floats(shape_);
        const float unit = 1.0F / std::sqrt(static_cast<float>(shape_.key_dim));
        std::vector<float> values(static_cast<std::size_t>(summary_floats(shape_)));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const bool state = static_cast<std::int64_t>(i) % (transition + state_floats(shape_)) >= transition;
            const bool matrix = shape_.algebra == TransitionAlgebra::kMatrix;
            values[i] = state ? normal(random) : matrix ? unit * normal(random) : decay(random);
        }
        return values;
    }

    [[nodiscard]] std::vector<float> d_entering(int rank, const Node& node) const {
        std::mt19937_64 random(static_cast<std::uint64_t>((node.index * 64 + node.bit) * 1024 + rank));
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<std::size_t>(summary_floats(shape_)));
        for (float& value : values) value = normal(random);
        return values;
    }

    /// Magnitude of each value, but log decays as they are.
    [[nodiscard]] Doubles magnitudes(const std::vector<float>& summary) const {
        const std::int64_t kept = shape_.algebra == TransitionAlgebra::kMatrix ? 0 : transition_floats(shape_);
        Doubles out(summary.begin(), summary.end());
        for (std::size_t i = 0; i < out.size(); ++i) {
            const bool decay = static_cast<std::int64_t>(i) % (transition_floats(shape_) + state_floats(shape_)) < kept;
            if (!decay) out[i] = std::fabs(out[i]);
        }
        return out;
    }

    /// Gradients of all blocks in [0, f_P), by block; with `bounds` those of all terms' magnitudes.
    [[nodiscard]] std::map<std::int64_t, Doubles> gradients(bool bounds) const {
        std::map<Node, Doubles> values;
        std::map<Node, Doubles> d;
        for (std::size_t rank = 0; rank + 1 < boundaries_.size(); ++rank) {
            for (const Node& node : canonical_cover(0, boundaries_[rank])) {
                const std::vector<float> given = d_entering(static_cast<int>(rank), node);
                Doubles& sum = d.try_emplace(node, given.size()).first->second;
                for (std::size_t i = 0; i < sum.size(); ++i) {
                    const double value = static_cast<double>(given[i]);
                    sum[i] += bounds ? std::fabs(value) : value;
                }
            }
        }
        // Nodes of larger bits come last in the map: parents before their children.
        while (!d.empty() && d.rbegin()->first.bit > 0) {
            const auto [node, d_node] = *d.rbegin();
            d.erase(node);
            const auto split = reference::combine_summaries_backward(shape_, value(left_child(node), bounds, values),
                                                                     value(right_child(node), bounds, values), d_node);
            for (const bool left : {true, false}) {
                const Doubles& part = left ? split.left : split.right;
                Doubles& sum = d.try_emplace(left ? left_child(node) : right_child(node), part.size()).first->second;
                for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
            }
        }
        std::map<std::int64_t, Doubles> blocks;
        for (std::int64_t b = 0; b < boundaries_.back(); ++b) {
            const auto found = d.find({0, b});
            blocks[b] = found == d.end() ? Doubles(static_cast<std::size_t>(summary_floats(shape_))) : found->second;
        }
        return blocks;
    }

    /// Relative to the sum of the terms' magnitudes. A value passes through at most `height` combines on its way up and
    /// down, each with sums of `terms` products; exp of a sum of log decays of up to `decay` errs by their rounding;
    /// the gradients of P ranks are added up.
    [[nodiscard]] double allowed_error() const {
        const double height = std::log2(static_cast<double>(boundaries_.back()) + 1) + 1;
        const double terms = static_cast<double>(2 * shape_.key_dim + shape_.value_dim) + 6;
        const double decay = 0.2 * static_cast<double>(boundaries_.back());
        return (2 * height * (terms + decay) + static_cast<double>(boundaries_.size())) * 0x1p-24;
    }

private:
    const Doubles& value(const Node& node, bool bounds, std::map<Node, Doubles>& known) const {
        const auto found = known.find(node);
        if (found != known.end()) return found->second;
        Doubles formed;
        if (node.bit == 0) {
            const std::vector<float> given = block(node.index);
            formed = bounds ? magnitudes(given) : Doubles(given.begin(), given.end());
        } else {
            formed = reference::combine_summaries(shape_, value(left_child(node), bounds, known),
                                                  value(right_child(node), bounds, known));
        }
        return known.emplace(node, std::move(formed)).first->second;
    }

    MixerShape shape_;
    std::vector<std::int64_t> boundaries_;
};

/// Host memory that counts what its rank sends.
class CountingExchange final : public ExchangeMemory {
public:
    CountingExchange(Communicator& comm, CombineFunction combine) : host_(comm, std::move(combine)) {}
    [[nodiscard]] SummaryMemory& summaries() override { return host_.summaries(); }
    [[nodiscard]] int rank() const override { return host_.rank(); }
    [[nodiscard]] int size() const override { return host_.size(); }
    void exchange(int round, std::span<const SendOp> sends, std::span<const RecvOp> recvs) override {
        messages += std::ssize(sends);
        for (const SendOp& send : sends) floats += static_cast<std::int64_t>(send.bytes.size() / sizeof(float));
        host_.exchange(round, sends, recvs);
    }

    std::int64_t messages = 0;
    std::int64_t floats = 0;

private:
    HostExchange host_;
};

/// This rank's blocks' gradients: exchange and cover, forward and backward. `fault` says when messages are not those of
/// the schedule.
inline std::vector<float> run_tree_backward(Communicator& comm, const TreeModel& model, const MixerShape& shape,
                                            const ExchangeSchedule& schedule, std::string& fault) {
    const std::int64_t floats = summary_floats(shape);
    const CombineFunction combine = [&](const float* left, const float* right, float* out) {
        combine_summaries(shape, left, right, out, 1);
    };
    const auto rows_of = [&](const BlockRun& blocks) {
        Buffer<float> rows(blocks.size() * floats);
        for (std::int64_t b = blocks.first; b < blocks.end; ++b) {
            std::ranges::copy(model.block(b), rows.data() + (b - blocks.first) * floats);
        }
        return rows;
    };
    CountingExchange memory(comm, combine);
    const BlockRun own = schedule.shard(comm.rank());
    const BlockRun before = schedule.carried_in();
    const Buffer<float> rows = rows_of(own);
    const Buffer<float> rows_before = rows_of(before);
    Buffer<float> scratch(cover_scratch_floats(own.size(), floats));
    Buffer<float> scratch_before(cover_scratch_floats(before.size(), floats));
    ExchangeTape tape;
    const ExchangeResult result = run_exchange(
        schedule, memory,
        cover_of_blocks(own.first, rows.matrix(own.size(), floats), memory.summaries(), scratch.data()),
        cover_of_blocks(0, rows_before.matrix(before.size(), floats), memory.summaries(), scratch_before.data()),
        nullptr, &tape);
    if (result.entering.nodes() != canonical_cover(0, own.first)) fault = "other entering nodes";
    if (memory.messages != schedule.messages_sent(comm.rank())) fault = "messages of the exchange";

    memory.messages = 0;
    memory.floats = 0;
    std::vector<std::vector<float>> d_entering;
    std::vector<const float*> places;
    for (const Node& node : result.entering.nodes()) d_entering.push_back(model.d_entering(comm.rank(), node));
    places.reserve(d_entering.size());
    for (const std::vector<float>& each : d_entering) places.push_back(each.data());
    HostSummaryGradients gradients(
        [&](const float* left, const float* right, const float* d_out, float* d_left, float* d_right) {
            combine_summaries_backward(shape, left, right, d_out, d_left, d_right, 1);
        });
    const NodeSummaries d_cover = run_exchange_backward(tape, memory, gradients, places);
    std::int64_t messages = 0;  // mirrored: it sends back what it received
    for (const ExchangeRound& round : schedule.rounds[static_cast<std::size_t>(comm.rank())]) {
        messages += std::ssize(round.receives);
    }
    if (memory.messages != messages || memory.floats != schedule.summaries_received(comm.rank()) * floats) {
        fault = fmt::format("sent {} messages of {} floats on the way back, expected {} of {}", memory.messages,
                            memory.floats, messages, schedule.summaries_received(comm.rank()) * floats);
    }
    std::vector<float> d_blocks(static_cast<std::size_t>(own.size() * floats), 0.0F);
    Buffer<float> d_scratch(cover_scratch_floats(own.size(), floats));
    cover_of_blocks_backward(own.first, rows.matrix(own.size(), floats), scratch.data(), d_cover, gradients,
                             d_scratch.data(), {d_blocks.data(), own.size(), floats});
    return d_blocks;
}

/// Runs one rank's part and returns what is wrong, or nothing.
inline std::string check_exchange_backward(Communicator& comm, const std::vector<std::int64_t>& boundaries,
                                           const MixerShape& shape) {
    const TreeModel model(shape, boundaries);
    const ExchangeSchedule schedule = make_entering_schedule(boundaries);
    std::string fault;
    const std::vector<float> got = run_tree_backward(comm, model, shape, schedule, fault);
    const std::vector<float> again = run_tree_backward(comm, model, shape, schedule, fault);
    if (!fault.empty()) return fault;
    if (!got.empty() && std::memcmp(got.data(), again.data(), got.size() * sizeof(float)) != 0) return "other bits";

    const auto want = model.gradients(false);
    const auto bounds = model.gradients(true);
    const BlockRun own = schedule.shard(comm.rank());
    const std::int64_t floats = summary_floats(shape);
    for (std::int64_t b = own.first; b < own.end; ++b) {
        for (std::int64_t i = 0; i < floats; ++i) {
            const double value = got[static_cast<std::size_t>((b - own.first) * floats + i)];
            const double expected = want.at(b)[static_cast<std::size_t>(i)];
            const double bound = model.allowed_error() * bounds.at(b)[static_cast<std::size_t>(i)];
            if (!(std::fabs(value - expected) <= bound)) {
                return fmt::format("block {}, value {}: expected {} within {}, found {}", b, i, expected, bound, value);
            }
        }
    }
    return {};
}

/// Two heads of each algebra; small, because every rank forms the whole tree.
inline std::vector<MixerShape> exchange_shapes() {
    return {{TransitionAlgebra::kScalar, 2, 1, 3, 2, 0},
            {TransitionAlgebra::kDiagonal, 2, 1, 3, 2, 0},
            {TransitionAlgebra::kMatrix, 2, 1, 3, 2, 0}};
}

}  // namespace fenwick::test
