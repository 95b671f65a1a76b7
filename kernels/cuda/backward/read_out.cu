#include "kernels/cuda/backward/column_sums.cuh"
#include "kernels/cuda/backward/read_out.h"
#include "kernels/cuda/backward/row_moments.cuh"
#include "kernels/cuda/backward/slopes.cuh"

namespace fenwick::cuda {
namespace {

/// a / b for channels, of which there are fewer than 2^31.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
    return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

__device__ inline float2 moments_at(const ReadOut& f, const float2* moments, std::int64_t row, std::int64_t c) {
    return moments[row * quotient(f.channels, f.group_size) + quotient(c, f.group_size)];
}

/// What kCount channels of a row are made of. `input` is normalised, `d_scaled` the gradient of (normalised * weight).
template <int kCount>
struct Point {
    Values<kCount> v, input, d_scaled, dy, gate, slope;
};

template <class T, int kCount>
__device__ Point<kCount> point_at(const ReadOutBackward& call, std::int64_t row, std::int64_t c) {
    const ReadOut& f = call.forward;
    Point<kCount> p;
    p.v = load_values<kCount>(static_cast<const T*>(f.o) + row * f.channels + c);
    if (f.x != nullptr) {
        const Values<kCount> x = load_values<kCount>(static_cast<const T*>(f.x) + row * f.x_stride + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) p.v.at[i] = fmaf(f.skip[quotient(c + i, f.skip_channels)], x.at[i], p.v.at[i]);
    }
    p.dy = load_values<kCount>(static_cast<const T*>(call.dy) + row * f.channels + c);
    Values<kCount> z{};
    if (f.gate != nullptr) z = load_values<kCount>(static_cast<const T*>(f.gate) + row * f.gate_stride + c);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        SiluPoint gate{1.0F, 0.0F};
        if (f.gate != nullptr) gate = silu_point(z.at[i]);
        p.gate.at[i] = gate.value;
        p.slope.at[i] = gate.slope;
        p.input.at[i] = f.norm_before_gate ? p.v.at[i] : p.v.at[i] * gate.value;
        p.d_scaled.at[i] = f.norm_before_gate ? p.dy.at[i] * gate.value : p.dy.at[i];
    }
    return p;
}

__device__ inline float weight_at(const ReadOut& f, std::int64_t c) {
    return f.weight == nullptr ? 1.0F : f.weight[c - quotient(c, f.weight_period) * f.weight_period];
}

template <class T, int kCount>
struct Source {
    ReadOutBackward call;

    __device__ void add(std::int64_t row, std::int64_t c, float& squares, float& dot) const {
        const Point<kCount> p = point_at<T, kCount>(call, row, c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            squares = fmaf(p.input.at[i], p.input.at[i], squares);
            dot = fmaf(p.input.at[i], p.d_scaled.at[i] * weight_at(call.forward, c + i), dot);
        }
    }
};

__device__ inline float factor_of(const ReadOut& f, const float2& moments) {
    return 1.0F / sqrtf(moments.x / static_cast<float>(f.group_size) + f.eps);
}

/// A weight that all groups share takes the groups of a row for rows of their own.
template <class T, int kCount>
struct WeightTerm {
    ReadOutBackward call;
    const float2* moments;
    std::int64_t repeats;  // of the weights in a row

    __device__ void operator()(std::int64_t index, std::int64_t item, float* terms) const {
        const ReadOut& f = call.forward;
        const std::int64_t row = index / repeats;
        const std::int64_t c = index % repeats * f.weight_period + item * kCount;
        const Point<kCount> p = point_at<T, kCount>(call, row, c);
        const float factor = factor_of(f, moments_at(f, moments, row, c));
#pragma unroll
        for (int i = 0; i < kCount; ++i) terms[i] = p.d_scaled.at[i] * (p.input.at[i] * factor);
    }
};

template <class T, int kCount>
struct Element {
    ReadOutBackward call;
    const float2* moments;

    __device__ void operator()(std::int64_t row, std::int64_t c) const {
        const ReadOut& f = call.forward;
        const Point<kCount> p = point_at<T, kCount>(call, row, c);
        float factor = 1.0F;
        float mean = 0.0F;
        if (f.weight != nullptr) {
            const float2 sums = moments_at(f, moments, row, c);
            factor = factor_of(f, sums);
            mean = sums.y * factor / static_cast<float>(f.group_size);
        }
        Values<kCount> d_v;
        Values<kCount> d_z;
        Values<kCount> y;
        Values<kCount> d_x;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float weight = weight_at(f, c + i);
            const float n = p.input.at[i] * factor;
            const float inner = factor * (p.d_scaled.at[i] * weight - n * mean);
            if (f.norm_before_gate) {
                d_v.at[i] = inner;
                d_z.at[i] = p.dy.at[i] * n * weight * p.slope.at[i];
                y.at[i] = n * weight * p.gate.at[i];
            } else {
                d_v.at[i] = inner * p.gate.at[i];
                d_z.at[i] = inner * p.v.at[i] * p.slope.at[i];
                y.at[i] = n * weight;
            }
            if (f.x != nullptr) d_x.at[i] = f.skip[quotient(c + i, f.skip_channels)] * d_v.at[i];
        }
        const std::int64_t at = row * f.channels + c;
        store_values<kCount>(static_cast<T*>(call.d_o) + at, d_v);
        if (call.y != nullptr) store_values<kCount>(static_cast<T*>(call.y) + at, y);
        if (f.x != nullptr) store_values<kCount>(call.d_x + row * call.d_x_stride + c, d_x);
        if (f.gate != nullptr) {
            store_values<kCount>(static_cast<T*>(call.d_gate) + row * call.d_gate_stride + c, d_z);
        }
    }
};

/// D of each head, by channels.
template <class T, int kCount>
struct SkipTerm {
    ReadOutBackward call;

    __device__ void operator()(std::int64_t row, std::int64_t item, float* terms) const {
        const ReadOut& f = call.forward;
        const std::int64_t c = item * kCount;
        const Values<kCount> x = load_values<kCount>(static_cast<const T*>(f.x) + row * f.x_stride + c);
        const Values<kCount> d = load_values<kCount>(static_cast<const T*>(call.d_o) + row * f.channels + c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) terms[i] = d.at[i] * x.at[i];
    }
};

template <class T, int kCount>
void run(const ReadOutBackward& call, void* workspace, cudaStream_t stream) {
    const ReadOut& f = call.forward;
    const std::int64_t groups = f.channels / f.group_size;
    auto* moments = static_cast<float2*>(workspace);
    void* sums = static_cast<char*>(workspace) + row_moments_bytes(f.rows, groups);
    if (f.weight != nullptr) {
        row_moments<kCount>(Source<T, kCount>{call}, f.rows, groups, f.group_size, moments, stream);
        const std::int64_t repeats = f.channels / f.weight_period;
        sum_columns<kCount>(WeightTerm<T, kCount>{call, moments, repeats}, f.rows * repeats, f.weight_period / kCount,
                            sums, stream);
        add_sums(sums, f.rows * repeats, f.weight_period, {call.d_weight, f.weight_period}, stream);
    }
    for_row_elements<kCount>(Element<T, kCount>{call, moments}, f.rows, f.channels, stream);
    if (f.x == nullptr) return;
    sum_columns<kCount>(SkipTerm<T, kCount>{call}, f.rows, f.channels / kCount, sums, stream);
    add_sums(sums, f.rows, f.channels, {call.d_skip, f.channels / f.skip_channels, 0, 1, 1, f.skip_channels}, stream);
}

void require_fits(const ReadOutBackward& call) {
    const ReadOut& f = call.forward;
    const bool groups_fit = f.group_size > 0 && f.channels % f.group_size == 0 &&
                            (f.weight == nullptr || f.weight_period == f.channels || f.weight_period == f.group_size) &&
                            (f.x == nullptr || (f.skip_channels > 0 && f.channels % f.skip_channels == 0));
    const bool targets_fit =
        call.d_o != nullptr && (f.x == nullptr || (call.d_x != nullptr && call.d_skip != nullptr)) &&
        (f.gate == nullptr || call.d_gate != nullptr) && (f.weight == nullptr || call.d_weight != nullptr);
    if (groups_fit && targets_fit) return;
    throw InternalError("read_out_backward: groups of " + std::to_string(f.group_size) + " with " +
                        std::to_string(f.weight_period) + " weights, or a skip for " + std::to_string(f.skip_channels) +
                        " channels, do not fit " + std::to_string(f.channels) +
                        " channels, or a gradient has no place");
}

}  // namespace

std::size_t read_out_backward_workspace_bytes(const ReadOut& forward) {
    const std::int64_t groups = forward.group_size > 0 ? forward.channels / forward.group_size : 0;
    return row_moments_bytes(forward.rows, groups) + column_sums_bytes(forward.channels);
}

void read_out_backward(Operand operand, const ReadOutBackward& call, void* workspace, cudaStream_t stream) {
    require_fits(call);
    const ReadOut& f = call.forward;
    if (f.rows == 0) return;
    with_operand(operand, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        const bool wide = f.group_size % 4 == 0 && fours(f.o, f.channels, sizeof(T)) &&
                          fours(f.x, f.x_stride, sizeof(T)) && fours(f.gate, f.gate_stride, sizeof(T)) &&
                          fours(call.dy, f.channels, sizeof(T)) && fours(call.d_o, f.channels, sizeof(T)) &&
                          fours(call.y, f.channels, sizeof(T)) && fours(call.d_x, call.d_x_stride, sizeof(float)) &&
                          fours(call.d_gate, call.d_gate_stride, sizeof(T));
        const auto form = wide ? run<T, 4> : run<T, 1>;
        form(call, workspace, stream);
    });
}

}  // namespace fenwick::cuda
