#include "kernels/reference/rowwise_backward.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/matmul.h"
#include "kernels/reference/rowwise.h"

namespace fenwick::reference {
namespace {

std::vector<double> zeros(std::int64_t count) {
    return std::vector<double>(static_cast<std::size_t>(count), 0.0);
}

double silu_derivative(double x) {
    const double s = sigmoid(x);
    return s + x * s * sigmoid(-x);
}

}  // namespace

MatmulGradients matmul_backward(Matrix x, Matrix weight, Matrix dy) {
    MatmulGradients out{zeros(x.rows * x.cols), zeros(weight.rows * weight.cols), zeros(weight.rows)};
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t n = 0; n < weight.rows; ++n) {
            const double d = dy.row(r)[n];
            out.bias[n] += d;
            for (std::int64_t k = 0; k < x.cols; ++k) {
                out.x[r * x.cols + k] += d * weight.row(n)[k];
                out.weight[n * x.cols + k] += d * x.row(r)[k];
            }
        }
    }
    return out;
}

NormGradients group_rms_norm_backward(Matrix x, const std::vector<double>& weight, std::int64_t group_size, double eps,
                                      Matrix dy) {
    NormGradients out{zeros(x.rows * x.cols), {}, zeros(static_cast<std::int64_t>(weight.size()))};
    const auto period = static_cast<std::int64_t>(weight.size());
    const auto size = static_cast<double>(group_size);
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t first = 0; first < x.cols; first += group_size) {
            double squares = 0;
            for (std::int64_t c = first; c < first + group_size; ++c) squares += x.row(r)[c] * x.row(r)[c];
            const double factor = 1 / std::sqrt(squares / size + eps);
            double mean = 0;  // of dn n
            for (std::int64_t c = first; c < first + group_size; ++c) {
                const double n = x.row(r)[c] * factor;
                out.weight[c % period] += dy.row(r)[c] * n;
                mean += dy.row(r)[c] * weight[c % period] * n / size;
            }
            for (std::int64_t c = first; c < first + group_size; ++c) {
                const double n = x.row(r)[c] * factor;
                out.x[r * x.cols + c] = factor * (dy.row(r)[c] * weight[c % period] - n * mean);
            }
        }
    }
    return out;
}

NormGradients gated_rms_norm_backward(Matrix x, Matrix gate, const std::vector<double>& weight, std::int64_t group_size,
                                      double eps, bool norm_before_gate, Matrix dy) {
    const std::int64_t cols = x.cols;
    std::vector<double> inner = zeros(x.rows * cols);  // dy silu(z), or x silu(z)
    const Matrix gated = norm_before_gate ? dy : x;
    for (std::int64_t i = 0; i < x.rows * cols; ++i) {
        inner[i] = gated.row(i / cols)[i % cols] * silu(gate.row(i / cols)[i % cols]);
    }
    const Matrix inner_view(inner.data(), x.rows, cols);
    NormGradients out = norm_before_gate ? group_rms_norm_backward(x, weight, group_size, eps, inner_view)
                                         : group_rms_norm_backward(inner_view, weight, group_size, eps, dy);
    // d gate: of y = normalised silu(z), or of what is normalised, x silu(z).
    const std::vector<double> normalised = group_rms_norm(x, weight, group_size, eps);
    out.gate = zeros(x.rows * cols);
    for (std::int64_t i = 0; i < x.rows * cols; ++i) {
        const double z = gate.row(i / cols)[i % cols];
        if (norm_before_gate) {
            out.gate[i] = dy.row(i / cols)[i % cols] * normalised[i] * silu_derivative(z);
        } else {
            out.gate[i] = out.x[i] * x.row(i / cols)[i % cols] * silu_derivative(z);
            out.x[i] *= silu(z);
        }
    }
    return out;
}

std::vector<double> l2_norm_backward(Matrix x, std::int64_t head_dim, double eps, double scale, Matrix dy) {
    std::vector<double> out = zeros(x.rows * x.cols);
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t first = 0; first < x.cols; first += head_dim) {
            double squares = 0;
            double dot = 0;
            for (std::int64_t c = first; c < first + head_dim; ++c) {
                squares += x.row(r)[c] * x.row(r)[c];
                dot += dy.row(r)[c] * x.row(r)[c];
            }
            const double root = std::sqrt(squares + eps);
            for (std::int64_t c = first; c < first + head_dim; ++c) {
                out[r * x.cols + c] = scale * (dy.row(r)[c] / root - x.row(r)[c] * dot / (root * root * root));
            }
        }
    }
    return out;
}

ConvolutionGradients causal_convolution_backward(Matrix weight, const std::vector<double>& bias, Matrix halo, Matrix x,
                                                 bool apply_silu, Matrix dy) {
    const std::int64_t before = weight.cols - 1;
    const std::int64_t channels = x.cols;
    ConvolutionGradients out{zeros(x.rows * channels), zeros(before * channels), zeros(channels * weight.cols),
                             zeros(channels)};
    const std::vector<double> sums = causal_convolution(weight, bias, halo, x, false);
    for (std::int64_t t = 0; t < x.rows; ++t) {
        for (std::int64_t c = 0; c < channels; ++c) {
            const double d = dy.row(t)[c] * (apply_silu ? silu_derivative(sums[t * channels + c]) : 1.0);
            out.bias[c] += d;
            for (std::int64_t w = 0; w <= before; ++w) {
                const std::int64_t source = t - before + w;
                double value = 0;
                if (source >= 0) value = x.row(source)[c];
                if (source < 0 && halo.data != nullptr) value = halo.row(source + before)[c];
                out.weight[c * weight.cols + w] += d * value;
                double& target =
                    source >= 0 ? out.x[source * channels + c] : out.halo[(source + before) * channels + c];
                target += d * weight.row(c)[w];
            }
        }
    }
    return out;
}

SwigluGradients swiglu_backward(Matrix gate, Matrix up, Matrix dy) {
    SwigluGradients out;
    for (std::int64_t r = 0; r < gate.rows; ++r) {
        for (std::int64_t c = 0; c < gate.cols; ++c) {
            out.gate.push_back(dy.row(r)[c] * up.row(r)[c] * silu_derivative(gate.row(r)[c]));
            out.up.push_back(dy.row(r)[c] * silu(gate.row(r)[c]));
        }
    }
    return out;
}

GateGradients mamba2_gate_backward(double raw, double dt_bias, double a_log, double dt_min, double dt_max, double d_dt,
                                   double d_log_decay) {
    const double open = softplus(raw + dt_bias);
    const double step = std::clamp(open, dt_min, dt_max);
    const double rate = std::exp(a_log);
    const bool clamped = open < dt_min || open > dt_max;
    return {clamped ? 0.0 : (d_dt - rate * d_log_decay) * sigmoid(raw + dt_bias), -rate * step * d_log_decay};
}

GateGradients delta_gate_backward(double a, double dt_bias, double a_log, double d_log_decay) {
    const double rate = std::exp(a_log);
    return {-rate * d_log_decay * sigmoid(a + dt_bias), -rate * softplus(a + dt_bias) * d_log_decay};
}

CrossEntropyGradients cross_entropy_backward(Matrix h, Matrix lm_head, const std::int32_t* targets, double scale,
                                             double z_loss) {
    CrossEntropyGradients out{zeros(h.rows), zeros(h.rows * h.cols), zeros(lm_head.rows * lm_head.cols)};
    for (std::int64_t t = 0; t < h.rows; ++t) {
        if (targets[t] < 0) continue;
        const std::vector<double> logits = matmul(h.row_range(t, 1), lm_head, {});
        const double maximum = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit - maximum);
        const double log_sum = maximum + std::log(sum);
        out.nll[t] = log_sum - logits[targets[t]];
        for (std::int64_t v = 0; v < lm_head.rows; ++v) {
            const double probability = std::exp(logits[v] - log_sum);
            const double d = scale * (probability * (1 + 2 * z_loss * log_sum) - (v == targets[t] ? 1.0 : 0.0));
            for (std::int64_t i = 0; i < h.cols; ++i) {
                out.h[t * h.cols + i] += d * lm_head.row(v)[i];
                out.lm_head[v * h.cols + i] += d * h.row(t)[i];
            }
        }
    }
    return out;
}

std::vector<double> embed_rows_backward(std::int64_t vocab, const std::int32_t* ids, Matrix dy) {
    std::vector<double> out = zeros(vocab * dy.cols);
    for (std::int64_t t = 0; t < dy.rows; ++t) {
        for (std::int64_t c = 0; c < dy.cols; ++c) out[ids[t] * dy.cols + c] += dy.row(t)[c];
    }
    return out;
}

}  // namespace fenwick::reference
