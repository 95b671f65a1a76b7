#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/convolution.h"
#include "kernels/cuda/backward/row_moments.cuh"
#include "kernels/cuda/backward/slopes.cuh"

namespace fenwick::cuda {
namespace {

/// How many rows back row `row` may look.
__device__ inline std::int64_t reach(const ConvolutionBackward& call, std::int64_t row) {
    const std::int64_t before = call.convolution.width - 1;
    return call.positions == nullptr ? before : min(before, static_cast<std::int64_t>(call.positions[row]));
}

/// The value of row `row` that its taps meet, negative rows in the halo.
template <class T, int kCount>
__device__ Values<kCount> value_at(const ConvolutionBackward& call, std::int64_t row, std::int64_t c) {
    if (row >= 0) return load_values<kCount>(static_cast<const T*>(call.x) + row * call.x_stride + c);
    if (call.halo == nullptr) return Values<kCount>{};
    const std::int64_t halo_row = row + call.convolution.width - 1;
    return load_values<kCount>(static_cast<const T*>(call.halo) + halo_row * call.convolution.channels + c);
}

/// dy becomes the gradient of the sums before SiLU.
template <class T, int kCount>
struct BeforeSilu {
    ConvolutionBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        const Convolution& f = call.convolution;
        Values<kCount> sum{};
        if (f.bias != nullptr) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum.at[i] = f.bias[c + i];
        }
        for (std::int64_t back = reach(call, row); back >= 0; --back) {
            const Values<kCount> x = value_at<T, kCount>(call, row - back, c);
            const float* weight = f.weight + c * f.width + f.width - 1 - back;
#pragma unroll
            for (int i = 0; i < kCount; ++i) sum.at[i] = fmaf(weight[i * f.width], x.at[i], sum.at[i]);
        }
        float* at = call.dy + row * call.dy_stride + c;
        Values<kCount> d = load_values<kCount>(at);
#pragma unroll
        for (int i = 0; i < kCount; ++i) d.at[i] *= silu_point(sum.at[i]).slope;
        store_values<kCount>(at, d);
    }
};

/// Terms of a channel's taps, then of its bias.
template <class T, int kWidth>
struct TapTerms {
    ConvolutionBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t c, float* terms) const {
        const float d = call.dy[row * call.dy_stride + c];
        const std::int64_t back = reach(call, row);
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
            const int from = kWidth - 1 - w;
            terms[w] = from <= back ? d * value_at<T, 1>(call, row - from, c).at[0] : 0.0F;
        }
        terms[kWidth] = d;
    }
};

/// Gradient of row `source` (negative: of the halo) from the rows that took it.
template <int kCount>
__device__ Values<kCount> gradient_of(const ConvolutionBackward& call, std::int64_t source, std::int64_t c) {
    const Convolution& f = call.convolution;
    Values<kCount> sum{};
    for (std::int64_t ahead = 0; ahead < f.width; ++ahead) {
        const std::int64_t taker = source + ahead;
        if (taker < 0 || taker >= call.rows || reach(call, taker) < ahead) continue;
        const Values<kCount> d = load_values<kCount>(call.dy + taker * call.dy_stride + c);
        const float* weight = f.weight + c * f.width + f.width - 1 - ahead;
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum.at[i] = fmaf(weight[i * f.width], d.at[i], sum.at[i]);
    }
    return sum;
}

template <class T, int kCount>
struct InputElement {
    ConvolutionBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        store_values<kCount>(static_cast<T*>(call.dx) + row * call.dx_stride + c, gradient_of<kCount>(call, row, c));
    }
};

struct HaloElement {
    ConvolutionBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        call.d_halo[row * call.convolution.channels + c] =
            gradient_of<1>(call, row - (call.convolution.width - 1), c).at[0];
    }
};

template <class T, int kCount>
void form_rows(const ConvolutionBackward& call, cudaStream_t stream) {
    for_row_elements<kCount>(InputElement<T, kCount>{call}, call.rows, call.convolution.channels, stream);
}

template <class T, int kCount>
void pass_silu(const ConvolutionBackward& call, cudaStream_t stream) {
    if (!call.convolution.silu) return;
    for_row_elements<kCount>(BeforeSilu<T, kCount>{call}, call.rows, call.convolution.channels, stream);
}

template <class T, int kWidth>
void sum_taps(const ConvolutionBackward& call, void* workspace, cudaStream_t stream) {
    const std::int64_t channels = call.convolution.channels;
    sum_columns<kWidth + 1>(TapTerms<T, kWidth>{call}, call.rows, channels, workspace, stream);
    const std::int64_t columns = channels * (kWidth + 1);
    add_sums(workspace, call.rows, columns, {call.d_weight, channels * kWidth, 0, kWidth, kWidth + 1}, stream);
    if (call.d_bias == nullptr) return;
    add_sums(workspace, call.rows, columns, {call.d_bias, channels, kWidth, 1, kWidth + 1}, stream);
}

template <class T>
auto sum_taps_of(std::int64_t width) {
    using Form = void (*)(const ConvolutionBackward&, void*, cudaStream_t);
    static constexpr Form kForms[kMaxConvolutionWidth] = {sum_taps<T, 1>, sum_taps<T, 2>, sum_taps<T, 3>,
                                                          sum_taps<T, 4>, sum_taps<T, 5>, sum_taps<T, 6>,
                                                          sum_taps<T, 7>, sum_taps<T, 8>};
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
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = c.channels % 4 == 0 && fours(call.x, call.x_stride, sizeof(T)) &&
                          fours(call.halo, c.channels, sizeof(T)) && fours(call.dy, call.dy_stride, sizeof(float)) &&
                          fours(call.dx, call.dx_stride, sizeof(T));
        const auto silu = wide ? pass_silu<T, 4> : pass_silu<T, 1>;
        const auto rows = wide ? form_rows<T, 4> : form_rows<T, 1>;
        silu(call, stream);
        sum_taps_of<T>(c.width)(call, workspace, stream);
        rows(call, stream);
        if (call.d_halo != nullptr) for_row_elements<1>(HaloElement{call}, c.width - 1, c.channels, stream);
    });
}

}  // namespace fenwick::cuda
