// The diagonal algebra on the GPU against the double reference, over shapes, lengths, decays and cuts; timings on
// request (test tag [timing], hidden).
//
// Bounds, as shares of the sum of magnitudes. fp32: that of tests/kernels/mixer_test.cc, as the sums have the same
// lengths. bf16 (unit 2^-9, inputs exact): a term of the chunk itself is rounded with its decayed query, its decayed
// key, its score and its output, a term of an older chunk with query, key, state (log-linear: as a node, and when
// decayed to the reading chunk) and output: at most five times; 2^-11 for __expf and the second order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/cuda/mixer.h"
#include "kernels/cuda/summary.h"
#include "tests/kernels/cuda/device_rows.h"
#include "tests/kernels/mixer_inputs.h"

namespace fenwick {
namespace {

using cuda::Operand;
using testing::MixerCase;

constexpr int kThreads = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

MixerShape shape_of(std::int64_t heads, std::int64_t key_heads, std::int64_t key_dim, std::int64_t value_dim,
                    std::int64_t levels) {
    return {TransitionAlgebra::kDiagonal, heads, key_heads, key_dim, value_dim, levels};
}

MixerCase case_of(const MixerShape& shape, std::int64_t tokens, std::uint64_t seed, Operand operand) {
    MixerCase c = testing::random_case(shape, tokens, seed);
    for (auto* x : {&c.q, &c.k, &c.v}) {
        for (float& value : *x) value = test::rounded(operand, value);
    }
    return c;
}

std::string label(const MixerCase& c, Operand operand) {
    const MixerShape& s = c.shape;
    return std::string(test::operand_name(operand)) + " heads " + std::to_string(s.heads) + "/" +
           std::to_string(s.key_heads) + " of " + std::to_string(s.key_dim) + "x" + std::to_string(s.value_dim) +
           ", levels " + std::to_string(s.levels) + ", tokens " + std::to_string(c.tokens);
}

/// A document's rows on the device.
struct DeviceCase {
    DeviceCase(const MixerCase& c, Operand operand_type, cudaStream_t stream)
        : shape(c.shape),
          operand(operand_type),
          q(operand, c.q, stream),
          k(operand, c.k, stream),
          v(operand, c.v, stream),
          decay(Operand::kFp32, c.log_decay, stream),
          lambda(Operand::kFp32, c.lambda.empty() ? std::vector<float>(1) : c.lambda, stream) {}

    [[nodiscard]] cuda::MixerInputs rows(std::int64_t first, std::int64_t count) {
        const std::int64_t bytes = operand == Operand::kBf16 ? 2 : 4;
        cuda::MixerInputs in;
        in.q_stride = in.k_stride = shape.key_heads * shape.key_dim;
        in.v_stride = shape.heads * shape.value_dim;
        in.decay_stride = shape.heads * shape.key_dim;
        in.lambda_stride = shape.heads * shape.levels;
        in.q = static_cast<char*>(q.data()) + first * in.q_stride * bytes;
        in.k = static_cast<char*>(k.data()) + first * in.k_stride * bytes;
        in.v = static_cast<char*>(v.data()) + first * in.v_stride * bytes;
        in.log_decay = decay.floats() + first * in.decay_stride;
        if (shape.log_linear()) in.lambda = lambda.floats() + first * in.lambda_stride;
        in.rows = count;
        return in;
    }

    MixerShape shape;
    Operand operand;
    test::DeviceRows q, k, v, decay, lambda;
};

// The document in shards that start at the given blocks, each with its own poisoned workspace and outputs.
std::vector<float> run_gpu(const MixerCase& c, Operand operand, const std::vector<std::int64_t>& cuts = {0}) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    const MixerShape& shape = c.shape;
    const std::int64_t width = shape.heads * shape.value_dim;
    const std::int64_t one = summary_floats(shape);
    DeviceCase device(c, operand, stream);
    test::DeviceRows out(operand, c.tokens * width, stream);
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
        FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        std::vector<EnteringNode> entering;
        for (const auto& [bit, summary] : nodes) entering.push_back({bit, summary.data()});
        cuda::mixer_outputs(shape, operand, in, cuts[i], entering, summaries.data(), false,
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

// mixer_inputs.h's `magnitude`, by the recurrent reference: the dense one takes too long at these lengths.
std::vector<double> magnitude_of(const MixerCase& c) {
    reference::MixerInputs in = c.widened();
    for (auto* x : {&in.q, &in.k, &in.v, &in.lambda}) {
        for (double& value : *x) value = std::fabs(value);
    }
    return reference::mixer_recurrent(c.shape, in, kThreads);
}

double allowed(const MixerShape& shape, Operand operand) {
    if (operand == Operand::kBf16) return (5 * 0x1p-9 + 0x1p-11) / 0x1p-24;
    return std::sqrt(static_cast<double>(shape.key_dim) + 64 + 64 + 40) + 4;
}

// Runs the first `lengths` tokens of `c` with both operand types (`c` has values of bf16) against the reference.
void check_case(const MixerCase& c, const std::vector<std::int64_t>& lengths) {
    const std::vector<double> want = reference::mixer_recurrent(c.shape, c.widened(), kThreads);
    const std::vector<double> bound = magnitude_of(c);
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        double worst = 0.0;
        for (const std::int64_t tokens : lengths) {
            const std::vector<float> got = run_gpu(c.first_tokens(tokens), operand);
            const double share = testing::worst_error(got, want, bound) / allowed(c.shape, operand);
            INFO(label(c, operand) << " cut to " << tokens);
            CHECK(share <= 1.0);
            worst = std::max(worst, share);
        }
        std::printf("  %-62s largest error %.3f of the bound\n", label(c, operand).c_str(), worst);
        std::fflush(stdout);
    }
}

TEST_CASE("diagonal mixer on the GPU agrees with the reference at every length") {
    for (const std::int64_t levels : {15, 0}) {
        // Lengths around chunk, group, span and block.
        check_case(case_of(shape_of(4, 2, 128, 64, levels), 9000, 1, Operand::kBf16),
                   {1, 63, 64, 65, 127, 128, 129, 1024, 1025, 2049, 4095, 4096, 4097, 8192, 9000});
    }
}

TEST_CASE("diagonal mixer on the GPU agrees with the reference for every head shape") {
    for (const std::int64_t key_dim : {64, 128, 192, 256}) {
        for (const std::int64_t value_dim : {32, 64, 128, 256}) {
            // Two key groups; levels fewer than the document has, so that the last lambda stands for more.
            const std::int64_t levels = value_dim % 128 == 0 ? 9 : 0;
            check_case(case_of(shape_of(4, 2, key_dim, value_dim, levels), 2500, 2, Operand::kBf16), {2500});
        }
    }
    check_case(case_of(shape_of(2, 1, 64, 128, 16), 13000, 3, Operand::kBf16), {13000});
    check_case(case_of(shape_of(2, 2, 128, 128, 0), 13000, 4, Operand::kBf16), {13000});
    check_case(case_of(shape_of(2, 2, 128, 72, 1), 4500, 4, Operand::kBf16), {4500});
}

TEST_CASE("diagonal mixer on the GPU stays right for strong decay and for none") {
    for (const std::int64_t levels : {15, 0}) {
        for (const float decay : {0.0F, -20.0F, -320.0F, -kInfinity}) {
            MixerCase c = case_of(shape_of(2, 1, 128, 64, levels), 4500, 5, Operand::kBf16);
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            check_case(c, {4500});
        }
        // A few forgetful channels of tokens among mild ones: they must not disturb the others.
        MixerCase c = case_of(shape_of(2, 1, 128, 64, levels), 9000, 6, Operand::kBf16);
        for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
        check_case(c, {9000});
    }
}

TEST_CASE("diagonal mixer on the GPU gives the same bits for every cut and again") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {17, 0}) {
            const MixerCase c = case_of(shape_of(2, 1, 128, 64, levels), 7 * kBlockTokens + 777, 7, operand);
            const std::vector<float> whole = run_gpu(c, operand);
            INFO(label(c, operand));
            for (const std::vector<std::int64_t>& cuts :
                 std::vector<std::vector<std::int64_t>>{{0}, {0, 1}, {0, 3, 4}, {0, 6, 7}, {0, 1, 2, 3, 4, 5, 6}}) {
                const std::vector<float> got = run_gpu(c, operand, cuts);
                CHECK(std::memcmp(got.data(), whole.data(), whole.size() * sizeof(float)) == 0);
            }
            const std::vector<float> shorter = run_gpu(c.first_tokens(5 * kBlockTokens + 5), operand);
            CHECK(std::memcmp(shorter.data(), whole.data(), shorter.size() * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("diagonal mixer on the GPU small enough for a memory checker", "[.][small]") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {15, 0}) {
            const MixerCase c = case_of(shape_of(1, 1, 128, 72, levels), 4500, 8, operand);
            for (const float x : run_gpu(c, operand, {0, 1})) REQUIRE(std::isfinite(x));
        }
    }
}

// Rows of one block, repeated: the values' spread matters, not their order.
void time_shape(const char* name, MixerShape shape, std::int64_t tokens) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    MixerCase c = case_of(shape, kBlockTokens, 11, Operand::kBf16);
    for (auto* x : {&c.q, &c.k, &c.v, &c.log_decay, &c.lambda}) {
        const std::size_t block = x->size();
        x->resize(block * static_cast<std::size_t>(tokens / kBlockTokens));
        for (std::size_t i = block; i < x->size(); ++i) (*x)[i] = (*x)[i - block];
    }
    DeviceCase device(c, Operand::kBf16, stream);
    test::DeviceRows out(Operand::kBf16, tokens * shape.heads * shape.value_dim, stream);
    const std::int64_t blocks = tokens / kBlockTokens;
    cuda::DeviceBuffer<float> summaries(blocks * summary_floats(shape), stream);
    cuda::DeviceBuffer<unsigned char> workspace(
        static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, Operand::kBf16, tokens, 0)), stream);
    const cuda::MixerInputs in = device.rows(0, tokens);
    std::vector<float> all;
    std::vector<float> first;
    for (int i = 0; i < 13; ++i) {
        const cuda::Event start(true);
        const cuda::Event middle(true);
        const cuda::Event end(true);
        start.record(stream);
        cuda::mixer_block_summaries(shape, Operand::kBf16, in, 0, blocks, summaries.data(), workspace.data(), stream);
        middle.record(stream);
        cuda::mixer_outputs(shape, Operand::kBf16, in, 0, {}, summaries.data(), true, out.data(), workspace.data(),
                            stream);
        end.record(stream);
        end.synchronize();
        if (i < 2) continue;
        all.push_back(end.milliseconds_since(start));
        first.push_back(middle.milliseconds_since(start));
    }
    std::sort(all.begin(), all.end());
    std::sort(first.begin(), first.end());
    std::printf("  %-40s T %8lld: %8.3f ms (summaries %.3f), fastest %.3f, slowest %.3f; workspace %.0f MiB\n", name,
                static_cast<long long>(tokens), all[all.size() / 2], first[first.size() / 2], all.front(), all.back(),
                static_cast<double>(workspace.bytes()) / 1048576.0);
    std::fflush(stdout);
    CHECK(std::isfinite(all.back()));
}

TEST_CASE("diagonal mixer on the GPU for a profiler: linear", "[.][profile][linear]") {
    time_shape("linear, 12 heads 128x128", shape_of(12, 12, 128, 128, 0), 131072);
}

TEST_CASE("diagonal mixer on the GPU for a profiler: levels", "[.][profile][levels]") {
    time_shape("log-linear, 12 heads 128x128", shape_of(12, 12, 128, 128, 18), 131072);
}

TEST_CASE("diagonal mixer on the GPU in milliseconds", "[.][timing]") {
    for (const std::int64_t tokens : {8192, 32768, 131072}) {
        time_shape("linear, 12 heads 128x128", shape_of(12, 12, 128, 128, 0), tokens);
        time_shape("log-linear, 12 heads 128x128", shape_of(12, 12, 128, 128, 18), tokens);
    }
}

}  // namespace
}  // namespace fenwick
