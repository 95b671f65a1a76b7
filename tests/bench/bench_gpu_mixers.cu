// The mixers' forward on the GPU: summaries, nodes and outputs of one document, timed by CUDA events together, and the
// summaries of them.
//
//   bench_gpu_mixers [--runs N] [--json] [--backward] [--tokens N] [NAME-PART]
//
// --backward times the gradients too: of the outputs, the tree and the block summaries, after the forward in one span.
// Prints one row for each shape of the comparison with the public implementation (compare_fla.py runs both).
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/device_buffer.h"
#include "core/cuda/stream.h"
#include "core/fenwick.h"
#include "kernels/cuda/backward/mixer.h"
#include "kernels/cuda/mixer.h"
#include "tests/bench/device_data.h"
#include "tests/bench/mixer_works.h"

namespace fenwick::cuda {
namespace {

struct Work {
    const char* name;
    MixerShape shape;  // levels: filled in from the tokens for log-linear works
    bool log_linear;
    std::int64_t tokens;
    float decay = 0.05F;  // log decays lie in (-decay, 0)
};

constexpr TransitionAlgebra kScalar = TransitionAlgebra::kScalar;
constexpr TransitionAlgebra kMatrix = TransitionAlgebra::kMatrix;
constexpr TransitionAlgebra kDiagonal = TransitionAlgebra::kDiagonal;

const Work kWorks[] = {
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 2048},
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 4096},
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 8192},
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 32768},
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 131072},
    {"log-linear Mamba-2, 48 heads 128x64", {kScalar, 48, 1, 128, 64, 0}, true, 1048576},
    {"Mamba-2, 12 heads 128x128", {kScalar, 12, 12, 128, 128, 0}, false, 131072},
    {"Mamba-2, 12 heads 128x128", {kScalar, 12, 12, 128, 128, 0}, false, 1048576},
    {"Gated DeltaNet, 12 heads 128x128", {kMatrix, 12, 12, 128, 128, 0}, false, 131072},
    {"Gated DeltaNet, 12 heads 128x128", {kMatrix, 12, 12, 128, 128, 0}, false, 1048576},
    {"Gated DeltaNet, 16 key and 64 value heads", {kMatrix, 64, 16, 128, 128, 0}, false, 32768},
    {"Gated DeltaNet, 16 key and 16 value heads", {kMatrix, 16, 16, 128, 128, 0}, false, 32768},
    {"Gated DeltaNet, 16 key and 32 value heads", {kMatrix, 32, 16, 128, 128, 0}, false, 32768},
    // Decays under which no block's transition vanishes (kernels/cuda/matrix_summary.cu).
    {"Gated DeltaNet, 12 heads 128x128, slow decay", {kMatrix, 12, 12, 128, 128, 0}, false, 131072, 0.002F},
    {"log-linear Gated DeltaNet, 12 heads 128x128", {kMatrix, 12, 12, 128, 128, 0}, true, 131072},
    {"GLA, 12 heads 128x128", {kDiagonal, 12, 12, 128, 128, 0}, false, 131072},
    {"log-linear GLA, 12 heads 128x128", {kDiagonal, 12, 12, 128, 128, 0}, true, 131072},
};

struct Timing {
    double median_ms;
    double least_ms;
    double summaries_ms;  // median
    double both_ms = 0;   // median of forward and backward together; 0: not asked for
};

double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Forward and backward of one document in one shard, again and again, in one workspace.
template <class Forward>
double time_backward(const MixerShape& shape, const MixerInputs& in, const float* summaries, std::int64_t blocks,
                     int runs, void* workspace, const Stream& stream, const Forward& forward) {
    const std::int64_t t = in.rows;
    const std::int64_t decays = in.decay_stride;
    const std::int64_t width = shape.heads * shape.value_dim;
    const auto d_out = bench::random_operand(0, t, shape.heads, shape.value_dim, 1.0F, false, 7, stream.get());
    const auto take = [&](std::int64_t columns) {
        return DeviceBuffer<float>(std::max<std::int64_t>(t * columns, 1), stream.get());
    };
    auto q = take(in.q_stride);
    auto k = take(in.k_stride);
    auto v = take(width);
    auto decay = take(decays);
    auto beta = take(in.beta == nullptr ? 0 : shape.heads);
    auto lambda = take(shape.heads * shape.levels);
    MixerGradients gradients;
    gradients.q = q.data();
    gradients.k = k.data();
    gradients.v = v.data();
    gradients.log_decay = decay.data();
    gradients.beta = in.beta == nullptr ? nullptr : beta.data();
    gradients.lambda = in.lambda == nullptr ? nullptr : lambda.data();
    gradients.q_stride = in.q_stride;
    gradients.k_stride = in.k_stride;
    gradients.v_stride = width;
    gradients.decay_stride = decays;
    gradients.beta_stride = shape.heads;
    gradients.lambda_stride = shape.heads * shape.levels;
    DeviceBuffer<float> d_summaries(std::max<std::int64_t>(blocks, 1) * summary_floats(shape), stream.get());
    const Event begin(true);
    const Event end(true);
    std::vector<double> times;
    for (int i = -2; i < runs; ++i) {
        begin.record(stream.get());
        forward();
        FENWICK_CUDA_CHECK(cudaMemsetAsync(d_summaries.data(), 0, d_summaries.bytes(), stream.get()));
        mixer_outputs_backward(shape, Operand::kBf16, in, 0, {}, {summaries}, d_out.data(), width, gradients, {},
                               d_summaries.data(), true, workspace, stream.get());
        mixer_block_summaries_backward(shape, Operand::kBf16, in, 0, d_out.data(), width, blocks, d_summaries.data(),
                                       gradients, workspace, stream.get());
        end.record(stream.get());
        end.synchronize();
        if (i >= 0) times.push_back(end.milliseconds_since(begin));
    }
    return median(times);
}

Timing time_work(const Work& work, int runs, bool backward) {
    const Stream stream;
    MixerShape shape = work.shape;
    if (work.log_linear) shape.levels = bench::levels_of(work.tokens);
    const std::int64_t t = work.tokens;
    const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
    const auto q = bench::random_operand(0, t, shape.key_heads, shape.key_dim, 0.15F, false, 1, stream.get());
    const auto k = bench::random_operand(0, t, shape.key_heads, shape.key_dim, 0.15F, matrix, 2, stream.get());
    const auto v = bench::random_operand(0, t, shape.heads, shape.value_dim, 1.0F, false, 3, stream.get());
    const std::int64_t decays = shape.heads * (shape.algebra == kDiagonal ? shape.key_dim : 1);
    const auto decay = bench::random_floats(0, t, decays, -work.decay, 0.0F, 4, stream.get());
    const auto beta = bench::random_floats(0, matrix ? t : 1, matrix ? shape.heads : 1, 0.0F, 1.0F, 5, stream.get());
    const bool levels = shape.levels > 0;
    const auto lambda =
        bench::random_floats(0, levels ? t : 1, levels ? shape.heads * shape.levels : 1, 0.1F, 1.5F, 6, stream.get());
    MixerInputs in;
    in.q = q.data();
    in.k = k.data();
    in.v = v.data();
    in.log_decay = decay.data();
    in.beta = matrix ? beta.data() : nullptr;
    in.lambda = shape.levels > 0 ? lambda.data() : nullptr;
    in.q_stride = in.k_stride = shape.key_heads * shape.key_dim;
    in.v_stride = shape.heads * shape.value_dim;
    in.decay_stride = decays;
    in.beta_stride = shape.heads;
    in.lambda_stride = shape.heads * shape.levels;
    in.rows = t;
    const std::int64_t blocks = (t - 1) / kBlockTokens;  // nothing follows the last block: nobody needs its summary
    DeviceBuffer<float> summaries(std::max<std::int64_t>(blocks, 1) * summary_floats(shape), stream.get());
    const std::size_t bytes = backward ? mixer_backward_workspace_bytes(shape, Operand::kBf16, t, 0)
                                       : mixer_workspace_bytes(shape, Operand::kBf16, t, 0);
    DeviceBuffer<std::byte> workspace(static_cast<std::int64_t>(bytes), stream.get());
    DeviceBuffer<__nv_bfloat16> out(t * shape.heads * shape.value_dim, stream.get());
    const Event begin(true);
    const Event middle(true);
    const Event end(true);
    std::vector<double> times;
    std::vector<double> firsts;
    const auto summarise = [&] {
        mixer_block_summaries(shape, Operand::kBf16, in, 0, blocks, summaries.data(), workspace.data(), stream.get());
    };
    const auto read_out = [&] {
        mixer_prepare_outputs(shape, Operand::kBf16, in, 0, blocks > 0, workspace.data(), stream.get());
        mixer_outputs(shape, Operand::kBf16, in, 0, {}, {summaries.data()}, out.data(), workspace.data(), stream.get());
    };
    for (int i = -2; i < runs; ++i) {
        begin.record(stream.get());
        summarise();
        middle.record(stream.get());
        read_out();
        end.record(stream.get());
        end.synchronize();
        if (i < 0) continue;
        times.push_back(end.milliseconds_since(begin));
        firsts.push_back(middle.milliseconds_since(begin));
    }
    Timing timing{median(times), *std::min_element(times.begin(), times.end()), median(firsts)};
    if (backward) {
        timing.both_ms = time_backward(shape, in, summaries.data(), blocks, runs, workspace.data(), stream, [&] {
            summarise();
            read_out();
        });
    }
    return timing;
}

int run(int argc, char** argv) {
    int runs = 7;
    bool json = false;
    bool backward = false;
    std::int64_t tokens = 0;  // 0: all lengths
    std::string part;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--json") {
            json = true;
        } else if (argument == "--backward") {
            backward = true;
        } else if (argument == "--runs" && i + 1 < argc) {
            runs = std::max(1, std::atoi(argv[++i]));
        } else if (argument == "--tokens" && i + 1 < argc) {
            tokens = std::atoll(argv[++i]);
        } else {
            part = argument;
        }
    }
    if (!json) {
        std::printf("%-46s %10s %12s %12s %14s%s\n", "mixer, bf16: forward", "tokens", "median ms", "least ms",
                    "summaries ms", backward ? "  with backward ms" : "");
    }
    bool found = false;
    for (const Work& work : kWorks) {
        if (!part.empty() && std::strstr(work.name, part.c_str()) == nullptr) continue;
        if (tokens != 0 && work.tokens != tokens) continue;
        found = true;
        const Timing timing = time_work(work, runs, backward);
        std::printf(json ? "{\"work\": \"%s\", \"tokens\": %lld, \"median_ms\": %.4f, \"least_ms\": %.4f, "
                           "\"summaries_ms\": %.4f"
                         : "%-46s %10lld %12.4f %12.4f %14.4f",
                    work.name, static_cast<long long>(work.tokens), timing.median_ms, timing.least_ms,
                    timing.summaries_ms);
        if (backward) std::printf(json ? ", \"both_ms\": %.4f" : "  %16.4f", timing.both_ms);
        std::printf(json ? "}\n" : "\n");
        std::fflush(stdout);
    }
    if (found) return 0;
    std::fprintf(stderr, "bench_gpu_mixers: no row has \"%s\" in its name%s; without arguments all are timed\n",
                 part.c_str(), tokens != 0 ? " and that many tokens" : "");
    return 2;
}

}  // namespace
}  // namespace fenwick::cuda

int main(int argc, char** argv) {
    try {
        return fenwick::cuda::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_gpu_mixers: %s\n", error.what());
        return 70;
    }
}
