// The parts of a layer beside the mixer on the GPU: medians, and the share of the machine's floor (bytes moved once at
// copy speed, or flops at the rate of a large product), both measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/cuda/device_buffer.h"
#include "core/cuda/device_info.h"
#include "core/cuda/stream.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/read_out.h"
#include "kernels/cuda/summary.h"

using namespace fenwick;
using cuda::Operand;

namespace {

constexpr std::int64_t kRows = 131072;
constexpr std::int64_t kHidden = 1536;
constexpr std::int64_t kInner = 3072;
constexpr std::int64_t kConvChannels = 3328;
constexpr std::int64_t kMain = 6400;  // z, x, B, C
constexpr std::int64_t kGates = 768;  // 48 heads: dt and 15 levels
constexpr std::int64_t kHeads = 48;
constexpr std::int64_t kWide = 4096;
constexpr std::int64_t kVocab = 32000;

double median_ms(const cuda::Stream& stream, const std::function<void()>& work) {
    constexpr int kRuns = 9;
    work();
    std::vector<float> times;
    for (int i = 0; i < kRuns; ++i) {
        const cuda::Event start(true);
        const cuda::Event end(true);
        start.record(stream.get());
        work();
        end.record(stream.get());
        end.synchronize();
        times.push_back(end.milliseconds_since(start));
    }
    std::sort(times.begin(), times.end());
    return times[kRuns / 2];
}

/// Random numbers of the bf16 type: any bits with a small exponent.
class Memory {
public:
    Memory(std::int64_t bytes, const cuda::Stream& stream) : memory_(bytes, stream.get()) {
        std::vector<float> values(1 << 20);
        std::uint32_t state = 12345;
        for (float& x : values) {
            state = state * 1664525U + 1013904223U;
            x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
        }
        const auto chunk = static_cast<std::int64_t>(values.size() * sizeof(float));
        for (std::int64_t at = 0; at < bytes; at += chunk) {
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(memory_.data() + at, values.data(),
                                               static_cast<std::size_t>(std::min(chunk, bytes - at)),
                                               cudaMemcpyHostToDevice, stream.get()));
        }
        stream.synchronize();
    }
    [[nodiscard]] void* data() { return memory_.data(); }
    [[nodiscard]] float* floats() { return reinterpret_cast<float*>(memory_.data()); }

private:
    cuda::DeviceBuffer<unsigned char> memory_;
};

void print(const char* name, double ms, double bytes, double flops, double copy, double rate) {
    const double floor = 1e3 * std::max(bytes / copy, flops / rate);
    fmt::print("{:<34} {:8.3f} ms  {:7.2f} TB/s {:7.1f} TFLOP/s  {:5.1f} % of the floor\n", name, ms, bytes / ms / 1e9,
               flops / ms / 1e9, 100 * floor / ms);
}

int run() {
    const cuda::DeviceReport report = cuda::probe_devices(false);
    const cuda::DeviceInfo* device = report.first_usable();
    if (device == nullptr) {
        fmt::print("skipped: {}\n", report.problem.empty() ? "no usable GPU" : report.problem);
        return 77;
    }
    const cuda::Stream stream;
    cuda::Matmul matmul;
    Memory a(kRows * kMain * 2, stream);  // operands are values; fp32 patterns read as bf16 are finite and small too
    Memory b(kRows * kMain * 2, stream);
    Memory weights(std::int64_t{kVocab} * kHidden * 2, stream);
    Memory residual(kRows * kHidden * 4, stream);
    Memory small(kRows * kGates * 4, stream);
    Memory more(kRows * kInner * 2, stream);
    cuda::DeviceBuffer<unsigned char> space(cuda::Matmul::kWorkspaceBytes, stream.get());
    for (Memory* each : {&a, &b, &weights, &more}) {
        const std::int64_t count = each == &weights ? kVocab * kHidden : kRows * (each == &more ? kInner : kMain);
        cuda::to_operand(Operand::kBf16, residual.floats(), each->data(), std::min(count, kRows * kHidden),
                         stream.get());
    }
    stream.synchronize();

    const auto product = [&](std::int64_t n, std::int64_t k, Operand output, bool accumulate, void* y) {
        cuda::MatmulCall call;
        call.output = output;
        call.x = a.data();
        call.weight = weights.data();
        call.y = y;
        call.rows = kRows;
        call.n = n;
        call.k = call.x_stride = k;
        call.y_stride = n;
        call.accumulate = accumulate;
        matmul.multiply(call, space.data(), stream.get());
    };
    const double half = static_cast<double>(kRows) * kMain * 2;
    const double copy = 2 * half / 1e-3 / median_ms(stream, [&] {
                            FENWICK_CUDA_CHECK(cudaMemcpyAsync(b.data(), a.data(), kRows * kMain * 2,
                                                               cudaMemcpyDeviceToDevice, stream.get()));
                        });
    const double rows = kRows;
    const double rate = 2.0 * rows * 6144 * 4096 / 1e-3 /
                        median_ms(stream, [&] { product(6144, 4096, Operand::kBf16, false, b.data()); });
    fmt::print("{}: copy {:.2f} TB/s, product of n 6144, k 4096 {:.0f} TFLOP/s; {} rows\n", device->name, copy / 1e12,
               rate / 1e12, kRows);

    print("rms_norm 1536",
          median_ms(stream,
                    [&] {
                        cuda::rms_norm(Operand::kBf16, residual.floats(), small.floats(), 1e-5F, b.data(), kRows,
                                       kHidden, stream.get());
                    }),
          rows * kHidden * 6, 0, copy, rate);
    cuda::ConvolutionCall conv;
    conv.convolution = {small.floats(), small.floats(), kConvChannels, 4, true};
    conv.x = a.data();
    conv.x_stride = kMain;
    conv.y = b.data();
    conv.rows = kRows;
    conv.v = more.data();
    conv.dt = small.floats();
    conv.dt_stride = kGates;
    conv.v_channels = kInner;
    conv.v_head_dim = 64;
    print("convolution, SiLU, v = x dt",
          median_ms(stream, [&] { cuda::causal_convolution(Operand::kBf16, conv, stream.get()); }),
          rows * (2 * kConvChannels + kInner) * 2 + rows * kHeads * 4, 0, copy, rate);
    cuda::ReadOut out;
    out.o = more.data();
    out.x = b.data();
    out.gate = a.data();
    out.skip = out.weight = small.floats();
    out.x_stride = kConvChannels;
    out.gate_stride = kMain;
    out.rows = kRows;
    out.channels = out.group_size = out.weight_period = kInner;
    out.skip_channels = 64;
    out.eps = 1e-5F;
    print("skip, gate, norm 3072", median_ms(stream, [&] { cuda::read_out(Operand::kBf16, out, stream.get()); }),
          rows * kInner * 8, 0, copy, rate);
    print("swiglu 4096 (16,384 rows)",
          median_ms(stream,
                    [&] {
                        cuda::swiglu(Operand::kBf16, b.data(), static_cast<char*>(b.data()) + kWide * 2, 2 * kWide,
                                     16384, kWide, stream.get());
                    }),
          16384.0 * kWide * 6, 0, copy, rate);
    print("mamba2_gates 48 heads",
          median_ms(stream,
                    [&] {
                        cuda::mamba2_gates({small.floats(), small.floats(), 0, 100}, small.floats(), kGates,
                                           more.floats(), kRows, kHeads, stream.get());
                    }),
          rows * kHeads * 12, 0, copy, rate);
    print("level_scales 48 x 15",
          median_ms(stream,
                    [&] {
                        cuda::level_scales(more.floats(), small.floats() + kHeads, kGates, kRows, kHeads * 15,
                                           stream.get());
                    }),
          rows * kHeads * 15 * 8, 0, copy, rate);

    struct Shape {
        const char* name;
        std::int64_t n, k;
        Operand output;
        bool accumulate;
    };
    for (const Shape& s : {Shape{"in_proj, z x B C: 6400 x 1536", kMain, kHidden, Operand::kBf16, false},
                           Shape{"in_proj, gates: 768 x 1536 fp32", kGates, kHidden, Operand::kFp32, false},
                           Shape{"out_proj: 1536 x 3072 +=", kHidden, kInner, Operand::kFp32, true},
                           Shape{"gate_up: 8192 x 1536", 2 * kWide, kHidden, Operand::kBf16, false},
                           Shape{"down: 1536 x 4096 +=", kHidden, kWide, Operand::kFp32, true}}) {
        const bool wide = s.n > kMain;
        const std::int64_t count = wide ? kRows / 2 : kRows;  // b holds this many rows
        const double ms = median_ms(stream, [&] {
            cuda::MatmulCall call;
            call.output = s.output;
            call.x = a.data();
            call.weight = weights.data();
            call.y = s.output == Operand::kBf16 ? b.data() : (s.accumulate ? residual.data() : small.data());
            call.rows = count;
            call.n = call.y_stride = s.n;
            call.k = call.x_stride = s.k;
            call.accumulate = s.accumulate;
            matmul.multiply(call, space.data(), stream.get());
        });
        const double bytes =
            static_cast<double>(count) * static_cast<double>(s.k * 2 + s.n * (s.output == Operand::kBf16 ? 2
                                                                              : s.accumulate             ? 8
                                                                                                         : 4));
        print(s.name, ms, bytes, 2.0 * static_cast<double>(count * s.n) * static_cast<double>(s.k), copy, rate);
    }
    Memory loss_space(static_cast<std::int64_t>(cuda::cross_entropy_workspace_bytes(kVocab)), stream);
    cuda::DeviceBuffer<std::int32_t> targets(kRows, stream.get());
    FENWICK_CUDA_CHECK(cudaMemsetAsync(targets.data(), 0, targets.bytes(), stream.get()));
    print("cross entropy 32000 (16,384 rows)",
          median_ms(stream,
                    [&] {
                        cuda::cross_entropy({Operand::kBf16, a.data(), weights.data(), targets.data(), more.floats(),
                                             16384, kHidden, kVocab},
                                            matmul, loss_space.data(), space.data(), stream.get());
                    }),
          0, 2.0 * 16384 * kHidden * kVocab, copy, rate);
    const MixerShape scalar{TransitionAlgebra::kScalar, 48, 1, 128, 64, 15};
    const MixerShape matrix{TransitionAlgebra::kMatrix, 12, 12, 128, 128, 15};
    for (const MixerShape& shape : {scalar, matrix}) {
        const double floats = static_cast<double>(summary_floats(shape));
        const bool chain = shape.algebra == TransitionAlgebra::kMatrix;
        print(chain ? "combine, matrix 12 x 128 x 128" : "combine, scalar 48 x 128 x 64",
              median_ms(
                  stream,
                  [&] { cuda::combine_summaries(shape, small.floats(), residual.floats(), b.floats(), stream.get()); }),
              12 * floats, 0, copy, rate);
    }
    return 0;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_gpu_layer: {}\n", error.what());
        return 70;
    }
}
