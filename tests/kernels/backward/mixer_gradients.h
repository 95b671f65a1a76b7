// What the tests of the mixers' gradients share: a whole document's gradients by the kernels, by the reference, and
// bounds on the magnitude of their terms.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backward/mixer.h"
#include "kernels/reference/mixer_backward.h"
#include "tests/kernels/mixer_inputs.h"

namespace fenwick::testing {

/// Gradients by every input of a document or shard, row-major.
struct MixerGradientRows {
    explicit MixerGradientRows(const MixerCase& c)
        : q(c.q.size()),
          k(c.k.size()),
          v(c.v.size()),
          log_decay(c.log_decay.size()),
          beta(c.beta.size()),
          lambda(c.lambda.size()) {}

    /// Views of the rows from `first` on of the case that these were made for.
    [[nodiscard]] MixerGradients rows(const MixerCase& c, std::int64_t first, std::int64_t count) {
        const auto view = [&](std::vector<float>& data) {
            const std::int64_t cols = static_cast<std::int64_t>(data.size()) / c.tokens;
            return data.empty() ? MatrixView<float>() : MatrixView<float>(data.data() + first * cols, count, cols);
        };
        return {view(q), view(k), view(v), view(log_decay), view(beta), view(lambda)};
    }

    [[nodiscard]] bool operator==(const MixerGradientRows&) const = default;

    std::vector<float> q, k, v, log_decay, beta, lambda;
};

struct NamedField {
    const char* name;
    const std::vector<float> MixerGradientRows::*got;
    std::vector<double> reference::MixerInputs::*want;
};
inline constexpr std::array<NamedField, 6> kGradientFields = {{
    {"q", &MixerGradientRows::q, &reference::MixerInputs::q},
    {"k", &MixerGradientRows::k, &reference::MixerInputs::k},
    {"v", &MixerGradientRows::v, &reference::MixerInputs::v},
    {"log_decay", &MixerGradientRows::log_decay, &reference::MixerInputs::log_decay},
    {"beta", &MixerGradientRows::beta, &reference::MixerInputs::beta},
    {"lambda", &MixerGradientRows::lambda, &reference::MixerInputs::lambda},
}};

/// random_case forgets everything within a block; here states are worth something after several, so that what passes
/// a whole block (dA, and states carried over nodes) has a share in every gradient.
inline MixerCase long_memory_case(const MixerShape& shape, std::int64_t tokens, std::uint64_t seed) {
    MixerCase c = random_case(shape, tokens, seed);
    for (auto* x : {&c.log_decay, &c.beta}) {
        for (float& value : *x) value *= 1e-3F;
    }
    return c;
}

inline std::vector<float> random_rows(std::int64_t size, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<std::size_t>(size));
    for (float& x : rows) x = normal(random);
    return rows;
}

inline std::vector<float> random_d_out(const MixerCase& c, std::uint64_t seed = 77) {
    return random_rows(c.tokens * c.shape.heads * c.shape.value_dim, seed);
}

/// By the kernels, the document being one shard. The workspace starts as NaN in each step, and nothing past its stated
/// size may be written.
inline MixerGradientRows kernel_gradients(const MixerCase& c, const std::vector<float>& d_out, int threads = 1) {
    const std::int64_t blocks = (c.tokens + kBlockTokens - 1) / kBlockTokens;
    const std::int64_t one = summary_floats(c.shape);
    const std::int64_t columns = c.shape.heads * c.shape.value_dim;
    Buffer<float> summaries((blocks - 1) * one);
    Buffer<float> d_summaries((blocks - 1) * one);
    std::fill(d_summaries.begin(), d_summaries.end(), 0.0F);
    const std::int64_t forward_floats = threads * mixer_workspace_floats(c.shape, blocks - 1);
    const std::int64_t floats = threads * mixer_backward_workspace_floats(c.shape, blocks, blocks - 1);
    constexpr float kGuard = -7.25e33F;
    Buffer<float> workspace(std::max(forward_floats, floats + 16));
    const auto poison = [&] {
        std::fill_n(workspace.data(), floats, NAN);
        std::fill(workspace.begin() + floats, workspace.end(), kGuard);
    };
    const auto require_guard = [&] {
        REQUIRE(std::all_of(workspace.begin() + floats, workspace.end(), [](float x) { return x == kGuard; }));
    };
    MixerGradientRows out(c);
    const MixerInputs rows = c.rows(0, c.tokens);
    const MixerGradients gradients = out.rows(c, 0, c.tokens);
    mixer_block_summaries(c.shape, rows, blocks - 1, summaries.data(), threads, workspace.data());
    poison();
    mixer_outputs_backward(c.shape, rows, 0, {}, summaries.data(), {d_out.data(), c.tokens, columns}, gradients, {},
                           d_summaries.data(), threads, workspace.data());
    require_guard();
    poison();
    mixer_block_summaries_backward(c.shape, rows, blocks - 1, d_summaries.data(), gradients, threads, workspace.data());
    require_guard();
    return out;
}

inline reference::MixerInputs reference_gradients(const MixerCase& c, const std::vector<float>& d_out) {
    return reference::mixer_backward(c.shape, c.widened(), {d_out.begin(), d_out.end()});
}

/// Bounds of every gradient, term by term: the reference's with every factor's magnitude. The matrix algebra goes by
/// the scalar one of the norms, q~ = |q|, k~ = beta |k| (magnitude_inputs): with |I - b k k^T| <= 1,
///   |dq_c| <= dq~,   |dk_c| <= beta dk~ + 2 beta dg~,   |dbeta| <= |k| dk~ + |k|^2 dg~,   dv, dlambda, dg as they are
/// where the parts with dg~ come from A_t: its gradient by k and by beta has the terms beta |dX| |X| of dg.
inline reference::MixerInputs gradient_magnitudes(const MixerCase& c, const std::vector<float>& d_out) {
    const auto [shape, inputs] = magnitude_inputs(c);
    std::vector<double> d(d_out.begin(), d_out.end());
    for (double& x : d) x = std::fabs(x);
    reference::MixerInputs m = reference::mixer_backward(shape, inputs, d);
    if (c.shape.algebra != TransitionAlgebra::kMatrix) return m;
    reference::MixerInputs wide = m;
    wide.q.assign(c.q.size(), 0.0);
    wide.k.assign(c.k.size(), 0.0);
    wide.beta.assign(c.beta.size(), 0.0);
    const std::int64_t dk = c.shape.key_dim;
    for (std::int64_t row = 0; row < c.tokens * c.shape.heads; ++row) {
        const std::int64_t head = row % c.shape.heads;
        const std::int64_t key_row =
            row / c.shape.heads * c.shape.key_heads + head / (c.shape.heads / c.shape.key_heads);
        const auto r = static_cast<std::size_t>(row);
        const double beta = c.beta[r];
        double norm = 0.0;
        for (std::int64_t i = 0; i < dk; ++i) {
            const double x = c.k[static_cast<std::size_t>(key_row * dk + i)];
            norm += x * x;
        }
        wide.beta[r] = std::sqrt(norm) * m.k[r] + norm * m.log_decay[r];
        for (std::int64_t i = 0; i < dk; ++i) {
            wide.q[static_cast<std::size_t>(key_row * dk + i)] += m.q[r];
            wide.k[static_cast<std::size_t>(key_row * dk + i)] += beta * m.k[r] + 2.0 * beta * m.log_decay[r];
        }
    }
    return wide;
}

}  // namespace fenwick::testing
