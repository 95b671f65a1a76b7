#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/norm.h"
#include "kernels/cuda/backward/row_moments.cuh"

namespace fenwick::cuda {
namespace {

/// x and dy weight of RMSNorm. Moments: sum x^2, sum x dy weight.
template <class T, int kCount>
struct RmsSource {
    RmsNormBackward call;

    __device__ void add(std::int64_t row, std::int64_t c, float& squares, float& dot) const {
        const Values<kCount> x = load_values<kCount>(call.x + row * call.channels + c);
        const Values<kCount> d = load_values<kCount>(static_cast<const T*>(call.dy) + row * call.channels + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            squares = fmaf(x.at[i], x.at[i], squares);
            dot = fmaf(x.at[i], d.at[i] * call.weight[c + i], dot);
        }
    }
};

__device__ inline float rms_factor(const RmsNormBackward& call, const float2& moments) {
    return 1.0F / sqrtf(moments.x / static_cast<float>(call.channels) + call.eps);
}

template <class T, int kCount>
struct RmsWeightTerm {
    RmsNormBackward call;
    const float2* moments;

    __device__ void operator()(std::int64_t row, std::int64_t item, float* terms) const {
        const std::int64_t at = row * call.channels + item * kCount;
        const float factor = rms_factor(call, moments[row]);
        const Values<kCount> x = load_values<kCount>(call.x + at);
        const Values<kCount> d = load_values<kCount>(static_cast<const T*>(call.dy) + at);
#pragma unroll
        for (int i = 0; i < kCount; ++i) terms[i] = d.at[i] * (x.at[i] * factor);
    }
};

template <class T, int kCount>
struct RmsElement {
    RmsNormBackward call;
    const float2* moments;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        const std::int64_t at = row * call.channels + c;
        const float factor = rms_factor(call, moments[row]);
        const float mean = moments[row].y * factor / static_cast<float>(call.channels);
        const Values<kCount> x = load_values<kCount>(call.x + at);
        const Values<kCount> d = load_values<kCount>(static_cast<const T*>(call.dy) + at);
        Values<kCount> out{};
        if (call.accumulate) out = load_values<kCount>(call.dx + at);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            out.at[i] += factor * (d.at[i] * call.weight[c + i] - x.at[i] * factor * mean);
        }
        store_values<kCount>(call.dx + at, out);
    }
};

template <class T, int kCount>
void run_rms(const RmsNormBackward& call, void* workspace, cudaStream_t stream) {
    auto* moments = static_cast<float2*>(workspace);
    void* sums = static_cast<char*>(workspace) + row_moments_bytes(call.rows, 1);
    row_moments<kCount>(RmsSource<T, kCount>{call}, call.rows, 1, call.channels, moments, stream);
    sum_columns<kCount>(RmsWeightTerm<T, kCount>{call, moments}, call.rows, call.channels / kCount, sums, stream);
    add_sums(sums, call.rows, call.channels, {call.d_weight, call.channels}, stream);
    for_row_elements<kCount>(RmsElement<T, kCount>{call, moments}, call.rows, call.channels, stream);
}

template <class T, int kCount>
struct L2Source {
    L2NormBackward call;

    __device__ void add(std::int64_t row, std::int64_t c, float& squares, float& dot) const {
        const Values<kCount> x = load_values<kCount>(static_cast<const T*>(call.x) + row * call.x_stride + c);
        const Values<kCount> d = load_values<kCount>(call.dy + row * call.dy_stride + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            squares = fmaf(x.at[i], x.at[i], squares);
            dot = fmaf(x.at[i], d.at[i], dot);
        }
    }
};

template <class T, int kCount>
struct L2Element {
    L2NormBackward call;
    const float2* moments;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        const float2 sums =
            moments[row * call.heads + static_cast<std::uint32_t>(c) / static_cast<std::uint32_t>(call.head_dim)];
        const float factor = 1.0F / sqrtf(sums.x + call.eps);
        const float dot = sums.y * factor;
        const Values<kCount> x = load_values<kCount>(static_cast<const T*>(call.x) + row * call.x_stride + c);
        Values<kCount> d = load_values<kCount>(call.dy + row * call.dy_stride + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            d.at[i] = call.scale * factor * (d.at[i] - x.at[i] * factor * dot);
        }
        store_values<kCount>(call.dx + row * call.dy_stride + c, d);
    }
};

template <class T, int kCount>
void run_l2(const L2NormBackward& call, float2* moments, cudaStream_t stream) {
    row_moments<kCount>(L2Source<T, kCount>{call}, call.rows, call.heads, call.head_dim, moments, stream);
    for_row_elements<kCount>(L2Element<T, kCount>{call, moments}, call.rows, call.heads * call.head_dim, stream);
}

}  // namespace

std::size_t rms_norm_backward_workspace_bytes(std::int64_t rows, std::int64_t channels) {
    return row_moments_bytes(rows, 1) + column_sums_bytes(channels);
}

void rms_norm_backward(const RmsNormBackward& call, void* workspace, cudaStream_t stream) {
    if (call.rows == 0) return;
    with_operand(call.dy_operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = call.channels % 4 == 0 && fours(call.x, 0, sizeof(float)) && fours(call.dy, 0, sizeof(T)) &&
                          fours(call.dx, 0, sizeof(float));
        const auto run = wide ? run_rms<T, 4> : run_rms<T, 1>;
        run(call, workspace, stream);
    });
}

std::size_t l2_norm_backward_workspace_bytes(std::int64_t rows, std::int64_t heads) {
    return row_moments_bytes(rows, heads);
}

void l2_norm_backward(Operand operand, const L2NormBackward& call, void* workspace, cudaStream_t stream) {
    if (call.rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = call.head_dim % 4 == 0 && fours(call.x, call.x_stride, sizeof(T)) &&
                          fours(call.dy, call.dy_stride, sizeof(float)) &&
                          fours(call.dx, call.dy_stride, sizeof(float));
        const auto run = wide ? run_l2<T, 4> : run_l2<T, 1>;
        run(call, static_cast<float2*>(workspace), stream);
    });
}

}  // namespace fenwick::cuda
