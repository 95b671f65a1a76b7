// One pass over the rows: a thread walks down its channels, the values and the gradients of the last `width` rows in
// registers, so that each row is read once. The sums before SiLU are formed again.
#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/convolution.h"
#include "kernels/cuda/backward/slopes.cuh"

namespace fenwick::cuda {
namespace {

constexpr int kGroup = 4;  // rows that are fetched together

/// kCount channels of the rows that a thread walks over.
template <class T, int kWidth, int kCount>
struct ChannelWalk {
    const ConvolutionBackward& call;
    std::int64_t c;  // the first channel
    float weight[kWidth][kCount];
    float bias[kCount];
    // Of the last kWidth rows, the newest last.
    Values<kCount> x[kWidth] = {};
    Values<kCount> d[kWidth] = {};  // gradients of the sums before SiLU
    int reach[kWidth] = {};         // how many rows back they look
    float2 sums[kCount][kWidth + 1];

    __device__ ChannelWalk(const ConvolutionBackward& from, std::int64_t channel) : call(from), c(channel) {
        const Convolution& f = call.convolution;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            bias[i] = f.bias == nullptr ? 0.0F : f.bias[c + i];
#pragma unroll
            for (int w = 0; w < kWidth; ++w) weight[w][i] = f.weight[(c + i) * kWidth + w];
#pragma unroll
            for (float2& sum : sums[i]) sum = make_float2(0.0F, 0.0F);
        }
    }

    /// The values of a row, negative ones in the halo.
    __device__ Values<kCount> value_at(std::int64_t row) const {
        if (row >= call.rows) return {};
        if (row >= 0) return load_values<kCount>(static_cast<const T*>(call.x) + row * call.x_stride + c);
        if (call.halo == nullptr || row < 1 - kWidth) return {};
        return load_values<kCount>(static_cast<const T*>(call.halo) + (row + kWidth - 1) * call.convolution.channels +
                                   c);
    }

    __device__ void enter(const Values<kCount>& next) {
#pragma unroll
        for (int w = 0; w + 1 < kWidth; ++w) x[w] = x[w + 1];
        x[kWidth - 1] = next;
    }

    /// Takes the next row, whose value has entered: its gradient, and (`counted`) its terms of taps and bias.
    __device__ void take(const Values<kCount>& dy, int back, bool there, bool counted,
                         float (&terms)[kCount][kWidth + 1]) {
#pragma unroll
        for (int w = 0; w + 1 < kWidth; ++w) {
            d[w] = d[w + 1];
            reach[w] = reach[w + 1];
        }
        reach[kWidth - 1] = back;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float sum = bias[i];
#pragma unroll
            for (int w = 0; w < kWidth; ++w) {
                if (kWidth - 1 - w <= back) sum = fmaf(weight[w][i], x[w].at[i], sum);
            }
            const float slope = call.convolution.silu ? silu_slope_for<T>(sum) : 1.0F;
            const float own = there ? dy.at[i] * slope : 0.0F;
            d[kWidth - 1].at[i] = own;
            if (!counted) continue;
#pragma unroll
            for (int w = 0; w < kWidth; ++w) {
                if (kWidth - 1 - w <= back) terms[i][w] = fmaf(own, x[w].at[i], terms[i][w]);
            }
            terms[i][kWidth] += own;
        }
    }

    /// The gradient of the row kWidth - 1 rows before the newest: all that took it are there.
    __device__ Values<kCount> input_gradient() const {
        Values<kCount> sum{};
#pragma unroll
        for (int ahead = 0; ahead < kWidth; ++ahead) {
            if (reach[ahead] < ahead) continue;
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                sum.at[i] = fmaf(weight[kWidth - 1 - ahead][i], d[ahead].at[i], sum.at[i]);
            }
        }
        return sum;
    }

    /// Rows [first, last) and, where they are the first ones, the halo.
    __device__ void run(std::int64_t first, std::int64_t last) {
#pragma unroll
        for (int back = kWidth - 1; back > 0; --back) enter(value_at(first - back));
        for (std::int64_t group = first; group < last + kWidth - 1; group += kGroup) {
            Values<kCount> values[kGroup];
            Values<kCount> dys[kGroup];
            int backs[kGroup];
#pragma unroll
            for (int j = 0; j < kGroup; ++j) {
                const std::int64_t row = group + j;
                const bool there = row < min(last + kWidth - 1, call.rows);
                values[j] = there ? value_at(row) : Values<kCount>{};
                dys[j] = there ? load_values<kCount>(call.dy + row * call.dy_stride + c) : Values<kCount>{};
                backs[j] = there && call.positions != nullptr ? min(call.positions[row], kWidth - 1) : kWidth - 1;
            }
            float terms[kCount][kWidth + 1] = {};
#pragma unroll
            for (int j = 0; j < kGroup; ++j) {
                const std::int64_t row = group + j;
                enter(values[j]);
                take(dys[j], backs[j], row < call.rows, row < last, terms);
                const std::int64_t source = row - (kWidth - 1);
                if (source >= last) continue;
                if (source >= first) {
                    store_values<kCount>(static_cast<T*>(call.dx) + source * call.dx_stride + c, input_gradient());
                } else if (first == 0 && call.d_halo != nullptr) {
                    store_values<kCount>(call.d_halo + row * call.convolution.channels + c, input_gradient());
                }
            }
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
#pragma unroll
                for (int s = 0; s <= kWidth; ++s) add_exactly(terms[i][s], sums[i][s]);
            }
        }
    }
};

/// partial [slices][channels][kWidth + 1]: sums of a slice's terms for the taps, then the bias. A row of threads has
/// neighbouring rows of the slice.
template <class T, int kWidth, int kCount>
__global__ void __launch_bounds__(kSumColumns* kSumRows, kWidth <= 4 ? 2 : 1)
    convolution_kernel(const __grid_constant__ ConvolutionBackward call, std::int64_t slice_rows, float2* partial) {
    __shared__ float2 scratch[kSumRows][kSumColumns];
    const std::int64_t channels = call.convolution.channels;
    const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x) * kCount;
    const bool there = c < channels;
    ChannelWalk<T, kWidth, kCount> walk(call, there ? c : 0);
    const std::int64_t part = (slice_rows + kSumRows - 1) / kSumRows;
    const std::int64_t end = min(blockIdx.y * slice_rows + slice_rows, call.rows);
    const std::int64_t first = min(blockIdx.y * slice_rows + threadIdx.y * part, end);
    const std::int64_t last = min(first + part, end);
    if (there && first < last) walk.run(first, last);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int s = 0; s <= kWidth; ++s) {
            const float2 sum = add_row_threads(walk.sums[i][s], scratch);
            if (threadIdx.y == 0 && there) partial[(blockIdx.y * channels + c + i) * (kWidth + 1) + s] = sum;
        }
    }
}

template <class T, int kWidth, int kCount>
void run(const ConvolutionBackward& call, void* workspace, cudaStream_t stream) {
    const std::int64_t channels = call.convolution.channels;
    const std::int64_t slices = slices_of(call.rows);
    const std::int64_t slice_rows = (call.rows + slices - 1) / slices;
    constexpr std::int64_t kBlockChannels = kSumColumns * kCount;
    const dim3 blocks(static_cast<unsigned>((channels + kBlockChannels - 1) / kBlockChannels),
                      static_cast<unsigned>(slices));
    convolution_kernel<T, kWidth, kCount>
        <<<blocks, dim3(kSumColumns, kSumRows), 0, stream>>>(call, slice_rows, static_cast<float2*>(workspace));
    FENWICK_CUDA_CHECK(cudaGetLastError());
    const std::int64_t columns = channels * (kWidth + 1);
    add_sums(workspace, call.rows, columns, {call.d_weight, channels * kWidth, 0, kWidth, kWidth + 1}, stream);
    if (call.d_bias == nullptr) return;
    add_sums(workspace, call.rows, columns, {call.d_bias, channels, kWidth, 1, kWidth + 1}, stream);
}

template <class T, int kCount>
auto run_of(std::int64_t width) {
    using Form = void (*)(const ConvolutionBackward&, void*, cudaStream_t);
    static constexpr Form kForms[kMaxConvolutionWidth] = {run<T, 1, kCount>, run<T, 2, kCount>, run<T, 3, kCount>,
                                                          run<T, 4, kCount>, run<T, 5, kCount>, run<T, 6, kCount>,
                                                          run<T, 7, kCount>, run<T, 8, kCount>};
    return kForms[width - 1];
}

}  // namespace

std::size_t causal_convolution_backward_workspace_bytes(std::int64_t channels, std::int64_t width) {
    return column_sums_bytes(channels * (width + 1));
}

void causal_convolution_backward(Operand operand, const ConvolutionBackward& call, void* workspace,
                                 cudaStream_t stream) {
    const Convolution& c = call.convolution;
    if (c.width < 1 || c.width > kMaxConvolutionWidth) {
        throw InternalError("causal_convolution_backward: width " + std::to_string(c.width) + " is outside [1, " +
                            std::to_string(kMaxConvolutionWidth) + "]");
    }
    if (c.channels == 0) return;
    if (call.rows == 0) {
        if (call.d_halo == nullptr) return;
        const auto bytes = static_cast<std::size_t>((c.width - 1) * c.channels) * sizeof(float);
        FENWICK_CUDA_CHECK(cudaMemsetAsync(call.d_halo, 0, bytes, stream));
        return;
    }
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        // Two channels a thread leave room for twice the warps that four would.
        const bool wide = c.channels % 4 == 0 && fours(call.x, call.x_stride, sizeof(T)) &&
                          fours(call.halo, c.channels, sizeof(T)) && fours(call.dy, call.dy_stride, sizeof(float)) &&
                          fours(call.dx, call.dx_stride, sizeof(T)) && fours(call.d_halo, c.channels, sizeof(float));
        (wide ? run_of<T, 2>(c.width) : run_of<T, 1>(c.width))(call, workspace, stream);
    });
}

}  // namespace fenwick::cuda
