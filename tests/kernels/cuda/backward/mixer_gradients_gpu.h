// A mixer's gradients on the GPU over a document in shards, and what its tests check: the double reference within a
// bound, and the same bits again.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/fenwick.h"
#include "kernels/backward/summary.h"
#include "kernels/cuda/backward/mixer.h"
#include "tests/kernels/backward/mixer_gradients.h"
#include "tests/kernels/cuda/mixer_shards.h"

namespace fenwick::test {

using testing::MixerGradientRows;

inline std::vector<float> download(const cuda::DeviceBuffer<float>& from, cudaStream_t stream) {
    std::vector<float> values(static_cast<std::size_t>(from.size()));
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(values.data(), from.data(), from.bytes(), cudaMemcpyDeviceToHost, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return values;
}

inline cuda::DeviceBuffer<float> upload(const std::vector<float>& values, cudaStream_t stream) {
    cuda::DeviceBuffer<float> to(std::max<std::int64_t>(static_cast<std::int64_t>(values.size()), 1), stream);
    FENWICK_CUDA_CHECK(
        cudaMemcpyAsync(to.data(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return to;
}

/// The nodes that a document's complete blocks form, with their gradients, on the host.
struct HostTree {
    struct Values {
        std::vector<float> summary, gradient;
    };
    std::map<Node, Values> nodes;

    HostTree(const MixerShape& shape, const std::vector<float>& summaries, std::int64_t blocks) {
        const std::int64_t one = summary_floats(shape);
        const std::vector<float> zeros(static_cast<std::size_t>(one));
        for (std::int64_t b = 0; b < blocks; ++b) {
            nodes[{0, b}] = {{summaries.begin() + b * one, summaries.begin() + (b + 1) * one}, zeros};
        }
        for (int bit = 1; std::int64_t{1} << bit <= blocks; ++bit) {
            for (std::int64_t i = 0; (i + 1) << bit <= blocks; ++i) {
                const Node node{bit, i};
                Values values{zeros, zeros};
                combine_summaries(shape, nodes.at(left_child(node)).summary.data(),
                                  nodes.at(right_child(node)).summary.data(), values.summary.data(), 1);
                nodes[node] = values;
            }
        }
    }

    /// Gradients of all nodes go down to the blocks, which are added to `d_blocks`.
    void gather(const MixerShape& shape, std::vector<float>& d_blocks) {
        const std::int64_t one = summary_floats(shape);
        for (auto node = nodes.rbegin(); node != nodes.rend() && node->first.bit > 0; ++node) {
            Values& left = nodes.at(left_child(node->first));
            Values& right = nodes.at(right_child(node->first));
            combine_summaries_backward(shape, left.summary.data(), right.summary.data(), node->second.gradient.data(),
                                       left.gradient.data(), right.gradient.data(), 1);
        }
        for (const auto& [node, values] : nodes) {
            if (node.bit > 0) continue;
            for (std::int64_t i = 0; i < one; ++i) {
                d_blocks[static_cast<std::size_t>(node.index * one + i)] +=
                    values.gradient[static_cast<std::size_t>(i)];
            }
        }
    }
};

/// Gradients on the device: rows of a document.
struct DeviceGradients {
    DeviceGradients(const MixerCase& c, cudaStream_t stream)
        : q(poisoned(c.q, stream)),
          k(poisoned(c.k, stream)),
          v(poisoned(c.v, stream)),
          decay(poisoned(c.log_decay, stream)),
          beta(poisoned(c.beta, stream)),
          lambda(poisoned(c.lambda, stream)) {}

    [[nodiscard]] static cuda::DeviceBuffer<float> poisoned(const std::vector<float>& like, cudaStream_t stream) {
        cuda::DeviceBuffer<float> to(std::max<std::int64_t>(static_cast<std::int64_t>(like.size()), 1), stream);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(to.data(), 0xFF, to.bytes(), stream));
        return to;
    }

    [[nodiscard]] cuda::MixerGradients rows(const MixerCase& c, std::int64_t first) {
        const MixerShape& s = c.shape;
        cuda::MixerGradients g;
        g.q_stride = g.k_stride = s.key_heads * s.key_dim;
        g.v_stride = s.heads * s.value_dim;
        g.decay_stride = c.decay_columns();
        g.beta_stride = s.heads;
        g.lambda_stride = s.heads * s.levels;
        g.q = q.data() + first * g.q_stride;
        g.k = k.data() + first * g.k_stride;
        g.v = v.data() + first * g.v_stride;
        g.log_decay = decay.data() + first * g.decay_stride;
        if (!c.beta.empty()) g.beta = beta.data() + first * g.beta_stride;
        if (!c.lambda.empty()) g.lambda = lambda.data() + first * g.lambda_stride;
        return g;
    }

    void download_to(MixerGradientRows& to, cudaStream_t stream) const {
        to.q = download(q, stream);
        to.k = download(k, stream);
        to.v = download(v, stream);
        to.log_decay = download(decay, stream);
        if (!to.beta.empty()) to.beta = download(beta, stream);
        if (!to.lambda.empty()) to.lambda = download(lambda, stream);
    }

    cuda::DeviceBuffer<float> q, k, v, decay, beta, lambda;
};

/// Gradients of a document in shards that start at the given blocks, each by itself; summaries and the tree between
/// shards are the host's. Gradients and workspace are poisoned first; in one shard so is A of block 0, which nobody
/// may read. `after_outputs`: the forward pass comes first, in the same workspace.
inline MixerGradientRows gpu_gradients(const MixerCase& c, const std::vector<float>& d_out, Operand operand,
                                       const std::vector<std::int64_t>& cuts = {0}, bool after_outputs = false) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    const MixerShape& shape = c.shape;
    const std::int64_t width = shape.heads * shape.value_dim;
    const std::int64_t one = summary_floats(shape);
    const std::int64_t whole = c.tokens / kBlockTokens;
    const std::int64_t element = operand == Operand::kBf16 ? 2 : 4;

    std::vector<float> summaries(static_cast<std::size_t>(whole * one));
    Buffer<float> host_workspace(mixer_workspace_floats(shape, 0));
    mixer_block_summaries(shape, c.rows(0, c.tokens), whole, summaries.data(), 1, host_workspace.data());
    HostTree tree(shape, summaries, whole);
    if (cuts.size() == 1 && whole > 0) {
        const std::int64_t head = transition_floats(shape) + state_floats(shape);
        for (std::int64_t i = 0; i < one; ++i) {
            if (i % head < transition_floats(shape)) summaries[static_cast<std::size_t>(i)] = NAN;
        }
    }

    DeviceCase device(c, operand, stream);
    DeviceRows d_rows(operand, d_out, stream);
    DeviceGradients gradients(c, stream);
    const cuda::DeviceBuffer<float> device_summaries = upload(summaries, stream);
    cuda::DeviceBuffer<float> d_summaries = upload(std::vector<float>(summaries.size()), stream);
    const auto d_out_from = [&](std::int64_t row) { return static_cast<char*>(d_rows.data()) + row * width * element; };
    std::vector<cuda::DeviceBuffer<unsigned char>> workspaces;  // of the shards, kept from step to step
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        const std::int64_t first = cuts[i] * kBlockTokens;
        const std::int64_t rows = (i + 1 < cuts.size() ? cuts[i + 1] * kBlockTokens : c.tokens) - first;
        std::vector<cuda::DeviceBuffer<float>> nodes;
        std::vector<cuda::DeviceBuffer<float>> d_nodes;
        std::vector<EnteringNode> entering;
        std::vector<float*> d_entering;
        const std::vector<Node> cover = canonical_cover(0, cuts[i]);
        for (const Node& node : cover) {
            nodes.push_back(upload(tree.nodes.at(node).summary, stream));
            d_nodes.push_back(upload(tree.nodes.at(node).gradient, stream));
            entering.push_back({node.bit, nodes.back().data()});
            d_entering.push_back(d_nodes.back().data());
        }
        cuda::DeviceBuffer<unsigned char>& workspace = workspaces.emplace_back(
            static_cast<std::int64_t>(cuda::mixer_backward_workspace_bytes(shape, operand, rows, cuts[i])), stream);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        const cuda::MixerInputs inputs = device.rows(first, rows);
        const float* blocks = device_summaries.data() + cuts[i] * one;
        if (after_outputs) {
            cuda::DeviceBuffer<unsigned char> out(rows * width * element, stream);
            cuda::mixer_prepare_outputs(shape, operand, inputs, cuts[i], false, workspace.data(), stream);
            cuda::mixer_outputs(shape, operand, inputs, cuts[i], entering, {blocks}, out.data(), workspace.data(),
                                stream);
        }
        cuda::mixer_outputs_backward(shape, operand, inputs, cuts[i], entering, {blocks}, d_out_from(first), width,
                                     gradients.rows(c, first), d_entering, d_summaries.data() + cuts[i] * one,
                                     after_outputs, workspace.data(), stream);
        for (std::size_t n = 0; n < cover.size(); ++n) {
            tree.nodes.at(cover[n]).gradient = download(d_nodes[n], stream);
        }
    }
    std::vector<float> d_blocks = download(d_summaries, stream);
    if (cuts.size() > 1) tree.gather(shape, d_blocks);
    const cuda::DeviceBuffer<float> d_all = upload(d_blocks, stream);
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        const std::int64_t first = cuts[i] * kBlockTokens;
        const std::int64_t rows = (i + 1 < cuts.size() ? cuts[i + 1] * kBlockTokens : c.tokens) - first;
        cuda::mixer_block_summaries_backward(shape, operand, device.rows(first, rows), cuts[i], d_out_from(first),
                                             width, rows / kBlockTokens, d_all.data() + cuts[i] * one,
                                             gradients.rows(c, first), workspaces[i].data(), stream);
    }
    MixerGradientRows out(c);
    gradients.download_to(out, stream);
    return out;
}

/// |got - want| / |want| over all elements: what a forgotten term would show in, however small it is beside the bound.
inline double norm_error(const std::vector<float>& got, const std::vector<double>& want) {
    double error = 0.0;
    double norm = 1e-60;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return std::sqrt(error / norm);
}

/// What a gradient may be off by, in units of 2^-24 of the sum of its terms' magnitudes.
using GradientBound = double (*)(const MixerShape& shape, Operand operand, const std::string& field);

// A token of a walk: the device's expf is within 1 ulp (two units of 2^-24), and the state is multiplied and added to
// (one each). A gradient meets two walks, one forward and one back; sqrt of the 4,096 tokens of a block.
inline constexpr double kNormBoundFp32 = 2 * 4 * 64 * 0x1p-24;
inline constexpr double kNormBoundBf16 = 8 * 0x1p-9;

/// long_memory_case with q, k and v of bf16: states are worth something after several blocks.
inline MixerCase bf16_long_case(const MixerShape& shape, std::int64_t tokens, std::uint64_t seed) {
    MixerCase c = testing::long_memory_case(shape, tokens, seed);
    for (auto* x : {&c.q, &c.k, &c.v}) {
        for (float& value : *x) value = rounded(Operand::kBf16, value);
    }
    return c;
}

inline std::vector<float> bf16_d_out(const MixerCase& c) {
    std::vector<float> d_out = testing::random_d_out(c);
    for (float& x : d_out) x = rounded(Operand::kBf16, x);
    return d_out;
}

/// Gradients with each operand type, in shards that start at `cuts`, against the double reference.
inline void check_gradients(const MixerCase& c, GradientBound allowed,
                            const std::vector<Operand>& operands = {Operand::kBf16, Operand::kFp32},
                            const std::vector<std::int64_t>& cuts = {0}) {
    const std::vector<float> d_out = bf16_d_out(c);
    const reference::MixerInputs want = testing::reference_gradients(c, d_out);
    const reference::MixerInputs bound = testing::gradient_magnitudes(c, d_out);
    for (const Operand operand : operands) {
        const MixerGradientRows got = gpu_gradients(c, d_out, operand, cuts);
        std::string worst;
        for (const testing::NamedField& field : testing::kGradientFields) {
            if ((got.*field.got).empty()) continue;
            const double share = testing::worst_error(got.*field.got, want.*field.want, bound.*field.want) /
                                 allowed(c.shape, operand, field.name);
            INFO(label(c, operand) << ", gradient of " << field.name);
            CHECK(share <= 1.0);
            const double norm = norm_error(got.*field.got, want.*field.want);
            // Roundings of either sign, so that of n terms of a sum about sqrt(n) add up: as a share of the whole they
            // stay near one rounding of each factor. Gradients that are small beside their terms may lose more.
            CHECK(norm <= (operand == Operand::kBf16 ? kNormBoundBf16 : kNormBoundFp32));
            char text[64];
            std::snprintf(text, sizeof(text), " %s %.3f %.0e", field.name, share, norm);
            worst += text;
        }
        std::printf("  %-62s of the bounds:%s\n", label(c, operand).c_str(), worst.c_str());
        std::fflush(stdout);
    }
}

}  // namespace fenwick::test
