// A mixer on the GPU over a document in shards, and what its tests check: the double reference within a bound, and the
// same bits for every cut.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/mixer.h"
#include "kernels/cuda/summary.h"
#include "tests/kernels/cuda/device_rows.h"
#include "tests/kernels/mixer_inputs.h"

namespace fenwick::test {

using testing::MixerCase;

inline constexpr int kThreads = 16;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Random inputs whose q, k and v are values of bf16, so that both operand types hold them exactly.
inline MixerCase bf16_case(const MixerShape& shape, std::int64_t tokens, std::uint64_t seed) {
    MixerCase c = testing::random_case(shape, tokens, seed);
    for (auto* x : {&c.q, &c.k, &c.v}) {
        for (float& value : *x) value = rounded(Operand::kBf16, value);
    }
    return c;
}

inline std::string label(const MixerCase& c, Operand operand) {
    const MixerShape& s = c.shape;
    return std::string(operand_name(operand)) + " heads " + std::to_string(s.heads) + "/" +
           std::to_string(s.key_heads) + " of " + std::to_string(s.key_dim) + "x" + std::to_string(s.value_dim) +
           ", levels " + std::to_string(s.levels) + ", tokens " + std::to_string(c.tokens);
}

/// A document's rows on the device.
struct DeviceCase {
    DeviceCase(const MixerCase& c, Operand operand_type, cudaStream_t stream)
        : shape(c.shape),
          decay_columns(c.decay_columns()),
          operand(operand_type),
          q(operand, c.q, stream),
          k(operand, c.k, stream),
          v(operand, c.v, stream),
          decay(Operand::kFp32, c.log_decay, stream),
          beta(Operand::kFp32, c.beta.empty() ? std::vector<float>(1) : c.beta, stream),
          lambda(Operand::kFp32, c.lambda.empty() ? std::vector<float>(1) : c.lambda, stream) {}

    [[nodiscard]] cuda::MixerInputs rows(std::int64_t first, std::int64_t count) {
        const std::int64_t bytes = operand == Operand::kBf16 ? 2 : 4;
        cuda::MixerInputs in;
        in.q_stride = in.k_stride = shape.key_heads * shape.key_dim;
        in.v_stride = shape.heads * shape.value_dim;
        in.decay_stride = decay_columns;
        in.beta_stride = shape.heads;
        in.lambda_stride = shape.heads * shape.levels;
        in.q = static_cast<char*>(q.data()) + first * in.q_stride * bytes;
        in.k = static_cast<char*>(k.data()) + first * in.k_stride * bytes;
        in.v = static_cast<char*>(v.data()) + first * in.v_stride * bytes;
        in.log_decay = decay.floats() + first * in.decay_stride;
        if (shape.algebra == TransitionAlgebra::kMatrix) in.beta = beta.floats() + first * in.beta_stride;
        if (shape.log_linear()) in.lambda = lambda.floats() + first * in.lambda_stride;
        in.rows = count;
        return in;
    }

    MixerShape shape;
    std::int64_t decay_columns;
    Operand operand;
    DeviceRows q, k, v, decay, beta, lambda;
};

/// Whether the outputs find what the summaries left in the workspace, and the shard's nodes, which an exchange formed.
enum class Workspace { kPoisoned, kKept };

/// All nodes of more than one block that lie whole in a shard: what parallel/'s cover_of_blocks leaves.
inline cuda::DeviceBuffer<float> nodes_above(const MixerShape& shape, const float* summaries, std::int64_t first_block,
                                             std::int64_t blocks, cudaStream_t stream) {
    const std::int64_t one = summary_floats(shape);
    cuda::DeviceBuffer<float> above(std::max<std::int64_t>(blocks, 1) * one, stream);
    const float* children = summaries;
    float* next = above.data();
    std::int64_t first = first_block;
    for (std::int64_t end = first_block + blocks; end / 2 > (first + 1) / 2; end /= 2) {
        const std::int64_t pairs = end / 2 - (first + 1) / 2;
        cuda::combine_sibling_summaries(shape, children + first % 2 * one, pairs, next, stream);
        children = next;
        next += pairs * one;
        first = (first + 1) / 2;
    }
    return above;
}

/// Outputs of the document in shards that start at the given blocks. Summaries, workspace and outputs are poisoned
/// first; nodes that enter a later shard are formed as a rank before would have formed them.
inline std::vector<float> run_shards(const MixerCase& c, Operand operand, const std::vector<std::int64_t>& cuts = {0},
                                     Workspace kept = Workspace::kPoisoned) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    const MixerShape& shape = c.shape;
    const std::int64_t width = shape.heads * shape.value_dim;
    const std::int64_t one = summary_floats(shape);
    DeviceCase device(c, operand, stream);
    DeviceRows out(operand, c.tokens * width, stream);
    const std::int64_t bytes = operand == Operand::kBf16 ? 2 : 4;

    std::vector<std::pair<int, cuda::DeviceBuffer<float>>> nodes;  // the list of complete nodes so far
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        const std::int64_t first = cuts[i] * kBlockTokens;
        const std::int64_t rows = (i + 1 < cuts.size() ? cuts[i + 1] * kBlockTokens : c.tokens) - first;
        const std::int64_t blocks = rows / kBlockTokens;
        const cuda::MixerInputs in = device.rows(first, rows);
        const auto size = static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, operand, rows, cuts[i]));
        cuda::DeviceBuffer<unsigned char> workspace(size, stream);
        cuda::DeviceBuffer<float> summaries(std::max<std::int64_t>(blocks, 1) * one, stream);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(summaries.data(), 0xFF, summaries.bytes(), stream));
        FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        cuda::mixer_block_summaries(shape, operand, in, cuts[i], blocks, summaries.data(), workspace.data(), stream);
        if (kept == Workspace::kPoisoned) {
            FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        }
        std::vector<EnteringNode> entering;
        entering.reserve(nodes.size());
        for (const auto& [bit, summary] : nodes) entering.push_back({bit, summary.data()});
        const cuda::DeviceBuffer<float> above = nodes_above(shape, summaries.data(), cuts[i], blocks, stream);
        const bool formed = kept == Workspace::kKept && blocks > 0;
        const cuda::ShardNodes shard{summaries.data(), formed ? above.data() : nullptr, blocks};
        cuda::mixer_prepare_outputs(shape, operand, in, cuts[i], formed, workspace.data(), stream);
        cuda::mixer_outputs(shape, operand, in, cuts[i], entering, shard,
                            static_cast<char*>(out.data()) + first * width * bytes, workspace.data(), stream);
        for (std::int64_t b = 0; b < blocks; ++b) {
            cuda::DeviceBuffer<float> node(one, stream);
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(node.data(), summaries.data() + b * one, node.bytes(),
                                               cudaMemcpyDeviceToDevice, stream));
            int bit = 0;
            for (; !nodes.empty() && nodes.back().first == bit; ++bit) {
                cuda::DeviceBuffer<float> merged(one, stream);
                cuda::combine_summaries(shape, nodes.back().second.data(), node.data(), merged.data(), stream);
                node = std::move(merged);
                nodes.pop_back();
            }
            nodes.emplace_back(bit, std::move(node));
        }
    }
    return out.download();
}

/// What an algebra's kernels may be off by, in units of 2^-24 of the sum of magnitudes.
using Bound = double (*)(const MixerShape& shape, Operand operand);

/// Runs the first `lengths` tokens of `c` with each operand type, in shards that start at `cuts`, against the double
/// reference.
inline void check_case(const MixerCase& c, const std::vector<std::int64_t>& lengths, Bound allowed,
                       const std::vector<Operand>& operands = {Operand::kBf16, Operand::kFp32},
                       const std::vector<std::int64_t>& cuts = {0}) {
    const std::vector<double> want = reference::mixer_recurrent(c.shape, c.widened(), kThreads);
    const auto [bound_shape, bound_inputs] = testing::magnitude_inputs(c);
    const std::vector<double> bound = reference::mixer_recurrent(bound_shape, bound_inputs, kThreads);
    for (const Operand operand : operands) {
        double worst = 0.0;
        for (const std::int64_t tokens : lengths) {
            const std::vector<float> got = run_shards(c.first_tokens(tokens), operand, cuts);
            const double share = testing::worst_error(got, want, bound) / allowed(c.shape, operand);
            INFO(label(c, operand) << " cut to " << tokens);
            CHECK(share <= 1.0);
            worst = std::max(worst, share);
        }
        std::printf("  %-62s largest error %.3f of the bound\n", label(c, operand).c_str(), worst);
        std::fflush(stdout);
    }
}

inline bool same_bits(const std::vector<float>& x, const std::vector<float>& y, std::size_t count) {
    return x.size() >= count && y.size() >= count && std::memcmp(x.data(), y.data(), count * sizeof(float)) == 0;
}

/// The same bits on repetition, for every cut, for a shorter document, and with what the summaries left.
inline void check_bits(const MixerCase& c, Operand operand, const std::vector<std::vector<std::int64_t>>& cuts,
                       std::int64_t shorter) {
    const std::vector<float> whole = run_shards(c, operand);
    INFO(label(c, operand));
    CHECK(same_bits(run_shards(c, operand), whole, whole.size()));
    CHECK(same_bits(run_shards(c, operand, {0}, Workspace::kKept), whole, whole.size()));
    for (const std::vector<std::int64_t>& cut : cuts) {
        CHECK(same_bits(run_shards(c, operand, cut), whole, whole.size()));
        CHECK(same_bits(run_shards(c, operand, cut, Workspace::kKept), whole, whole.size()));
    }
    const std::vector<float> start = run_shards(c.first_tokens(shorter), operand);
    CHECK(same_bits(start, whole, start.size()));
}

}  // namespace fenwick::test
