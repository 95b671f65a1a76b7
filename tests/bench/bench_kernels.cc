// GFLOP/s and GB/s of the CPU kernels beside OpenBLAS's own sgemm, in one run. `threads` defaults to all processors;
// FENWICK_BENCH_THREADS sets it.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "kernels/activations.h"
#include "kernels/convolution.h"
#include "kernels/cross_entropy.h"
#include "kernels/gates.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/threads.h"

namespace {

using fenwick::Buffer;

// A block of tokens, and the channels of a model of about 0.8 B parameters (DESIGN section 8).
constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kChannels = 1536;

int bench_threads() {
    const char* chosen = std::getenv("FENWICK_BENCH_THREADS");
    if (chosen != nullptr && std::atoi(chosen) > 0) return std::atoi(chosen);
    const unsigned int processors = std::thread::hardware_concurrency();
    return processors == 0 ? 1 : static_cast<int>(processors);
}

/// Filled buffers, outputs too: no page fault is measured.
Buffer<float> values(std::int64_t count) {
    Buffer<float> buffer(count);
    std::uint32_t state = 1;
    for (float& value : buffer) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<float>(state >> 8U) * 0x1p-24F - 0.5F;
    }
    return buffer;
}

void report_flops(benchmark::State& state, double flops) {
    state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void report_bytes(benchmark::State& state, double floats) {
    state.counters["GB/s"] = benchmark::Counter(floats * 4e-9, benchmark::Counter::kIsIterationInvariantRate);
}

/// Independent single-threaded calls, one a thread: the way our kernels use BLAS.
void sgemm_independent(benchmark::State& state) {
    constexpr std::int64_t kSize = 1024;
    const int threads = bench_threads();
    fenwick::initialise_blas();
    const Buffer<float> a = values(threads * kSize * kSize);
    const Buffer<float> b = values(threads * kSize * kSize);
    Buffer<float> c = values(threads * kSize * kSize);
    while (state.KeepRunning()) {
        fenwick::parallel_tasks(threads, threads, [&](std::int64_t i, int) {
            const std::int64_t at = i * kSize * kSize;
            fenwick::gemm_nn(kSize, kSize, kSize, 1.0F, a.data() + at, kSize, b.data() + at, kSize, 0.0F, c.data() + at,
                             kSize);
        });
        benchmark::ClobberMemory();
    }
    report_flops(state, 2.0 * kSize * kSize * kSize * threads);
}

/// One call on all of OpenBLAS's own threads.
void sgemm_openblas_threads(benchmark::State& state) {
    constexpr std::int64_t kSize = 1024;
    fenwick::initialise_blas();
    const Buffer<float> a = values(kSize * kSize);
    const Buffer<float> b = values(kSize * kSize);
    Buffer<float> c = values(kSize * kSize);
    openblas_set_num_threads(bench_threads());
    while (state.KeepRunning()) {
        fenwick::gemm_nn(kSize, kSize, kSize, 1.0F, a.data(), kSize, b.data(), kSize, 0.0F, c.data(), kSize);
        benchmark::ClobberMemory();
    }
    openblas_set_num_threads(1);  // as initialise_blas() left it
    report_flops(state, 2.0 * kSize * kSize * kSize);
}

void matmul_rows(benchmark::State& state) {
    const std::int64_t rows = state.range(0);
    const std::int64_t k = state.range(1);
    const std::int64_t n = state.range(2);
    const Buffer<float> x = values(rows * k);
    const Buffer<float> weight = values(n * k);
    Buffer<float> y = values(rows * n);
    Buffer<float> workspace(fenwick::matmul_workspace_floats(k, n));
    while (state.KeepRunning()) {
        fenwick::matmul_rows(x.matrix(rows, k), weight.matrix(n, k), y.matrix(rows, n), nullptr, false, bench_threads(),
                             workspace.data());
        benchmark::ClobberMemory();
    }
    report_flops(state, 2.0 * static_cast<double>(rows * k * n));
}

void cross_entropy(benchmark::State& state) {
    const std::int64_t hidden = state.range(0);
    const std::int64_t vocab = state.range(1);
    const Buffer<float> h = values(kRows * hidden);
    const Buffer<float> lm_head = values(vocab * hidden);
    const std::vector<std::int32_t> targets(kRows, 7);
    Buffer<float> nll = values(kRows);
    Buffer<float> workspace(fenwick::cross_entropy_workspace_floats(hidden, bench_threads()));
    while (state.KeepRunning()) {
        fenwick::cross_entropy(h.matrix(kRows, hidden), lm_head.matrix(vocab, hidden), targets.data(), nll.data(),
                               bench_threads(), workspace.data());
        benchmark::ClobberMemory();
    }
    report_flops(state, 2.0 * static_cast<double>(kRows * hidden * vocab));
}

void gated_rms_norm(benchmark::State& state) {
    const Buffer<float> x = values(kRows * kChannels);
    const Buffer<float> gate = values(kRows * kChannels);
    const Buffer<float> weight = values(kChannels);
    Buffer<float> y = values(kRows * kChannels);
    const fenwick::GroupNorm norm{state.range(0), weight.data(), kChannels, 1e-5F};
    while (state.KeepRunning()) {
        fenwick::gated_rms_norm(x.matrix(kRows, kChannels), gate.matrix(kRows, kChannels), norm, false,
                                y.matrix(kRows, kChannels), bench_threads());
        benchmark::ClobberMemory();
    }
    report_bytes(state, 3.0 * kRows * kChannels);
}

void l2_norm(benchmark::State& state) {
    Buffer<float> x = values(kRows * kChannels);
    Buffer<float> y = values(kRows * kChannels);
    while (state.KeepRunning()) {
        fenwick::l2_norm(x.matrix(kRows, kChannels), state.range(0), 1e-6F, 1.0F, y.matrix(kRows, kChannels),
                         bench_threads());
        benchmark::ClobberMemory();
    }
    report_bytes(state, 2.0 * kRows * kChannels);
}

void causal_convolution(benchmark::State& state) {
    const Buffer<float> x = values(kRows * kChannels);
    const Buffer<float> weight = values(kChannels * 4);
    Buffer<float> y = values(kRows * kChannels);
    while (state.KeepRunning()) {
        fenwick::causal_convolution({weight.data(), nullptr, kChannels, 4, true}, {}, x.matrix(kRows, kChannels),
                                    y.matrix(kRows, kChannels), bench_threads());
        benchmark::ClobberMemory();
    }
    report_bytes(state, 2.0 * kRows * kChannels);
}

void swiglu(benchmark::State& state) {
    const Buffer<float> up = values(kRows * kChannels);
    Buffer<float> gate = values(kRows * kChannels);
    Buffer<float> out = values(kRows * kChannels);
    while (state.KeepRunning()) {
        fenwick::swiglu(gate.matrix(kRows, kChannels), up.matrix(kRows, kChannels), out.matrix(kRows, kChannels),
                        bench_threads());
        benchmark::ClobberMemory();
    }
    report_bytes(state, 3.0 * kRows * kChannels);
}

void level_scales(benchmark::State& state) {
    constexpr std::int64_t kHeadLevels = std::int64_t{48} * 15;
    const Buffer<float> dl = values(kRows * kHeadLevels);
    const Buffer<float> scale = values(kHeadLevels);
    Buffer<float> lambda = values(kRows * kHeadLevels);
    while (state.KeepRunning()) {
        fenwick::level_scales(scale.data(), dl.matrix(kRows, kHeadLevels), lambda.matrix(kRows, kHeadLevels),
                              bench_threads());
        benchmark::ClobberMemory();
    }
    report_bytes(state, 2.0 * kRows * kHeadLevels);
}

}  // namespace

BENCHMARK(sgemm_independent)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(sgemm_openblas_threads)->UseRealTime()->Unit(benchmark::kMillisecond);
// rows, k, n: projections of a block, an embedding-sized model, and a short tail that is padded to a tile.
BENCHMARK(matmul_rows)
    ->Args({kRows, kChannels, 7168})
    ->Args({kRows, 256, 7168})
    ->Args({kRows, 256, 256})
    ->Args({kRows, 256, 1024})
    ->Args({kRows + 5, kChannels, kChannels})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(cross_entropy)
    ->Args({kChannels, 32000})
    ->Args({kChannels, 256})
    ->Args({256, 256})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(gated_rms_norm)->Arg(64)->Arg(kChannels)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(l2_norm)->Arg(64)->Arg(128)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(causal_convolution)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(swiglu)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(level_scales)->UseRealTime()->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
