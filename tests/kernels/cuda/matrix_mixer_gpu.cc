// The matrix algebra on the GPU: correctness against the double reference, bits, and timings. Own main: it needs a GPU.
//   matrix_mixer_gpu            checks, then timings
//   matrix_mixer_gpu small      checks of small sizes only (for compute-sanitizer)
//   matrix_mixer_gpu bf16       as without an argument, without the slow checking path
//   matrix_mixer_gpu time       timings only
//   matrix_mixer_gpu profile    the timed calls once each (for a profiler)
//
// Bounds. The reference sees the operands after rounding to bf16. What remains is the kernels' own: each output is a
// sum of products whose other factors (T, P, X, U', lambda * P) are rounded to bf16, relative error 2^-9 each, and the
// output itself is rounded. Six roundings stand between an input and an output within a chunk; a state is rounded once
// more in every chunk that it is carried through, but only what the chunk removes from it (K^^T W X) carries that
// error, and what is removed in all is at most the state. Summing magnitudes, not squares: 6 + 1 + 1 = 8 units of 2^-9
// times the bound of |o| of mixer_inputs.h. fp32: sums of 4,096 steps, each a dot product of d_k, in any order:
// sqrt(steps * d_k) * 2^-24 for random signs; 256 units.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda/check.h"
#include "core/fenwick.h"
#include "kernels/cuda/matrix_plan.h"
#include "kernels/cuda/mixer_algebras.h"
#include "kernels/summary.h"
#include "tests/kernels/mixer_inputs.h"

namespace fenwick {
namespace {

using cuda::Operand;
using testing::MixerCase;

constexpr double kBf16Units = 8.0;
constexpr double kFp32Units = 256.0;
int failures = 0;

void expect(bool ok, const std::string& what) {
    if (ok) return;
    ++failures;
    std::printf("FAILED: %s\n", what.c_str());
}

template <class T>
class Device {
public:
    explicit Device(std::int64_t count) : count_(count) {
        FENWICK_CUDA_CHECK(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T)));
    }
    explicit Device(const std::vector<T>& from) : Device(static_cast<std::int64_t>(from.size())) {
        if (!from.empty())
            FENWICK_CUDA_CHECK(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    ~Device() { cudaFree(data_); }
    T* data() { return data_; }
    void poison() { FENWICK_CUDA_CHECK(cudaMemset(data_, 0xFF, static_cast<std::size_t>(count_) * sizeof(T))); }
    std::vector<T> host() {
        std::vector<T> out(static_cast<std::size_t>(count_));
        FENWICK_CUDA_CHECK(cudaMemcpy(out.data(), data_, out.size() * sizeof(T), cudaMemcpyDeviceToHost));
        return out;
    }

private:
    T* data_ = nullptr;
    std::int64_t count_;
};

std::vector<__nv_bfloat16> to_bf16(const std::vector<float>& x) {
    std::vector<__nv_bfloat16> out(x.size());
    std::transform(x.begin(), x.end(), out.begin(), [](float f) { return __float2bfloat16_rn(f); });
    return out;
}

/// A case's rows on the device, as both operand types.
struct Rows {
    explicit Rows(const MixerCase& c)
        : shape(c.shape),
          tokens(c.tokens),
          q(to_bf16(c.q)),
          k(to_bf16(c.k)),
          v(to_bf16(c.v)),
          q32(c.q),
          k32(c.k),
          v32(c.v),
          log_decay(c.log_decay),
          beta(c.beta),
          lambda(c.lambda) {}

    cuda::MixerInputs rows(Operand operand, std::int64_t first, std::int64_t count) {
        const std::int64_t keys = shape.key_heads * shape.key_dim;
        const std::int64_t values = shape.heads * shape.value_dim;
        const std::int64_t lambdas = shape.heads * shape.levels;
        const bool bf16 = operand == Operand::kBf16;
        cuda::MixerInputs in;
        in.q = bf16 ? static_cast<const void*>(q.data() + first * keys) : q32.data() + first * keys;
        in.k = bf16 ? static_cast<const void*>(k.data() + first * keys) : k32.data() + first * keys;
        in.v = bf16 ? static_cast<const void*>(v.data() + first * values) : v32.data() + first * values;
        in.log_decay = log_decay.data() + first * shape.heads;
        in.beta = beta.data() + first * shape.heads;
        in.lambda = shape.log_linear() ? lambda.data() + first * lambdas : nullptr;
        in.q_stride = in.k_stride = keys;
        in.v_stride = values;
        in.decay_stride = in.beta_stride = shape.heads;
        in.lambda_stride = lambdas;
        in.rows = count;
        return in;
    }

    MixerShape shape;
    std::int64_t tokens;
    Device<__nv_bfloat16> q, k, v;
    Device<float> q32, k32, v32, log_decay, beta, lambda;
};

std::vector<float> widen(const std::vector<unsigned char>& raw, Operand operand) {
    std::vector<float> out(raw.size() / (operand == Operand::kBf16 ? 2 : 4));
    if (operand == Operand::kFp32) {
        std::memcpy(out.data(), raw.data(), raw.size());
        return out;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        __nv_bfloat16 x;
        std::memcpy(&x, raw.data() + 2 * i, 2);
        out[i] = __bfloat162float(x);
    }
    return out;
}

/// Outputs of rows [0, count) as two shards, cut at block `cut` (0: one shard), poisoned beforehand.
std::vector<unsigned char> run(Rows& r, Operand operand, std::int64_t count, std::int64_t cut, bool after = false) {
    const MixerShape& shape = r.shape;
    const std::int64_t one = summary_floats(shape);
    const std::int64_t whole = count / kBlockTokens;
    const std::int64_t row_bytes = shape.heads * shape.value_dim * (operand == Operand::kBf16 ? 2 : 4);
    Device<float> blocks(whole * one);
    Device<unsigned char> out(count * row_bytes);
    const std::size_t bytes = std::max({cuda::matrix_workspace_bytes(shape, operand, count, 0),
                                        cuda::matrix_workspace_bytes(shape, operand, count - cut * kBlockTokens, cut)});
    Device<unsigned char> workspace(static_cast<std::int64_t>(bytes));
    blocks.poison();
    out.poison();
    workspace.poison();
    std::vector<std::unique_ptr<Device<float>>> nodes;
    for (const auto& [first, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, std::int64_t{-1}}}) {
        const std::int64_t first_row = first * kBlockTokens;
        const std::int64_t rows = (end < 0 ? count : end * kBlockTokens) - first_row;
        if (rows == 0) continue;
        cuda::MixerCall call{shape,  operand, r.rows(operand, first_row, rows), first, {}, false, workspace.data(),
                             nullptr};
        std::vector<EnteringNode> entering;
        if (first > 0) {  // nodes formed as a rank before would have formed them
            cuda::matrix::Nodes tree;
            tree.last_block = first;
            tree.layer = one;
            tree.blocks = blocks.data();
            for (int bit = 1; first >> bit > 0; ++bit) {
                nodes.push_back(std::make_unique<Device<float>>((first >> bit) * one));
                tree.formed[bit] = nodes.back()->data();
                cuda::matrix::launch_combine(shape, tree, bit, nullptr);
            }
            std::int64_t done = 0;
            for (const int bit : set_bits(first)) {
                const float* base = bit == 0 ? blocks.data() : tree.formed[bit];
                entering.push_back({bit, base + (done >> bit) * one});
                done += std::int64_t{1} << bit;
            }
            call.entering = entering;
        }
        const std::int64_t here = rows / kBlockTokens;
        cuda::matrix_block_summaries(call, here, blocks.data() + first * one);
        call.after_summaries = after && here > 0;
        cuda::matrix_outputs(call, blocks.data() + first * one, out.data() + first_row * row_bytes);
        FENWICK_CUDA_CHECK(cudaDeviceSynchronize());
    }
    return out.host();
}

// mixer_inputs.h's `magnitude`, by the recurrent reference: the dense one takes too long at these lengths.
std::vector<double> bound_of(const MixerCase& c) {
    MixerShape shape = c.shape;
    reference::MixerInputs in = c.widened();
    const auto norms = [&](const std::vector<double>& x) {
        std::vector<double> out(static_cast<std::size_t>(c.tokens * shape.heads));
        for (std::int64_t t = 0; t < c.tokens; ++t) {
            for (std::int64_t h = 0; h < shape.heads; ++h) {
                const std::int64_t key_head = h / (shape.heads / shape.key_heads);
                const double* row = &x[static_cast<std::size_t>((t * shape.key_heads + key_head) * shape.key_dim)];
                double sum = 0.0;
                for (std::int64_t i = 0; i < shape.key_dim; ++i) sum += row[i] * row[i];
                out[static_cast<std::size_t>(t * shape.heads + h)] = std::sqrt(sum);
            }
        }
        return out;
    };
    in.q = norms(in.q);
    in.k = norms(in.k);
    for (std::size_t i = 0; i < in.k.size(); ++i) in.k[i] *= in.beta[i];
    for (auto* x : {&in.v, &in.lambda}) {
        for (double& value : *x) value = std::fabs(value);
    }
    in.beta.clear();
    shape.algebra = TransitionAlgebra::kScalar;
    shape.key_heads = shape.heads;
    shape.key_dim = 1;
    return reference::mixer_recurrent(shape, in, static_cast<int>(shape.heads));
}

struct Test {
    std::string name;
    MixerCase input;
    std::vector<std::int64_t> lengths;
    std::vector<std::int64_t> cuts;  // of the longest
    std::vector<double> want, bound;
};

Test make_test(const std::string& name, const MixerShape& shape, std::vector<std::int64_t> lengths,
               std::vector<std::int64_t> cuts, std::uint64_t seed) {
    Test t{name,
           testing::random_case(shape, *std::max_element(lengths.begin(), lengths.end()), seed),
           std::move(lengths),
           std::move(cuts),
           {},
           {}};
    for (auto* x : {&t.input.q, &t.input.k, &t.input.v}) {
        for (float& f : *x) f = __bfloat162float(__float2bfloat16_rn(f));
    }
    return t;
}

double relative_norm(const std::vector<float>& got, const std::vector<double>& want) {
    double error = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return std::sqrt(error / (norm + 1e-300));
}

void check(Test& t, bool with_fp32) {
    Rows rows(t.input);
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        const bool bf16 = operand == Operand::kBf16;
        if (!bf16 && !with_fp32) continue;
        const double scale = bf16 ? 0x1p-15 : 1.0;  // worst_error counts in units of 2^-24
        const double allowed = bf16 ? kBf16Units : kFp32Units;
        double worst = 0.0;
        double norm = 0.0;
        const std::vector<unsigned char> full = run(rows, operand, t.input.tokens, 0);
        for (const std::int64_t length : t.lengths) {
            if (!bf16 && length != t.lengths.front() && length != t.input.tokens)
                continue;  // the checking path is slow
            const std::vector<unsigned char> raw = run(rows, operand, length, 0);
            expect(std::memcmp(raw.data(), full.data(), raw.size()) == 0,
                   t.name + ": rows of T " + std::to_string(length) + " have other bits than in the longest document");
            const std::vector<float> got = widen(raw, operand);
            worst = std::max(worst, testing::worst_error(got, t.want, t.bound) * scale);
            norm = std::max(norm, relative_norm(got, t.want));
        }
        if (bf16) {
            expect(run(rows, operand, t.input.tokens, 0, true) == full,
                   t.name + ": other bits with T left by the summaries");
        }
        for (const std::int64_t cut : t.cuts) {
            if (!bf16 && cut != t.cuts.front()) continue;
            expect(run(rows, operand, t.input.tokens, cut) == full,
                   t.name + ": other bits when cut at block " + std::to_string(cut));
        }
        std::printf("%-34s %s  worst %8.3f units (allowed %g)  relative norm %.2e\n", t.name.c_str(),
                    bf16 ? "bf16" : "fp32", worst, allowed, norm);
        expect(worst <= allowed, t.name + ": error above the bound");
        std::fflush(stdout);
    }
}

std::vector<Test> all_tests(bool small) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<Test> tests;
    for (const std::int64_t levels : {0, 15}) {
        const std::string kind = levels == 0 ? "linear" : "log-linear";
        if (small) {
            tests.push_back(
                make_test(kind + " 128x128", {TransitionAlgebra::kMatrix, 1, 1, 128, 128, levels}, {4160}, {1}, 5));
            tests.push_back(make_test(kind + " 64x64, few tokens", {TransitionAlgebra::kMatrix, 1, 1, 64, 64, levels},
                                      {130}, {}, 6));
            continue;
        }
        tests.push_back(make_test(kind + " 2 heads 1 key head 128x128",
                                  {TransitionAlgebra::kMatrix, 2, 1, 128, 128, levels},
                                  {1, 63, 64, 65, 4096, 4097, 8192, 20000}, {1, 3}, 1));
        tests.push_back(make_test(kind + " 64x64", {TransitionAlgebra::kMatrix, 2, 2, 64, 64, levels},
                                  {1, 65, 4097, 16500}, {2}, 2));
        tests.push_back(make_test(kind + " 128x40, 3 levels",
                                  {TransitionAlgebra::kMatrix, 1, 1, 128, 40, levels == 0 ? 0 : 3}, {77, 4200}, {1},
                                  3));
        tests.push_back(
            make_test(kind + " 64x256", {TransitionAlgebra::kMatrix, 1, 1, 64, 256, levels}, {4200}, {}, 4));
        const MixerShape one{TransitionAlgebra::kMatrix, 1, 1, 128, 64, levels};
        for (const float decay : {0.0F, -20.0F, -kInfinity}) {
            tests.push_back(make_test(kind + " log decay " + std::to_string(decay) + ", beta 1", one, {9000}, {2}, 7));
            auto& c = tests.back().input;
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            std::fill(c.beta.begin(), c.beta.end(), 1.0F);
        }
        tests.push_back(make_test(kind + " a few forgetful tokens", one, {4300}, {}, 8));
        auto& g = tests.back().input.log_decay;
        for (std::size_t i = 0; i < g.size(); i += 37) g[i] = i % 2 == 0 ? -kInfinity : -5e5F;
    }
    if (!small) {  // more entering states than one pass reads: blocks from 63 on have six
        tests.push_back(make_test("log-linear, six entering states", {TransitionAlgebra::kMatrix, 1, 1, 64, 16, 20},
                                  {64 * kBlockTokens}, {31, 63}, 9));
    }
    return tests;
}

int repetitions = 14;

template <class Body>
double median_ms(const Body& body) {
    cudaEvent_t begin;
    cudaEvent_t end;
    FENWICK_CUDA_CHECK(cudaEventCreate(&begin));
    FENWICK_CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < repetitions; ++i) {
        FENWICK_CUDA_CHECK(cudaEventRecord(begin));
        body();
        FENWICK_CUDA_CHECK(cudaEventRecord(end));
        FENWICK_CUDA_CHECK(cudaEventSynchronize(end));
        float ms = 0.0F;
        FENWICK_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= repetitions / 4) times.push_back(ms);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

void time_shape(const char* name, const MixerShape& shape, std::int64_t tokens) {
    // Random rows of one block, repeated: the values' spread matters, not their order.
    MixerCase c = testing::random_case(shape, std::min(tokens, kBlockTokens), 11);
    c.tokens = tokens;
    for (auto* x : {&c.q, &c.k, &c.v, &c.log_decay, &c.beta, &c.lambda}) {
        const std::size_t have = x->size();
        x->resize(have * static_cast<std::size_t>(tokens / std::min(tokens, kBlockTokens)));
        for (std::size_t i = have; i < x->size(); ++i) (*x)[i] = (*x)[i - have];
    }
    Rows rows(c);
    const std::int64_t blocks = tokens / kBlockTokens;
    Device<float> summaries(blocks * summary_floats(shape));
    Device<__nv_bfloat16> out(tokens * shape.heads * shape.value_dim);
    const std::size_t bytes = cuda::matrix_workspace_bytes(shape, Operand::kBf16, tokens, 0);
    Device<unsigned char> workspace(static_cast<std::int64_t>(bytes));
    cuda::MixerCall call{shape,  Operand::kBf16, rows.rows(Operand::kBf16, 0, tokens), 0, {}, false, workspace.data(),
                         nullptr};
    const double first = median_ms([&] { cuda::matrix_block_summaries(call, blocks, summaries.data()); });
    const double second = median_ms([&] { cuda::matrix_outputs(call, summaries.data(), out.data()); });
    const double all = median_ms([&] {
        cuda::matrix_block_summaries(call, blocks, summaries.data());
        cuda::matrix_outputs(call, summaries.data(), out.data());
    });
    call.after_summaries = true;
    const double after = median_ms([&] {
        cuda::matrix_block_summaries(call, blocks - 1, summaries.data());  // nobody needs what follows the last
        cuda::matrix_outputs(call, summaries.data(), out.data());
    });
    std::printf(
        "%-38s T %6lld  summaries %6.3f  outputs %6.3f  both %6.3f  as in a pass %6.3f ms  workspace %5.0f MiB\n", name,
        static_cast<long long>(tokens), first, second, all, after, static_cast<double>(bytes) / (1 << 20));
    std::fflush(stdout);
}

int run_all(const std::string& mode) {
    const bool small = mode == "small";
    std::vector<Test> tests;
    if (small || mode.empty() || mode == "bf16") tests = all_tests(small);
    if (mode == "profile") repetitions = 1;
    std::vector<std::thread> threads;
    for (Test& t : tests) {
        threads.emplace_back([&t] {
            t.want =
                reference::mixer_recurrent(t.input.shape, t.input.widened(), static_cast<int>(t.input.shape.heads));
        });
        threads.emplace_back([&t] { t.bound = bound_of(t.input); });
    }
    for (std::thread& thread : threads) thread.join();
    for (Test& t : tests) check(t, mode.empty() || (small && t.input.tokens < kBlockTokens));
    if (!small) {
        const auto matrix = TransitionAlgebra::kMatrix;
        time_shape("linear, 12 heads 128x128", {matrix, 12, 12, 128, 128, 0}, 131072);
        time_shape("linear, 16 key heads, 64 heads 128x128", {matrix, 64, 16, 128, 128, 0}, 32768);
        time_shape("linear, 16 heads 128x128", {matrix, 16, 16, 128, 128, 0}, 32768);
        time_shape("log-linear, 12 heads 128x128", {matrix, 12, 12, 128, 128, 15}, 131072);
    }
    std::printf("%s\n", failures == 0 ? "all checks passed" : "CHECKS FAILED");
    return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fenwick

int main(int argc, char** argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::fprintf(stderr, "no GPU: skipped\n");
        return 77;
    }
    try {
        return fenwick::run_all(argc > 1 ? argv[1] : "");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 70;
    }
}
