// Heads go in waves, one thread each; after every block the wave's gradients of q and k are added in the order of
// heads, so that value heads that share a key head may run side by side and every sum has one order.
#include "kernels/backward/mixer.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cpu/backward/block_walk.h"
#include "kernels/cpu/backward/shard_nodes.h"
#include "kernels/cpu/entering_stack.h"
#include "kernels/gemm.h"
#include "kernels/threads.h"

namespace fenwick {
namespace {

std::int64_t most_entering(std::int64_t last_block) {
    return std::bit_width(static_cast<std::uint64_t>(last_block));
}

// One head's memory.
struct Lane {
    cpu::KeyRows keys;
    float* d_entering = nullptr;
    float* walk = nullptr;
    float* nodes = nullptr;
};

Lane carve_lane(const MixerShape& shape, std::int64_t blocks, std::int64_t last_block, cpu::Carver& carver) {
    const std::int64_t entering = most_entering(last_block);
    Lane lane;
    lane.keys.q = carver.take(kBlockTokens * shape.key_dim);
    lane.keys.k = carver.take(kBlockTokens * shape.key_dim);
    lane.d_entering = carver.take(entering * state_floats(shape));
    lane.walk =
        carver.take(std::max(cpu::outputs_backward_floats(shape, entering), cpu::summary_backward_floats(shape)));
    lane.nodes = carver.take(cpu::ShardNodes::workspace_floats(shape, blocks, last_block));
    return lane;
}

// The lanes of a wave, one after another in the workspace.
class Lanes {
public:
    Lanes(const MixerShape& shape, std::int64_t blocks, std::int64_t last_block, float* workspace)
        : shape_(shape),
          blocks_(blocks),
          last_block_(last_block),
          floats_(mixer_backward_workspace_floats(shape, blocks, last_block)),
          workspace_(workspace) {}

    [[nodiscard]] Lane operator[](std::int64_t i) const {
        cpu::Carver carver{workspace_ + i * floats_};
        return carve_lane(shape_, blocks_, last_block_, carver);
    }

private:
    const MixerShape& shape_;
    std::int64_t blocks_;
    std::int64_t last_block_;
    std::int64_t floats_;
    float* workspace_;
};

void check_view(const char* caller, const char* name, MatrixView<const float> gradient, MatrixView<const float> input) {
    if (gradient.rows == input.rows && gradient.cols == input.cols) return;
    throw InternalError(std::string(caller) + ": gradient of " + name + " is [" + std::to_string(gradient.rows) + ", " +
                        std::to_string(gradient.cols) + "], expected [" + std::to_string(input.rows) + ", " +
                        std::to_string(input.cols) + "]");
}

void check_gradients(const char* caller, const MixerShape& shape, const MixerInputs& inputs,
                     const MixerGradients& gradients, bool with_outputs) {
    check_view(caller, "k", gradients.k, inputs.k);
    check_view(caller, "v", gradients.v, inputs.v);
    check_view(caller, "log_decay", gradients.log_decay, inputs.log_decay);
    if (shape.algebra == TransitionAlgebra::kMatrix) check_view(caller, "beta", gradients.beta, inputs.beta);
    if (!with_outputs) return;
    check_view(caller, "q", gradients.q, inputs.q);
    if (shape.log_linear()) check_view(caller, "lambda", gradients.lambda, inputs.lambda);
}

// What one lane of a wave has worked on.
struct Item {
    std::int64_t head;
    std::int64_t first;
    std::int64_t count;
};

void add_rows(const float* from, std::int64_t cols, std::int64_t begin, std::int64_t end, MatrixView<float> to) {
    for (std::int64_t r = begin; r < end; ++r) {
        float* row = to.row(r);
        for (std::int64_t c = 0; c < cols; ++c) row[c] += from[r * cols + c];
    }
}

// Adds the lanes' rows of k, and of q where asked for, in the order of lanes; item_of(i) is lane i's item.
template <class ItemOf>
void add_key_rows(const MixerShape& shape, const Lanes& lanes, std::int64_t width, const ItemOf& item_of,
                  const MixerGradients& gradients, bool with_q, int threads) {
    const std::int64_t dk = shape.key_dim;
    parallel_rows(kBlockTokens, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < width; ++i) {
            const Item item = item_of(i);
            const cpu::KeyRows keys = lanes[i].keys;
            const std::int64_t column = item.head / (shape.heads / shape.key_heads) * dk;
            const std::int64_t last = std::min(end, item.count);
            const auto at = [&](MatrixView<float> view) {
                return view.row_range(item.first, item.count).col_range(column, dk);
            };
            add_rows(keys.k, dk, begin, last, at(gradients.k));
            if (with_q) add_rows(keys.q, dk, begin, last, at(gradients.q));
        }
    });
}

}  // namespace

std::int64_t mixer_backward_workspace_floats(const MixerShape& shape, std::int64_t blocks, std::int64_t last_block) {
    cpu::Carver carver{nullptr};
    carve_lane(shape, blocks, last_block, carver);
    return carver.used;
}

void mixer_outputs_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t first_block,
                            std::span<const EnteringNode> entering, const float* block_summaries,
                            MatrixView<const float> d_out, const MixerGradients& gradients,
                            std::span<float* const> d_entering, float* d_block_summaries, int threads,
                            float* workspace) {
    constexpr const char* kName = "mixer_outputs_backward";
    cpu::check_entering(kName, first_block, entering);
    check_gradients(kName, shape, inputs, gradients, true);
    check_view(kName, "the outputs", d_out, inputs.v);
    if (d_entering.size() != entering.size()) {
        throw InternalError(std::string(kName) + ": gradients of " + std::to_string(d_entering.size()) +
                            " entering nodes, expected " + std::to_string(entering.size()));
    }
    const std::int64_t rows = inputs.v.rows;
    if (rows == 0) return;
    initialise_blas();
    const std::int64_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
    const cpu::ShardTree tree{first_block, first_block + blocks, entering,
                              d_entering,  block_summaries,      d_block_summaries};
    const Lanes lanes(shape, blocks, first_block + blocks - 1, workspace);
    for (std::int64_t wave = 0; wave < shape.heads; wave += threads) {
        const std::int64_t width = std::min<std::int64_t>(threads, shape.heads - wave);
        const auto nodes_of = [&](std::int64_t i) { return cpu::ShardNodes(shape, tree, wave + i, lanes[i].nodes); };
        parallel_tasks(width, threads, [&](std::int64_t i, int) { nodes_of(i).form(); });
        for (std::int64_t b = blocks - 1; b >= 0; --b) {
            const std::int64_t first = b * kBlockTokens;
            const std::int64_t count = std::min(kBlockTokens, rows - first);
            parallel_tasks(width, threads, [&](std::int64_t i, int) {
                const Lane lane = lanes[i];
                cpu::ShardNodes nodes = nodes_of(i);
                cpu::walk_outputs_backward(shape, inputs, wave + i, first, count, nodes.entering(first_block + b),
                                           d_out, gradients, lane.keys, lane.d_entering, lane.walk);
                nodes.entering_backward(lane.d_entering);
            });
            const auto item_of = [&](std::int64_t i) { return Item{wave + i, first, count}; };
            add_key_rows(shape, lanes, width, item_of, gradients, true, threads);
        }
        parallel_tasks(width, threads, [&](std::int64_t i, int) { nodes_of(i).take_apart(); });
    }
}

void mixer_block_summaries_backward(const MixerShape& shape, const MixerInputs& inputs, std::int64_t blocks,
                                    const float* d_summaries, const MixerGradients& gradients, int threads,
                                    float* workspace) {
    check_gradients("mixer_block_summaries_backward", shape, inputs, gradients, false);
    if (blocks == 0) return;
    initialise_blas();
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    const Lanes lanes(shape, blocks, blocks - 1, workspace);
    const std::int64_t items = blocks * shape.heads;  // block by block, in the order of heads
    for (std::int64_t wave = 0; wave < items; wave += threads) {
        const std::int64_t width = std::min<std::int64_t>(threads, items - wave);
        const auto item_of = [&](std::int64_t i) {
            return Item{(wave + i) % shape.heads, (wave + i) / shape.heads * kBlockTokens, kBlockTokens};
        };
        parallel_tasks(width, threads, [&](std::int64_t i, int) {
            const Lane lane = lanes[i];
            const Item item = item_of(i);
            cpu::walk_summary_backward(shape, inputs, item.head, item.first, d_summaries + (wave + i) * one, gradients,
                                       lane.keys, lane.walk);
        });
        add_key_rows(shape, lanes, width, item_of, gradients, false, threads);
    }
}

}  // namespace fenwick
