// Random inputs for mixers: the same numbers in double (for the references) and in fp32 (for the kernels).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "core/fenwick.h"
#include "core/tensor.h"
#include "kernels/mixer.h"
#include "kernels/reference/mixer.h"

namespace fenwick::testing {

/// fp32 inputs and the same values widened to double, so that differences are the kernels' own rounding.
struct MixerCase {
    MixerShape shape;
    std::int64_t tokens = 0;
    std::vector<float> q, k, v, log_decay, beta, lambda;

    [[nodiscard]] std::int64_t decay_columns() const {
        return shape.heads * (shape.algebra == TransitionAlgebra::kDiagonal ? shape.key_dim : 1);
    }

    /// Rows [first, first + count).
    [[nodiscard]] MixerInputs rows(std::int64_t first, std::int64_t count) const {
        const auto view = [&](const std::vector<float>& data, std::int64_t cols) {
            return data.empty() ? MatrixView<const float>()
                                : MatrixView<const float>(data.data() + first * cols, count, cols);
        };
        return {view(q, shape.key_heads * shape.key_dim),
                view(k, shape.key_heads * shape.key_dim),
                view(v, shape.heads * shape.value_dim),
                view(log_decay, decay_columns()),
                view(beta, shape.heads),
                view(lambda, shape.heads * shape.levels)};
    }

    [[nodiscard]] reference::MixerInputs widened() const {
        const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
        return {tokens, wide(q), wide(k), wide(v), wide(log_decay), wide(beta), wide(lambda)};
    }

    [[nodiscard]] MixerCase first_tokens(std::int64_t count) const {
        MixerCase cut = *this;
        cut.tokens = count;
        const auto shorten = [&](std::vector<float>& x) {
            x.resize(x.size() / static_cast<std::size_t>(tokens) * static_cast<std::size_t>(count));
        };
        for (auto* x : {&cut.q, &cut.k, &cut.v, &cut.log_decay, &cut.beta, &cut.lambda}) shorten(*x);
        return cut;
    }
};

/// q and k of norm about 1 (k exactly unit-length for the matrix algebra, as its families make it); log decays spread
/// over [-2, 0] on a log scale, so that short and long memories both occur.
inline MixerCase random_case(const MixerShape& shape, std::int64_t tokens, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.0F, 1.0F);
    MixerCase c;
    c.shape = shape;
    c.tokens = tokens;
    const auto fill = [&](std::vector<float>& x, std::int64_t columns, auto draw) {
        x.resize(static_cast<std::size_t>(tokens * columns));
        for (float& value : x) value = draw();
    };
    const float unit = 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
    fill(c.q, shape.key_heads * shape.key_dim, [&] { return unit * normal(random); });
    fill(c.k, shape.key_heads * shape.key_dim, [&] { return unit * normal(random); });
    fill(c.v, shape.heads * shape.value_dim, [&] { return normal(random); });
    fill(c.log_decay, c.decay_columns(), [&] { return -2.0F * std::exp(-9.0F * uniform(random)); });
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        fill(c.beta, shape.heads, [&] { return uniform(random); });
        for (auto row = c.k.begin(); row != c.k.end(); row += shape.key_dim) {
            float sum = 0.0F;
            for (auto x = row; x != row + shape.key_dim; ++x) sum += *x * *x;
            for (auto x = row; x != row + shape.key_dim; ++x) *x /= std::sqrt(sum);
        }
    }
    if (shape.log_linear()) fill(c.lambda, shape.heads * shape.levels, [&] { return 2.0F * uniform(random); });
    return c;
}

/// Output of the kernels for a whole document in one shard.
inline std::vector<float> run_mixer(const MixerCase& c, int threads = 1) {
    const std::int64_t whole_blocks = c.tokens / kBlockTokens;
    const std::int64_t one = summary_floats(c.shape);
    std::vector<float> summaries(static_cast<std::size_t>(whole_blocks * one));
    Buffer<float> workspace(threads * mixer_workspace_floats(c.shape, c.tokens / kBlockTokens));
    std::vector<float> out(static_cast<std::size_t>(c.tokens * c.shape.heads * c.shape.value_dim), NAN);
    const MixerInputs rows = c.rows(0, c.tokens);
    mixer_block_summaries(c.shape, rows, whole_blocks, summaries.data(), threads, workspace.data());
    mixer_outputs(c.shape, rows, 0, {}, summaries.data(), {out.data(), c.tokens, c.shape.heads * c.shape.value_dim},
                  threads, workspace.data());
    return out;
}

/// Shape and inputs whose output is an upper bound of |o| term by term: the sum with every factor's magnitude. For the
/// matrix algebra |q^T A ... A k| <= |q| |k| (product of decays), since |I - b k k^T| <= 1 for unit k and 0 <= b <= 2.
inline std::pair<MixerShape, reference::MixerInputs> magnitude_inputs(const MixerCase& c) {
    reference::MixerInputs in = c.widened();
    MixerShape shape = c.shape;
    for (auto* x : {&in.q, &in.k, &in.v, &in.lambda}) {
        for (double& value : *x) value = std::fabs(value);
    }
    if (shape.algebra == TransitionAlgebra::kMatrix) {
        const auto norms = [&](const std::vector<double>& x) {
            std::vector<double> heads(static_cast<std::size_t>(c.tokens * shape.heads));
            for (std::int64_t t = 0; t < c.tokens; ++t) {
                for (std::int64_t h = 0; h < shape.heads; ++h) {
                    const std::int64_t key_head = h / (shape.heads / shape.key_heads);
                    const double* row = &x[static_cast<std::size_t>((t * shape.key_heads + key_head) * shape.key_dim)];
                    double sum = 0.0;
                    for (std::int64_t i = 0; i < shape.key_dim; ++i) sum += row[i] * row[i];
                    heads[static_cast<std::size_t>(t * shape.heads + h)] = std::sqrt(sum);
                }
            }
            return heads;
        };
        in.q = norms(in.q);
        in.k = norms(in.k);
        for (std::size_t i = 0; i < in.k.size(); ++i) in.k[i] *= in.beta[i];
        in.beta.clear();
        shape.algebra = TransitionAlgebra::kScalar;
        shape.key_heads = shape.heads;
        shape.key_dim = 1;
    }
    return {shape, std::move(in)};
}

/// These bounds, [tokens, heads * d_v], by the dense reference.
inline std::vector<double> magnitude(const MixerCase& c, int threads = 1) {
    const auto [shape, inputs] = magnitude_inputs(c);
    return reference::mixer_dense(shape, inputs, threads);
}

/// Largest |got - want| / (eps * bound) over rows; NaN counts as infinite.
inline double worst_error(const std::vector<float>& got, const std::vector<double>& want,
                          const std::vector<double>& bound) {
    double worst = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
        const double unit = 0x1p-24 * bound[i] + 1e-30;
        if (!(error / unit <= worst)) worst = std::isnan(error) ? INFINITY : error / unit;
    }
    return worst;
}

}  // namespace fenwick::testing
