#include "kernels/reference/rowwise.h"

#include <algorithm>
#include <cmath>

namespace fenwick::reference {
namespace {

/// x over what `denominator` makes of the sum of squares of its group.
template <class Denominator>
std::vector<double> scale_groups(MatrixView<const double> x, std::int64_t group_size, const Denominator& denominator) {
    std::vector<double> y;
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t first = 0; first < x.cols; first += group_size) {
            double sum = 0;
            for (std::int64_t i = first; i < first + group_size; ++i) sum += x.row(r)[i] * x.row(r)[i];
            for (std::int64_t i = first; i < first + group_size; ++i) y.push_back(x.row(r)[i] / denominator(sum));
        }
    }
    return y;
}

}  // namespace

double sigmoid(double x) {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}
double silu(double x) {
    return x * sigmoid(x);
}
double softplus(double x) {
    return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

std::vector<double> group_rms_norm(MatrixView<const double> x, const std::vector<double>& weight,
                                   std::int64_t group_size, double eps) {
    std::vector<double> y =
        scale_groups(x, group_size, [&](double sum) { return std::sqrt(sum / static_cast<double>(group_size) + eps); });
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= weight[i % static_cast<std::size_t>(x.cols) % weight.size()];
    return y;
}

std::vector<double> gated_rms_norm(MatrixView<const double> x, MatrixView<const double> gate,
                                   const std::vector<double>& weight, std::int64_t group_size, double eps,
                                   bool norm_before_gate) {
    std::vector<double> gates;
    std::vector<double> gated;
    for (std::int64_t r = 0; r < x.rows; ++r) {
        for (std::int64_t c = 0; c < x.cols; ++c) {
            gates.push_back(silu(gate.row(r)[c]));
            gated.push_back(x.row(r)[c] * gates.back());
        }
    }
    if (!norm_before_gate) return group_rms_norm({gated.data(), x.rows, x.cols}, weight, group_size, eps);
    std::vector<double> y = group_rms_norm(x, weight, group_size, eps);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= gates[i];
    return y;
}

std::vector<double> l2_norm(MatrixView<const double> x, std::int64_t head_dim, double eps, double scale) {
    return scale_groups(x, head_dim, [&](double sum) { return std::sqrt(sum + eps) / scale; });
}

std::vector<double> causal_convolution(MatrixView<const double> weight, const std::vector<double>& bias,
                                       MatrixView<const double> halo, MatrixView<const double> x, bool apply_silu) {
    const std::int64_t before = weight.cols - 1;
    std::vector<double> y;
    for (std::int64_t t = 0; t < x.rows; ++t) {
        for (std::int64_t c = 0; c < x.cols; ++c) {
            double sum = bias.empty() ? 0.0 : bias[c];
            for (std::int64_t w = 0; w <= before; ++w) {
                const std::int64_t source = t - before + w;
                if (source >= 0) sum += weight.row(c)[w] * x.row(source)[c];
                if (source < 0 && halo.data != nullptr) sum += weight.row(c)[w] * halo.row(source + before)[c];
            }
            y.push_back(apply_silu ? silu(sum) : sum);
        }
    }
    return y;
}

std::vector<double> swiglu(MatrixView<const double> gate, MatrixView<const double> up) {
    std::vector<double> y;
    for (std::int64_t r = 0; r < gate.rows; ++r) {
        for (std::int64_t c = 0; c < gate.cols; ++c) y.push_back(silu(gate.row(r)[c]) * up.row(r)[c]);
    }
    return y;
}

double time_step(double raw, double dt_bias, double dt_min, double dt_max) {
    return std::clamp(softplus(raw + dt_bias), dt_min, dt_max);
}

double log_decay(double a_log, double step) {
    return -std::exp(a_log) * step;
}

}  // namespace fenwick::reference
