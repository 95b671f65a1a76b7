// Tokens/s of one mixer on the CPU: forward alone, and forward with backward as training runs it (the document one
// shard). FENWICK_BENCH_THREADS sets the threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "core/fenwick.h"
#include "kernels/backward/mixer.h"
#include "kernels/mixer.h"

namespace {

using fenwick::Buffer;
using fenwick::MatrixView;
using fenwick::MixerShape;
using fenwick::TransitionAlgebra;

int bench_threads() {
    const char* chosen = std::getenv("FENWICK_BENCH_THREADS");
    if (chosen != nullptr && std::atoi(chosen) > 0) return std::atoi(chosen);
    const unsigned int processors = std::thread::hardware_concurrency();
    return processors == 0 ? 1 : static_cast<int>(processors);
}

/// A rows x cols matrix of numbers in (low, high), each page touched.
struct Rows {
    Rows(std::int64_t rows, std::int64_t cols, float low, float high) : values(rows * cols) {
        view = values.matrix(rows, cols);
        std::uint32_t state = 1;
        for (float& value : values) {
            state = state * 1664525U + 1013904223U;
            value = low + (high - low) * static_cast<float>(state >> 8U) * 0x1p-24F;
        }
    }
    Buffer<float> values;
    MatrixView<float> view;
};

class Mixer {
public:
    Mixer(const MixerShape& shape, std::int64_t tokens)
        : shape_(shape),
          tokens_(tokens),
          blocks_((tokens + fenwick::kBlockTokens - 1) / fenwick::kBlockTokens),
          inputs_(rows_of(shape, tokens)),
          gradients_(rows_of(shape, tokens)),
          out_(tokens, shape.heads * shape.value_dim, -1.0F, 1.0F),
          summaries_(blocks_, fenwick::summary_floats(shape), 0.0F, 0.0F),
          d_summaries_(blocks_, fenwick::summary_floats(shape), 0.0F, 0.0F),
          workspace_(bench_threads() *
                     std::max(fenwick::mixer_workspace_floats(shape, blocks_ - 1),
                              fenwick::mixer_backward_workspace_floats(shape, blocks_, blocks_ - 1))) {}

    void forward() {
        fenwick::mixer_block_summaries(shape_, inputs(), blocks_ - 1, summaries_.values.data(), bench_threads(),
                                       workspace_.data());
        fenwick::mixer_outputs(shape_, inputs(), 0, {}, summaries_.values.data(), out_.view, bench_threads(),
                               workspace_.data());
    }

    void backward() {
        const auto& g = gradients_;
        const fenwick::MixerGradients gradients{g[0].view, g[1].view, g[2].view, g[3].view, g[4].view, g[5].view};
        std::fill(d_summaries_.values.begin(), d_summaries_.values.end(), 0.0F);
        fenwick::mixer_outputs_backward(shape_, inputs(), 0, {}, summaries_.values.data(), out_.view, gradients, {},
                                        d_summaries_.values.data(), bench_threads(), workspace_.data());
        fenwick::mixer_block_summaries_backward(shape_, inputs(), blocks_ - 1, d_summaries_.values.data(), gradients,
                                                bench_threads(), workspace_.data());
    }

private:
    /// q, k, v, log_decay, beta, lambda; keys about unit length.
    static std::array<Rows, 6> rows_of(const MixerShape& s, std::int64_t tokens) {
        const bool diagonal = s.algebra == TransitionAlgebra::kDiagonal;
        const bool matrix = s.algebra == TransitionAlgebra::kMatrix;
        const float unit = 1.7F / std::sqrt(static_cast<float>(s.key_dim));
        return {Rows(tokens, s.key_heads * s.key_dim, -unit, unit),
                Rows(tokens, s.key_heads * s.key_dim, -unit, unit),
                Rows(tokens, s.heads * s.value_dim, -1.0F, 1.0F),
                Rows(tokens, s.heads * (diagonal ? s.key_dim : 1), -0.1F, 0.0F),
                Rows(matrix ? tokens : 0, s.heads, 0.0F, 1.0F),
                Rows(s.log_linear() ? tokens : 0, s.heads * s.levels, 0.0F, 1.0F)};
    }

    [[nodiscard]] fenwick::MixerInputs inputs() const {
        const auto& x = inputs_;
        return {x[0].view, x[1].view, x[2].view, x[3].view, x[4].view, x[5].view};
    }

    MixerShape shape_;
    std::int64_t tokens_;
    std::int64_t blocks_;
    std::array<Rows, 6> inputs_;
    std::array<Rows, 6> gradients_;
    Rows out_;  // also what the outputs' gradient is taken to be
    Rows summaries_;
    Rows d_summaries_;
    Buffer<float> workspace_;
};

/// Arguments: algebra, heads, key heads, d_k, d_v, levels, tokens.
template <bool kBackward>
void mixer(benchmark::State& state) {
    const MixerShape shape{static_cast<TransitionAlgebra>(state.range(0)),
                           state.range(1),
                           state.range(2),
                           state.range(3),
                           state.range(4),
                           state.range(5)};
    const std::int64_t tokens = state.range(6);
    Mixer mixer(shape, tokens);
    while (state.KeepRunning()) {
        mixer.forward();
        if (kBackward) mixer.backward();
        benchmark::ClobberMemory();
    }
    state.counters["tokens/s"] =
        benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
    b->ArgNames({"algebra", "heads", "key_heads", "d_k", "d_v", "levels", "tokens"});
    for (const std::int64_t levels : {0, 15}) {
        b->Args({0, 8, 1, 128, 64, levels, 16384});   // Mamba-2
        b->Args({1, 4, 4, 128, 128, levels, 16384});  // GLA
        b->Args({2, 4, 2, 128, 128, levels, 16384});  // Gated DeltaNet
    }
    b->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

BENCHMARK_TEMPLATE(mixer, false)->Name("mixer_forward")->Apply(shapes);
BENCHMARK_TEMPLATE(mixer, true)->Name("mixer_forward_backward")->Apply(shapes);

BENCHMARK_MAIN();
