#include "kernels/backward/norm.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/cpu/backward/column_sums.h"
#include "kernels/cpu/backward/slopes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/shapes.h"

namespace fenwick {

// Loops marked ivdep may run in place: rows of views are the same row or apart, never shifted.
namespace {

void require_groups(const char* kernel, std::int64_t channels, const GroupNorm& norm) {
    const bool fits = norm.group_size > 0 && channels % norm.group_size == 0 &&
                      (norm.weight_period == channels || norm.weight_period == norm.group_size);
    if (fits) return;
    throw InternalError(fmt::format("{}: groups of {} with {} weights do not fit {} channels", kernel, norm.group_size,
                                    norm.weight_period, channels));
}

/// One group of a row. `weight_sums` begins at the group's first weight.
struct Group {
    const float* x;
    const float* weight;
    const float* dy;
    float* dx;
    std::int64_t size;
    float eps;
    ColumnSums weight_sums;
};

/// r = 1 / sqrt(mean(x^2) + eps) and mean(dn n), dn = dy weight, n = x r.
struct Moments {
    float factor, mean;
};

Moments moments_of(const float* x, const float* weight, const float* dy, std::int64_t n, float eps) {
    const auto size = static_cast<float>(n);
    const float factor = 1.0F / std::sqrt(sum_of_squares(x, n) / size + eps);
    return {factor, sum_in_lanes(n, [&](std::int64_t i) { return dy[i] * weight[i] * x[i]; }) * factor / size};
}

template <bool kAccumulate>
void normalised(const Group& g) {
    const auto [factor, mean] = moments_of(g.x, g.weight, g.dy, g.size, g.eps);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < g.size; ++i) {
        const float n = g.x[i] * factor;
        g.weight_sums.add(i, g.dy[i] * n);
        const float value = factor * (g.dy[i] * g.weight[i] - n * mean);
        g.dx[i] = kAccumulate ? g.dx[i] + value : value;
    }
}

/// Of y = RMSNorm(x) weight silu(gate).
void normalised_then_gated(const Group& g, const float* gate, float* d_gate) {
    // Until its own value is formed, d_gate holds the gradient of RMSNorm(x) weight.
#pragma GCC ivdep
    for (std::int64_t i = 0; i < g.size; ++i) d_gate[i] = g.dy[i] * vsilu(gate[i]);
    const auto [factor, mean] = moments_of(g.x, g.weight, d_gate, g.size, g.eps);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < g.size; ++i) {
        const float n = g.x[i] * factor;
        const float inner = d_gate[i];
        g.weight_sums.add(i, inner * n);
        d_gate[i] = g.dy[i] * n * g.weight[i] * silu_slope(gate[i]);
        g.dx[i] = factor * (inner * g.weight[i] - n * mean);
    }
}

/// Of y = RMSNorm(x silu(gate)) weight.
void gated_then_normalised(const Group& g, const float* gate, float* d_gate) {
    // Until its own value is formed, d_gate holds what is normalised.
#pragma GCC ivdep
    for (std::int64_t i = 0; i < g.size; ++i) d_gate[i] = g.x[i] * vsilu(gate[i]);
    const auto [factor, mean] = moments_of(d_gate, g.weight, g.dy, g.size, g.eps);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < g.size; ++i) {
        const float n = d_gate[i] * factor;
        g.weight_sums.add(i, g.dy[i] * n);
        const float inner = factor * (g.dy[i] * g.weight[i] - n * mean);
        d_gate[i] = inner * g.x[i] * silu_slope(gate[i]);
        g.dx[i] = inner * vsilu(gate[i]);
    }
}

/// Calls body(group, row, first channel) for every group of every row, and adds the weights' gradient to d_weight.
template <class Body>
void for_each_group(MatrixView<const float> x, const GroupNorm& norm, MatrixView<const float> dy, MatrixView<float> dx,
                    float* d_weight, int threads, float* workspace, const Body& body) {
    const SlicedColumnSums sliced(x.rows, norm.weight_period, workspace);
    sliced.run(threads, [&](std::int64_t first, std::int64_t last, ColumnSums sums) {
        for (std::int64_t r = first; r < last; ++r) {
            for (std::int64_t c = 0; c < x.cols; c += norm.group_size) {
                const std::int64_t w = c % norm.weight_period;
                body(Group{x.row(r) + c, norm.weight + w, dy.row(r) + c, dx.row(r) + c, norm.group_size, norm.eps,
                           ColumnSums{sums.high + w, sums.low + w}},
                     r, c);
            }
        }
    });
    sliced.add_to(d_weight, 0, norm.weight_period);
}

}  // namespace

std::int64_t norm_backward_workspace_floats(std::int64_t channels) {
    return column_sums_floats(channels);
}

void rms_norm_backward(MatrixView<const float> x, const float* weight, float eps, MatrixView<const float> dy,
                       MatrixView<float> dx, bool accumulate, float* d_weight, int threads, float* workspace) {
    require_same_shape("rms_norm_backward", x, dy);
    require_same_shape("rms_norm_backward", x, dx);
    if (x.cols == 0) return;
    const auto form = accumulate ? normalised<true> : normalised<false>;
    for_each_group(x, {x.cols, weight, x.cols, eps}, dy, dx, d_weight, threads, workspace,
                   [&](const Group& group, std::int64_t, std::int64_t) { form(group); });
}

void group_rms_norm_backward(MatrixView<const float> x, const GroupNorm& norm, MatrixView<const float> dy,
                             MatrixView<float> dx, float* d_weight, int threads, float* workspace) {
    require_same_shape("group_rms_norm_backward", x, dy);
    require_same_shape("group_rms_norm_backward", x, dx);
    require_groups("group_rms_norm_backward", x.cols, norm);
    for_each_group(x, norm, dy, dx, d_weight, threads, workspace,
                   [](const Group& group, std::int64_t, std::int64_t) { normalised<false>(group); });
}

void gated_rms_norm_backward(MatrixView<const float> x, MatrixView<const float> gate, const GroupNorm& norm,
                             bool norm_before_gate, MatrixView<const float> dy, MatrixView<float> dx,
                             MatrixView<float> d_gate, float* d_weight, int threads, float* workspace) {
    for (const MatrixView<const float>& view :
         {gate, dy, MatrixView<const float>(dx), MatrixView<const float>(d_gate)}) {
        require_same_shape("gated_rms_norm_backward", x, view);
    }
    require_groups("gated_rms_norm_backward", x.cols, norm);
    const auto form = norm_before_gate ? normalised_then_gated : gated_then_normalised;
    for_each_group(
        x, norm, dy, dx, d_weight, threads, workspace,
        [&](const Group& group, std::int64_t r, std::int64_t c) { form(group, gate.row(r) + c, d_gate.row(r) + c); });
}

void l2_norm_backward(MatrixView<const float> x, std::int64_t head_dim, float eps, float scale,
                      MatrixView<const float> dy, MatrixView<float> dx, int threads) {
    require_same_shape("l2_norm_backward", x, dy);
    require_same_shape("l2_norm_backward", x, dx);
    if (head_dim <= 0 || x.cols % head_dim != 0) {
        throw InternalError(fmt::format("l2_norm_backward: heads of {} do not fit {} channels", head_dim, x.cols));
    }
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (std::int64_t c = 0; c < x.cols; c += head_dim) {
                const float* in = x.row(r) + c;
                const float* d = dy.row(r) + c;
                float* out = dx.row(r) + c;
                const float factor = 1.0F / std::sqrt(sum_of_squares(in, head_dim) + eps);
                const float dot = dot_product(d, in, head_dim) * factor;
                const float outer = scale * factor;
#pragma GCC ivdep
                for (std::int64_t i = 0; i < head_dim; ++i) out[i] = outer * (d[i] - in[i] * factor * dot);
            }
        }
    });
}

}  // namespace fenwick
