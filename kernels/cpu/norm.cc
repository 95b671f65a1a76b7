#include "kernels/norm.h"

#include <fmt/format.h>

#include <cmath>

#include "core/errors.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/shapes.h"
#include "kernels/threads.h"
#include "kernels/vector_math.h"

namespace fenwick {

// Loops marked ivdep may run in place: output and input rows are the same row or apart, never shifted.
namespace {

void require_groups(const char* kernel, std::int64_t channels, const GroupNorm& norm) {
    const bool fits = norm.group_size > 0 && channels % norm.group_size == 0 &&
                      (norm.weight_period == channels || norm.weight_period == norm.group_size);
    if (fits) return;
    throw InternalError(fmt::format("{}: groups of {} with {} weights do not fit {} channels", kernel, norm.group_size,
                                    norm.weight_period, channels));
}

float inverse_rms(const float* x, std::int64_t n, float eps) {
    return 1.0F / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
}

void normalise(const float* x, const float* weight, std::int64_t n, float eps, float* y) {
    const float factor = inverse_rms(x, n, eps);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

void normalise_then_gate(const float* x, const float* gate, const float* weight, std::int64_t n, float eps, float* y) {
    const float factor = inverse_rms(x, n, eps);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i] * vsilu(gate[i]);
}

void gate_then_normalise(const float* x, const float* gate, const float* weight, std::int64_t n, float eps, float* y) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * vsilu(gate[i]);
    normalise(y, weight, n, eps, y);
}

/// Calls group(x, y, weight, row, first channel) for every group of every row.
template <class Group>
void for_each_group(std::int64_t rows, std::int64_t channels, std::int64_t group_size, int threads,
                    const Group& group) {
    parallel_rows(rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (std::int64_t c = 0; c < channels; c += group_size) group(r, c);
        }
    });
}

}  // namespace

void rms_norm(MatrixView<const float> x, const float* weight, float eps, MatrixView<float> y, int threads) {
    group_rms_norm(x, {x.cols, weight, x.cols, eps}, y, threads);
}

void group_rms_norm(MatrixView<const float> x, const GroupNorm& norm, MatrixView<float> y, int threads) {
    require_same_shape("group_rms_norm", x, y);
    require_groups("group_rms_norm", x.cols, norm);
    for_each_group(x.rows, x.cols, norm.group_size, threads, [&](std::int64_t r, std::int64_t c) {
        normalise(x.row(r) + c, norm.weight + c % norm.weight_period, norm.group_size, norm.eps, y.row(r) + c);
    });
}

void gated_rms_norm(MatrixView<const float> x, MatrixView<const float> gate, const GroupNorm& norm,
                    bool norm_before_gate, MatrixView<float> y, int threads) {
    require_same_shape("gated_rms_norm", x, y);
    require_same_shape("gated_rms_norm", x, gate);
    require_groups("gated_rms_norm", x.cols, norm);
    const auto form = norm_before_gate ? normalise_then_gate : gate_then_normalise;
    for_each_group(x.rows, x.cols, norm.group_size, threads, [&](std::int64_t r, std::int64_t c) {
        form(x.row(r) + c, gate.row(r) + c, norm.weight + c % norm.weight_period, norm.group_size, norm.eps,
             y.row(r) + c);
    });
}

void l2_norm(MatrixView<const float> x, std::int64_t head_dim, float eps, float scale, MatrixView<float> y,
             int threads) {
    require_same_shape("l2_norm", x, y);
    if (head_dim <= 0 || x.cols % head_dim != 0) {
        throw InternalError(fmt::format("l2_norm: heads of {} do not fit {} channels", head_dim, x.cols));
    }
    for_each_group(x.rows, x.cols, head_dim, threads, [&](std::int64_t r, std::int64_t c) {
        const float* in = x.row(r) + c;
        float* out = y.row(r) + c;
        const float factor = scale / std::sqrt(sum_of_squares(in, head_dim) + eps);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < head_dim; ++i) out[i] = in[i] * factor;
    });
}

void add_rows(MatrixView<float> x, MatrixView<const float> y, int threads) {
    require_same_shape("add_rows", x, y);
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            float* sum = x.row(r);
            const float* term = y.row(r);
            for (std::int64_t i = 0; i < x.cols; ++i) sum[i] += term[i];
        }
    });
}

}  // namespace fenwick
