#include "kernels/cuda/convolution.h"
#include "kernels/cuda/operand.h"

namespace fenwick::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kStripRows = 32;  // rows that a thread walks, its window in registers
constexpr int kAhead = 4;
constexpr int kAnyWidth = 0;

template <class T, int kCount>
__device__ Values<kCount> row_values(const ConvolutionCall& call, std::int64_t row, std::int64_t c) {
    if (row >= 0) return load_values<kCount>(static_cast<const T*>(call.x) + row * call.x_stride + c);
    if (call.halo == nullptr) return Values<kCount>{};
    const std::int64_t halo_row = row + call.convolution.width - 1;
    return load_values<kCount>(static_cast<const T*>(call.halo) + halo_row * call.convolution.channels + c);
}

/// Where a thread writes its row's values, moved on from row to row.
template <class T, int kCount>
struct Target {
    T* y;
    T* v;             // null: these channels have none
    const float* dt;  // of the row
    int y_step, v_step, dt_step;
    unsigned head[kCount];
    bool one_head;  // for all of the thread's channels

    __device__ Target(const ConvolutionCall& call, std::int64_t row, std::int64_t c)
        : y(static_cast<T*>(call.y) + row * call.convolution.channels + c),
          v(c < call.v_channels ? static_cast<T*>(call.v) + row * call.v_channels + c : nullptr),
          dt(call.dt + row * call.dt_stride),
          y_step(static_cast<int>(call.convolution.channels)),
          v_step(static_cast<int>(call.v_channels)),
          dt_step(static_cast<int>(call.dt_stride)),
          one_head(call.v_head_dim % kCount == 0) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            head[i] = static_cast<unsigned>(c + i) / static_cast<unsigned>(call.v_head_dim);
        }
    }
    __device__ void write(bool with_silu, Values<kCount> sum) {
        if (with_silu) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum.at[i] = silu_for<T>(sum.at[i]);
        }
        store_values<kCount>(y, sum);
        y += y_step;
        if (v == nullptr) return;
        const float first = dt[head[0]];
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum.at[i] *= one_head ? first : dt[head[i]];
        store_values<kCount>(v, sum);
        v += v_step;
        dt += dt_step;
    }
};

/// Taps before this one reach back past the start of the row's document.
__device__ std::int64_t first_tap(const ConvolutionCall& call, std::int64_t row) {
    return call.convolution.width - 1 - call.positions[row];
}

/// kWidth taps, or convolution.width of them, read anew for each row, when it is kAnyWidth. `kPacked`: rows have
/// positions.
template <class T, int kCount, int kWidth, bool kPacked>
__global__ void __launch_bounds__(kThreads, kCount == 4 ? 7 : 1) convolution_kernel(ConvolutionCall call) {
    const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
    if (c >= call.convolution.channels) return;
    const std::int64_t first = blockIdx.x * kStripRows;
    const std::int64_t end = min(first + kStripRows, call.rows);
    const float* weight = call.convolution.weight + c * call.convolution.width;
    const bool with_silu = call.convolution.silu;
    Target<T, kCount> target(call, first, c);
    Values<kCount> bias{};
    if (call.convolution.bias != nullptr) bias = load_values<kCount>(call.convolution.bias + c);
    if constexpr (kWidth == kAnyWidth) {
        const auto width = static_cast<int>(call.convolution.width);
        for (std::int64_t row = first; row < end; ++row) {
            Values<kCount> sum = bias;
            int w = 0;
            if constexpr (kPacked) w = static_cast<int>(max(first_tap(call, row), std::int64_t{0}));
            for (; w < width; ++w) {
                const Values<kCount> x = row_values<T, kCount>(call, row - (width - 1) + w, c);
#pragma unroll
                for (int i = 0; i < kCount; ++i) sum.at[i] = fmaf(weight[i * width + w], x.at[i], sum.at[i]);
            }
            target.write(with_silu, sum);
        }
    } else {
        float taps[kWidth][kCount];
        Values<kCount> window[kWidth - 1 + kAhead];  // rows from kWidth - 1 before the row at work on
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) taps[w][i] = weight[i * kWidth + w];
        }
#pragma unroll
        for (int w = 0; w + 1 < kWidth; ++w) window[w] = row_values<T, kCount>(call, first - (kWidth - 1) + w, c);
        const T* from = static_cast<const T*>(call.x) + first * call.x_stride + c;
        for (auto left = static_cast<int>(end - first); left > 0; left -= kAhead) {
            // Several rows are under way before the first of them is needed.
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                if (a < left) window[kWidth - 1 + a] = load_values<kCount>(from + a * call.x_stride);
            }
#pragma unroll
            for (int a = 0; a < kAhead; ++a) {
                Values<kCount> sum = bias;
                std::int64_t from_tap = 0;
                if constexpr (kPacked) {
                    if (a < left) from_tap = first_tap(call, end - left + a);
                }
#pragma unroll
                for (int w = 0; w < kWidth; ++w) {
                    if (kPacked && w < from_tap) continue;
#pragma unroll
                    for (int i = 0; i < kCount; ++i) sum.at[i] = fmaf(taps[w][i], window[a + w].at[i], sum.at[i]);
                }
                if (a < left) target.write(with_silu, sum);
            }
#pragma unroll
            for (int w = 0; w + 1 < kWidth; ++w) window[w] = window[w + kAhead];
            from += kAhead * call.x_stride;
        }
    }
}

template <class T>
__global__ void next_halo_kernel(ConvolutionCall call, T* next) {
    const std::int64_t channels = call.convolution.channels;
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (c >= channels) return;
    const std::int64_t before = call.convolution.width - 1;
    for (std::int64_t i = 0; i < before; ++i) {
        const Values<1> value = row_values<T, 1>(call, call.rows - before + i, c);
        store_values<1>(next + i * channels + c, value);
    }
}

template <class T, int kCount, bool kPacked>
auto kernel_of_width(std::int64_t width) {
    switch (width) {
        case 1:
            return convolution_kernel<T, kCount, 1, kPacked>;
        case 2:
            return convolution_kernel<T, kCount, 2, kPacked>;
        case 3:
            return convolution_kernel<T, kCount, 3, kPacked>;
        case 4:
            return convolution_kernel<T, kCount, 4, kPacked>;
        default:
            return convolution_kernel<T, kCount, kAnyWidth, kPacked>;
    }
}

template <class T, int kCount>
auto kernel_for(const ConvolutionCall& call) {
    return call.positions == nullptr ? kernel_of_width<T, kCount, false>(call.convolution.width)
                                     : kernel_of_width<T, kCount, true>(call.convolution.width);
}

}  // namespace

void causal_convolution(Operand operand, const ConvolutionCall& call, cudaStream_t stream) {
    const Convolution& c = call.convolution;
    if (c.width < 1 || c.width > kMaxConvolutionWidth || call.v_channels > c.channels) {
        throw InternalError("causal_convolution: width " + std::to_string(c.width) + ", " + std::to_string(c.channels) +
                            " channels, v of " + std::to_string(call.v_channels) + " channels do not fit");
    }
    if (call.rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = c.channels % 4 == 0 && call.v_channels % 4 == 0 && fours(call.x, call.x_stride, sizeof(T)) &&
                          fours(call.halo, c.channels, sizeof(T)) && fours(call.y, c.channels, sizeof(T)) &&
                          fours(call.v, call.v_channels, sizeof(T)) && fours(c.bias, 0, sizeof(float));
        const std::int64_t group = kThreads * (wide ? 4 : 1);
        const dim3 blocks(static_cast<unsigned>((call.rows + kStripRows - 1) / kStripRows),
                          static_cast<unsigned>((c.channels + group - 1) / group));
        const auto kernel = wide ? kernel_for<T, 4>(call) : kernel_for<T, 1>(call);
        kernel<<<blocks, kThreads, 0, stream>>>(call);
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

void next_halo(Operand operand, const ConvolutionCall& call, void* next, cudaStream_t stream) {
    if (call.convolution.width <= 1) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const auto blocks = static_cast<unsigned>((call.convolution.channels + kThreads - 1) / kThreads);
        next_halo_kernel<T><<<blocks, kThreads, 0, stream>>>(call, static_cast<T*>(next));
        FENWICK_CUDA_CHECK(cudaGetLastError());
    });
}

}  // namespace fenwick::cuda
