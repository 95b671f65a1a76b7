// The scalar algebra on the GPU against the double reference, over shapes, lengths, decays and cuts; timings on request
// (test tag [timing], hidden).
//
// Bounds. fp32: sums of n = d_k + 2 * 256 + 40 terms (a score, a group's values, a group's keys, levels and merges),
// error at most about (sqrt(n) + 8) 2^-24 of the sum of magnitudes; 8 for expf and the factors. bf16 (unit 2^-9, inputs
// exact): every term passes at most three roundings to bf16 - the score, the score with its decay and lambda, the
// output; or the value with its decay, the state that enters, the output - so 3 * 2^-9 of the sum of magnitudes, and
// 2^-11 for __expf and the second order.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
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
    return {TransitionAlgebra::kScalar, heads, key_heads, key_dim, value_dim, levels};
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

// The document in shards that start at the given blocks, each with its own poisoned workspace and outputs.
std::vector<float> run_gpu(const MixerCase& c, Operand operand, const std::vector<std::int64_t>& cuts = {0}) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    const MixerShape& shape = c.shape;
    const std::int64_t key_width = shape.key_heads * shape.key_dim;
    const std::int64_t width = shape.heads * shape.value_dim;
    const std::int64_t one = summary_floats(shape);
    test::DeviceRows q(operand, c.q, stream);
    test::DeviceRows k(operand, c.k, stream);
    test::DeviceRows v(operand, c.v, stream);
    test::DeviceRows decay(Operand::kFp32, c.log_decay, stream);
    test::DeviceRows lambda(Operand::kFp32, c.lambda.empty() ? std::vector<float>(1) : c.lambda, stream);
    test::DeviceRows out(operand, c.tokens * width, stream);
    const std::int64_t bytes = operand == Operand::kBf16 ? 2 : 4;

    std::vector<std::pair<int, cuda::DeviceBuffer<float>>> nodes;  // the list of complete nodes so far
    for (std::size_t i = 0; i < cuts.size(); ++i) {
        const std::int64_t first = cuts[i] * kBlockTokens;
        const std::int64_t rows = (i + 1 < cuts.size() ? cuts[i + 1] * kBlockTokens : c.tokens) - first;
        const std::int64_t blocks = rows / kBlockTokens;
        cuda::MixerInputs in;
        const auto at = [&](test::DeviceRows& x, std::int64_t columns) {
            return static_cast<const void*>(static_cast<char*>(x.data()) + first * columns * bytes);
        };
        in.q = at(q, key_width);
        in.k = at(k, key_width);
        in.v = at(v, width);
        in.log_decay = decay.floats() + first * shape.heads;
        if (shape.log_linear()) in.lambda = lambda.floats() + first * shape.heads * shape.levels;
        in.q_stride = in.k_stride = key_width;
        in.v_stride = width;
        in.decay_stride = shape.heads;
        in.lambda_stride = shape.heads * shape.levels;
        in.rows = rows;
        const auto size = static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, operand, rows, cuts[i]));
        cuda::DeviceBuffer<unsigned char> workspace(size, stream);
        cuda::DeviceBuffer<float> summaries(std::max<std::int64_t>(blocks, 1) * one, stream);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(summaries.data(), 0xFF, summaries.bytes(), stream));
        FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        cuda::mixer_block_summaries(shape, operand, in, cuts[i], blocks, summaries.data(), workspace.data(), stream);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream));
        std::vector<EnteringNode> entering;
        entering.reserve(nodes.size());
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

std::vector<double> magnitude_of(const MixerCase& c) {
    reference::MixerInputs in = c.widened();
    for (auto* x : {&in.q, &in.k, &in.v, &in.lambda}) {
        for (double& value : *x) value = std::fabs(value);
    }
    return reference::mixer_recurrent(c.shape, in, kThreads);
}

double allowed(const MixerShape& shape, Operand operand) {
    if (operand == Operand::kBf16) return (3 * 0x1p-9 + 0x1p-11) / 0x1p-24;
    return std::sqrt(static_cast<double>(shape.key_dim) + 2 * 256 + 40) + 8;
}

// Runs the first `lengths` tokens of `c` and returns the largest error as a share of what is allowed.
double worst_share(const MixerCase& c, Operand operand, const std::vector<std::int64_t>& lengths) {
    const std::vector<double> want = reference::mixer_recurrent(c.shape, c.widened(), kThreads);
    const std::vector<double> bound = magnitude_of(c);
    double worst = 0.0;
    for (const std::int64_t tokens : lengths) {
        const std::vector<float> got = run_gpu(c.first_tokens(tokens), operand);
        const double share = testing::worst_error(got, want, bound) / allowed(c.shape, operand);
        INFO(label(c, operand) << " cut to " << tokens);
        CHECK(share <= 1.0);
        worst = std::max(worst, share);
    }
    std::printf("  %-62s largest error %.3f of the bound\n", label(c, operand).c_str(), worst);
    return worst;
}

TEST_CASE("scalar mixer on the GPU agrees with the reference at every length") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {16, 0}) {
            // Lengths around chunk, group and block, and one with three bits of block number.
            worst_share(case_of(shape_of(4, 1, 128, 64, levels), 20000, 1, operand), operand,
                        {1, 63, 64, 65, 256, 257, 700, 2049, 4095, 4096, 4097, 8192, 20000});
        }
    }
}

TEST_CASE("scalar mixer on the GPU agrees with the reference for every head shape") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t key_dim : {64, 128, 192, 256}) {
            for (const std::int64_t value_dim : {32, 64, 128, 256}) {
                // Two key groups; levels fewer than the document has, so that the last lambda stands for more.
                const std::int64_t levels = value_dim % 128 == 0 ? 9 : 0;
                worst_share(case_of(shape_of(4, 2, key_dim, value_dim, levels), 1100, 2, operand), operand, {1100});
            }
        }
        worst_share(case_of(shape_of(2, 1, 64, 128, 15), 9000, 3, operand), operand, {9000});
        // Many heads that share their keys: one CTA takes several.
        worst_share(case_of(shape_of(32, 1, 128, 64, 15), 4500, 9, operand), operand, {4500});
        worst_share(case_of(shape_of(2, 2, 128, 128, 0), 9000, 4, operand), operand, {9000});
        worst_share(case_of(shape_of(2, 2, 128, 128, 1), 4500, 4, operand), operand, {4500});
    }
}

TEST_CASE("scalar mixer on the GPU stays right for strong decay and for none") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {15, 0}) {
            for (const float decay : {0.0F, -20.0F, -320.0F, -kInfinity}) {
                MixerCase c = case_of(shape_of(2, 1, 128, 64, levels), 4500, 5, operand);
                std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
                worst_share(c, operand, {4500});
            }
            // A few forgetful tokens among mild ones: differences of large sums must not lose the small decays.
            MixerCase c = case_of(shape_of(2, 1, 128, 64, levels), 9000, 6, operand);
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
            worst_share(c, operand, {9000});
        }
    }
}

TEST_CASE("scalar mixer on the GPU gives the same bits for every cut and again") {
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
            const MixerCase start = c.first_tokens(5 * kBlockTokens + 5);
            const std::vector<float> shorter = run_gpu(start, operand);
            CHECK(std::memcmp(shorter.data(), whole.data(), shorter.size() * sizeof(float)) == 0);
        }
    }
}

// `count` random values of the operand type, one stretch of 2^22 repeated.
test::DeviceRows filled(Operand operand, std::int64_t count, const std::function<float(std::mt19937_64&)>& draw,
                        cudaStream_t stream) {
    constexpr std::int64_t kStretch = std::int64_t{1} << 22;
    std::mt19937_64 random(11);
    std::vector<float> host(static_cast<std::size_t>(std::min(count, kStretch)));
    for (float& x : host) x = draw(random);
    test::DeviceRows stretch(operand, host, stream);
    test::DeviceRows all(operand, count, stream);
    const std::int64_t bytes = operand == Operand::kBf16 ? 2 : 4;
    for (std::int64_t at = 0; at < count; at += kStretch) {
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(all.data()) + at * bytes, stretch.data(),
                                           static_cast<std::size_t>(std::min(kStretch, count - at) * bytes),
                                           cudaMemcpyDeviceToDevice, stream));
    }
    FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
    return all;
}

void time_shape(const char* name, MixerShape shape, bool log_linear, std::int64_t tokens) {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    std::int64_t levels = 1;
    while ((std::int64_t{1} << (levels - 1)) < tokens) ++levels;
    shape.levels = log_linear ? levels : 0;
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    const auto gauss = [&](std::mt19937_64& r) { return 0.1F * normal(r); };
    const auto decays = [&](std::mt19937_64& r) { return -2.0F * std::exp(-9.0F * uniform(r)); };
    const auto unit = [&](std::mt19937_64& r) { return uniform(r); };
    const std::int64_t key_width = shape.key_heads * shape.key_dim;
    const std::int64_t width = shape.heads * shape.value_dim;
    test::DeviceRows q = filled(Operand::kBf16, tokens * key_width, gauss, stream);
    test::DeviceRows k = filled(Operand::kBf16, tokens * key_width, gauss, stream);
    test::DeviceRows v = filled(Operand::kBf16, tokens * width, gauss, stream);
    test::DeviceRows decay = filled(Operand::kFp32, tokens * shape.heads, decays, stream);
    test::DeviceRows lambda =
        filled(Operand::kFp32, std::max<std::int64_t>(1, tokens * shape.heads * shape.levels), unit, stream);
    test::DeviceRows out(Operand::kBf16, tokens * width, stream);
    const std::int64_t blocks = tokens / kBlockTokens;
    cuda::DeviceBuffer<float> summaries(blocks * summary_floats(shape), stream);
    cuda::DeviceBuffer<unsigned char> workspace(
        static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, Operand::kBf16, tokens, 0)), stream);
    cuda::MixerInputs in;
    in.q = q.data();
    in.k = k.data();
    in.v = v.data();
    in.log_decay = decay.floats();
    in.lambda = log_linear ? lambda.floats() : nullptr;
    in.q_stride = in.k_stride = key_width;
    in.v_stride = width;
    in.decay_stride = shape.heads;
    in.lambda_stride = shape.heads * shape.levels;
    in.rows = tokens;
    std::vector<float> all;
    std::vector<float> first;
    const int repeats = tokens > 500000 ? 5 : 11;
    for (int i = 0; i < repeats + 2; ++i) {
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
    std::printf("  %-44s T %8lld: %8.3f ms (summaries %.3f), fastest %.3f, slowest %.3f; workspace %.0f MiB\n", name,
                static_cast<long long>(tokens), all[all.size() / 2], first[first.size() / 2], all.front(), all.back(),
                static_cast<double>(workspace.bytes()) / 1048576.0);
    CHECK(std::isfinite(all.back()));
}

// Few and short, for compute-sanitizer: every kernel, two shards, a last block that is not whole.
TEST_CASE("scalar mixer on the GPU on small sizes", "[small]") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {14, 0}) {
            for (const std::int64_t key_dim : {64, 128}) {
                const MixerCase c = case_of(shape_of(2, 1, key_dim, 32, levels), kBlockTokens + 2600, 8, operand);
                INFO(label(c, operand));
                const std::vector<double> want = reference::mixer_recurrent(c.shape, c.widened(), kThreads);
                const double worst = testing::worst_error(run_gpu(c, operand, {0, 1}), want, magnitude_of(c));
                CHECK(worst <= allowed(c.shape, operand));
            }
        }
    }
}

TEST_CASE("scalar mixer on the GPU for a profiler", "[.][profile]") {
    time_shape("log-linear, 48 heads 128x64, one key group", shape_of(48, 1, 128, 64, 0), true, 131072);
    time_shape("log-linear, 48 heads 128x64, one key group", shape_of(48, 1, 128, 64, 0), true, 8192);
}

TEST_CASE("scalar mixer on the GPU in milliseconds", "[.][timing]") {
    for (const std::int64_t tokens : {8192, 32768, 131072, 1048576}) {
        time_shape("log-linear, 48 heads 128x64, one key group", shape_of(48, 1, 128, 64, 0), true, tokens);
    }
    for (const std::int64_t tokens : {8192, 32768, 131072, 1048576}) {
        time_shape("linear, 12 heads 128x128, 12 key heads", shape_of(12, 12, 128, 128, 0), false, tokens);
    }
    time_shape("linear, 48 heads 128x64, one key group", shape_of(48, 1, 128, 64, 0), false, 131072);
}

}  // namespace
}  // namespace fenwick
