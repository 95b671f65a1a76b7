#include "kernels/backward/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/cpu/backward/column_sums.h"
#include "kernels/cpu/backward/slopes.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/shapes.h"

namespace fenwick {

// Loops marked ivdep may run in place: rows of views are the same row or apart, never shifted.
namespace {

constexpr std::int64_t kHeadBlock = 64;  // heads whose exp(A_log) is held on the stack at a time

/// What the log decay 0 - rate * step passes on: to its step, and to A_log. Nothing from a decay of -inf.
struct DecayGradient {
    float to_step, to_a_log;
};

[[gnu::always_inline]] inline DecayGradient decay_gradient(float rate, float step, float d_log_decay) {
    const float decay = rate * step;
    const bool none = decay == std::numeric_limits<float>::infinity();  // a NaN is not: it goes on
    return {none ? 0.0F : 0.0F - rate * d_log_decay, none ? 0.0F : 0.0F - decay * d_log_decay};
}

/// Runs body(row, first head, heads, their exp(A_log), sums of dt_bias, sums of A_log) for every row and block of
/// heads, and adds the sums to d_dt_bias and d_a_log.
template <class Body>
void for_each_head_block(const float* a_log, std::int64_t rows, std::int64_t heads, float* d_dt_bias, float* d_a_log,
                         int threads, float* workspace, const Body& body) {
    const SlicedColumnSums sliced(rows, 2 * heads, workspace);
    sliced.run(threads, [&](std::int64_t first, std::int64_t last, ColumnSums sums) {
        std::array<float, kHeadBlock> rate{};
        for (std::int64_t h = 0; h < heads; h += kHeadBlock) {
            const std::int64_t count = std::min(kHeadBlock, heads - h);
            for (std::int64_t i = 0; i < count; ++i) rate[i] = vexp(a_log[h + i]);
            const ColumnSums of_bias{sums.high + h, sums.low + h};
            const ColumnSums of_a_log{sums.high + heads + h, sums.low + heads + h};
            for (std::int64_t r = first; r < last; ++r) body(r, h, count, rate.data(), of_bias, of_a_log);
        }
    });
    sliced.add_to(d_dt_bias, 0, heads);
    sliced.add_to(d_a_log, heads, heads);
}

std::int64_t require_heads(const char* kernel, MatrixView<const float> x, std::int64_t heads) {
    if (heads <= 0 || x.cols % heads != 0) {
        throw InternalError(fmt::format("{}: {} heads do not fit {} channels", kernel, heads, x.cols));
    }
    return x.cols / heads;
}

}  // namespace

std::int64_t gates_backward_workspace_floats(std::int64_t columns) {
    return column_sums_floats(columns);
}

void mamba2_gates_backward(const Mamba2Gates& gates, MatrixView<const float> raw, MatrixView<const float> d_dt,
                           MatrixView<const float> d_log_decay, MatrixView<float> d_raw, float* d_dt_bias,
                           float* d_a_log, int threads, float* workspace) {
    for (const MatrixView<const float>& view : {d_dt, d_log_decay, MatrixView<const float>(d_raw)}) {
        require_same_shape("mamba2_gates_backward", raw, view);
    }
    const float low = gates.dt_min;
    const float high = gates.dt_max;
    for_each_head_block(gates.a_log, raw.rows, raw.cols, d_dt_bias, d_a_log, threads, workspace,
                        [&](std::int64_t r, std::int64_t h, std::int64_t count, const float* rate, ColumnSums of_bias,
                            ColumnSums of_a_log) {
                            const float* in = raw.row(r) + h;
                            const float* bias = gates.dt_bias + h;
                            const float* of_dt = d_dt.row(r) + h;
                            const float* of_decay = d_log_decay.row(r) + h;
                            float* out = d_raw.row(r) + h;
#pragma GCC ivdep
                            for (std::int64_t i = 0; i < count; ++i) {
                                const float sum = in[i] + bias[i];
                                const float open = vsoftplus(sum);
                                const float raised = open < low ? low : open;  // a NaN fails both comparisons
                                const float step = raised > high ? high : raised;
                                const DecayGradient decay = decay_gradient(rate[i], step, of_decay[i]);
                                const float passed = (of_dt[i] + decay.to_step) * vsigmoid(sum);
                                const float value = open < low || open > high ? 0.0F : passed;
                                of_bias.add(i, value);
                                of_a_log.add(i, decay.to_a_log);
                                out[i] = value;
                            }
                        });
}

void delta_gates_backward(const DeltaGates& gates, MatrixView<const float> a, MatrixView<const float> b,
                          MatrixView<const float> d_log_decay, MatrixView<const float> d_beta, MatrixView<float> d_a,
                          MatrixView<float> d_b, float* d_dt_bias, float* d_a_log, int threads, float* workspace) {
    for (const MatrixView<const float>& view :
         {b, d_log_decay, d_beta, MatrixView<const float>(d_a), MatrixView<const float>(d_b)}) {
        require_same_shape("delta_gates_backward", a, view);
    }
    const float beta_scale = gates.allow_negative_eigenvalues ? 2.0F : 1.0F;
    for_each_head_block(gates.a_log, a.rows, a.cols, d_dt_bias, d_a_log, threads, workspace,
                        [&](std::int64_t r, std::int64_t h, std::int64_t count, const float* rate, ColumnSums of_bias,
                            ColumnSums of_a_log) {
                            const float* in = a.row(r) + h;
                            const float* bias = gates.dt_bias + h;
                            const float* raw_beta = b.row(r) + h;
                            const float* of_decay = d_log_decay.row(r) + h;
                            const float* of_beta = d_beta.row(r) + h;
                            float* out_a = d_a.row(r) + h;
                            float* out_b = d_b.row(r) + h;
#pragma GCC ivdep
                            for (std::int64_t i = 0; i < count; ++i) {
                                const float sum = in[i] + bias[i];
                                const DecayGradient decay = decay_gradient(rate[i], vsoftplus(sum), of_decay[i]);
                                const float value = decay.to_step * vsigmoid(sum);
                                of_bias.add(i, value);
                                of_a_log.add(i, decay.to_a_log);
                                out_a[i] = value;
                                out_b[i] = of_beta[i] * (beta_scale * sigmoid_slope(raw_beta[i]));
                            }
                        });
}

void level_scales_backward(const float* scale, MatrixView<const float> dl, MatrixView<const float> d_lambda,
                           MatrixView<float> d_dl, float* d_scale, int threads, float* workspace) {
    require_same_shape("level_scales_backward", dl, d_lambda);
    require_same_shape("level_scales_backward", dl, d_dl);
    const SlicedColumnSums sliced(dl.rows, dl.cols, workspace);
    sliced.run(threads, [&](std::int64_t first, std::int64_t last, ColumnSums sums) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* in = dl.row(r);
            const float* d = d_lambda.row(r);
            float* out = d_dl.row(r);
#pragma GCC ivdep
            for (std::int64_t i = 0; i < dl.cols; ++i) {
                const float passed = d[i] * vsigmoid(scale[i] * in[i]);
                sums.add(i, passed * in[i]);
                out[i] = passed * scale[i];
            }
        }
    });
    sliced.add_to(d_scale, 0, dl.cols);
}

void scale_heads_backward(MatrixView<const float> x, MatrixView<const float> factor, MatrixView<const float> dy,
                          MatrixView<float> d_x, bool accumulate, MatrixView<float> d_factor, int threads) {
    require_same_shape("scale_heads_backward", x, dy);
    require_same_shape("scale_heads_backward", x, d_x);
    require_same_shape("scale_heads_backward", factor, d_factor);
    if (factor.rows != x.rows) {
        throw InternalError(fmt::format("scale_heads_backward: {} rows of factors for {} rows", factor.rows, x.rows));
    }
    const std::int64_t head_dim = require_heads("scale_heads_backward", x, factor.cols);
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (std::int64_t h = 0; h < factor.cols; ++h) {
                const float f = factor.row(r)[h];
                const float* in = x.row(r) + h * head_dim;
                const float* d = dy.row(r) + h * head_dim;
                float* out = d_x.row(r) + h * head_dim;
                d_factor.row(r)[h] = dot_product(d, in, head_dim);
                if (accumulate) {
#pragma GCC ivdep
                    for (std::int64_t i = 0; i < head_dim; ++i) out[i] = __builtin_fmaf(d[i], f, out[i]);
                } else {
#pragma GCC ivdep
                    for (std::int64_t i = 0; i < head_dim; ++i) out[i] = d[i] * f;
                }
            }
        }
    });
}

void add_skip_backward(const float* d, std::int64_t d_count, MatrixView<const float> x, MatrixView<const float> dy,
                       MatrixView<float> d_x, float* d_d, int threads, float* workspace) {
    require_same_shape("add_skip_backward", x, dy);
    require_same_shape("add_skip_backward", x, d_x);
    const std::int64_t per_value = require_heads("add_skip_backward", x, d_count);  // 1: a value per channel
    const SlicedColumnSums sliced(x.rows, d_count, workspace);
    sliced.run(threads, [&](std::int64_t first, std::int64_t last, ColumnSums sums) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* in = x.row(r);
            const float* of_y = dy.row(r);
            float* out = d_x.row(r);
            if (per_value == 1) {
#pragma GCC ivdep
                for (std::int64_t i = 0; i < x.cols; ++i) {
                    sums.add(i, of_y[i] * in[i]);
                    out[i] = d[i] * of_y[i];
                }
                continue;
            }
            for (std::int64_t h = 0; h < d_count; ++h) {
                const std::int64_t c = h * per_value;
                sums.add(h, dot_product(of_y + c, in + c, per_value));
#pragma GCC ivdep
                for (std::int64_t i = c; i < c + per_value; ++i) out[i] = d[h] * of_y[i];
            }
        }
    });
    sliced.add_to(d_d, 0, d_count);
}

}  // namespace fenwick
