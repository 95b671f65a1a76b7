#include "kernels/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/errors.h"
#include "kernels/cpu/shapes.h"
#include "kernels/threads.h"
#include "kernels/vector_math.h"

namespace fenwick {

// Loops marked ivdep may run in place: output and input rows are the same row or apart, never shifted.
namespace {

constexpr std::int64_t kHeadBlock = 64;  // heads whose exp(A_log) is held on the stack at a time

/// Calls body(row, first head, heads, exp(A_log) of those heads) for every row and block of heads.
template <class Body>
void for_each_head_block(const float* a_log, std::int64_t rows, std::int64_t heads, int threads, const Body& body) {
    parallel_rows(rows, threads, [&](std::int64_t first, std::int64_t last) {
        std::array<float, kHeadBlock> rate{};
        for (std::int64_t h = 0; h < heads; h += kHeadBlock) {
            const std::int64_t count = std::min(kHeadBlock, heads - h);
            for (std::int64_t i = 0; i < count; ++i) rate[i] = vexp(a_log[h + i]);
            for (std::int64_t r = first; r < last; ++r) body(r, h, count, rate.data());
        }
    });
}

}  // namespace

void mamba2_gates(const Mamba2Gates& gates, MatrixView<const float> raw, MatrixView<float> dt,
                  MatrixView<float> log_decay, int threads) {
    require_same_shape("mamba2_gates", raw, dt);
    require_same_shape("mamba2_gates", raw, log_decay);
    const float low = gates.dt_min;
    const float high = gates.dt_max;
    for_each_head_block(gates.a_log, raw.rows, raw.cols, threads,
                        [&](std::int64_t r, std::int64_t h, std::int64_t count, const float* rate) {
                            const float* in = raw.row(r) + h;
                            const float* bias = gates.dt_bias + h;
                            float* step = dt.row(r) + h;
                            float* decay = log_decay.row(r) + h;
#pragma GCC ivdep
                            for (std::int64_t i = 0; i < count; ++i) {
                                const float open = vsoftplus(in[i] + bias[i]);
                                const float raised = open < low ? low : open;  // a NaN fails both comparisons
                                const float clamped = raised > high ? high : raised;
                                step[i] = clamped;
                                decay[i] = 0.0F - rate[i] * clamped;  // +0 where the rate is 0
                            }
                        });
}

void delta_gates(const DeltaGates& gates, MatrixView<const float> a, MatrixView<const float> b,
                 MatrixView<float> log_decay, MatrixView<float> beta, int threads) {
    require_same_shape("delta_gates", a, b);
    require_same_shape("delta_gates", a, log_decay);
    require_same_shape("delta_gates", a, beta);
    const float beta_scale = gates.allow_negative_eigenvalues ? 2.0F : 1.0F;
    for_each_head_block(gates.a_log, a.rows, a.cols, threads,
                        [&](std::int64_t r, std::int64_t h, std::int64_t count, const float* rate) {
                            const float* in = a.row(r) + h;
                            const float* bias = gates.dt_bias + h;
                            const float* raw_beta = b.row(r) + h;
                            float* decay = log_decay.row(r) + h;
                            float* write = beta.row(r) + h;
#pragma GCC ivdep
                            for (std::int64_t i = 0; i < count; ++i) {
                                decay[i] = 0.0F - rate[i] * vsoftplus(in[i] + bias[i]);
                                write[i] = beta_scale * vsigmoid(raw_beta[i]);
                            }
                        });
}

void level_scales(const float* scale, MatrixView<const float> dl, MatrixView<float> lambda, int threads) {
    require_same_shape("level_scales", dl, lambda);
    parallel_rows(dl.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* in = dl.row(r);
            float* out = lambda.row(r);
#pragma GCC ivdep
            for (std::int64_t i = 0; i < dl.cols; ++i) out[i] = vsoftplus(scale[i] * in[i]);
        }
    });
}

void scale_heads(MatrixView<const float> x, MatrixView<const float> factor, MatrixView<float> out, int threads) {
    require_same_shape("scale_heads", x, out);
    if (factor.rows != x.rows || factor.cols <= 0 || x.cols % factor.cols != 0) {
        throw InternalError(fmt::format("scale_heads: factors [{}, {}] do not fit x [{}, {}]", factor.rows, factor.cols,
                                        x.rows, x.cols));
    }
    const std::int64_t head_dim = x.cols / factor.cols;
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (std::int64_t h = 0; h < factor.cols; ++h) {
                const float f = factor.row(r)[h];
                const float* in = x.row(r) + h * head_dim;
                float* to = out.row(r) + h * head_dim;
#pragma GCC ivdep
                for (std::int64_t i = 0; i < head_dim; ++i) to[i] = in[i] * f;
            }
        }
    });
}

void add_skip(const float* d, std::int64_t d_count, MatrixView<const float> x, MatrixView<float> y, int threads) {
    require_same_shape("add_skip", x, y);
    if (d_count <= 0 || x.cols % d_count != 0) {
        throw InternalError(fmt::format("add_skip: {} values of D do not fit {} channels", d_count, x.cols));
    }
    const std::int64_t per_value = x.cols / d_count;  // 1: a value per channel
    parallel_rows(x.rows, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            const float* in = x.row(r);
            float* out = y.row(r);
            if (per_value == 1) {
                for (std::int64_t i = 0; i < x.cols; ++i) out[i] = __builtin_fmaf(d[i], in[i], out[i]);
                continue;
            }
            for (std::int64_t h = 0; h < d_count; ++h) {
                for (std::int64_t i = h * per_value; i < (h + 1) * per_value; ++i) {
                    out[i] = __builtin_fmaf(d[h], in[i], out[i]);
                }
            }
        }
    });
}

}  // namespace fenwick
