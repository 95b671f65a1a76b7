// Gradients of combine and carry: the kernels against the double reference, and that against central differences.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/backward/summary.h"
#include "kernels/gemm.h"
#include "kernels/reference/summary.h"
#include "kernels/summary.h"

namespace fenwick {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

/// Odd sizes below, around and above the 16 lanes of a sum, and a tall and a wide state.
std::vector<MixerShape> shapes() {
    std::vector<MixerShape> all;
    for (const auto algebra : {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal, TransitionAlgebra::kMatrix}) {
        all.push_back({algebra, 1, 1, 1, 1, 0});
        all.push_back({algebra, 3, 1, 5, 17, 0});
        all.push_back({algebra, 2, 2, 33, 7, 0});
    }
    return all;
}

std::int64_t transition_values(const MixerShape& shape) {
    return shape.algebra == TransitionAlgebra::kMatrix ? 0 : transition_floats(shape);
}

/// Normal values; log decays in [-2, 0].
Floats random_summary(const MixerShape& shape, std::int64_t heads, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> decay(-2.0F, 0.0F);
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    Floats values(static_cast<std::size_t>(heads * one));
    for (std::int64_t i = 0; i < heads * one; ++i) {
        values[static_cast<std::size_t>(i)] = i % one < transition_values(shape) ? decay(random) : normal(random);
    }
    return values;
}

Floats random_values(std::int64_t size, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Floats values(static_cast<std::size_t>(size));
    for (float& value : values) value = normal(random);
    return values;
}

Doubles wide(const Floats& x) {
    return {x.begin(), x.end()};
}

/// Every value's magnitude, log decays left as they are: with these a sum of terms is the sum of their magnitudes.
Doubles magnitudes(const MixerShape& shape, const Floats& summary) {
    const std::int64_t one = transition_floats(shape) + state_floats(shape);
    Doubles out = wide(summary);
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (static_cast<std::int64_t>(i) % one >= transition_values(shape)) out[i] = std::fabs(out[i]);
    }
    return out;
}
Doubles magnitudes(const Floats& values) {
    Doubles out = wide(values);
    for (double& value : out) value = std::fabs(value);
    return out;
}

/// Roundings that a gradient's sum goes through, each of half an eps of at most the sum of magnitudes: the terms of one
/// product (the matrix algebra's add up two of them), or a lane's share of them and the lanes' tree; exp errs by 1.1
/// ulp; the product with it and the addition to what was there round once each.
double allowed_error(const MixerShape& shape) {
    const double dk = static_cast<double>(shape.key_dim);
    const double dv = static_cast<double>(shape.value_dim);
    const double sum = shape.algebra == TransitionAlgebra::kMatrix ? 2 * dk + dv : std::ceil(dk * dv / 16) + 4;
    return (sum + 6) * 0x1p-24;
}

/// `got` = `before` + a gradient of `want` whose terms' magnitudes sum to `bound`.
void require_added(const Floats& got, const Floats& before, const Doubles& want, const Doubles& bound,
                   double relative) {
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double expected = static_cast<double>(before[i]) + want[i];
        const double error = std::fabs(static_cast<double>(got[i]) - expected);
        CAPTURE(i, got[i], expected);
        REQUIRE(error <= relative * (bound[i] + std::fabs(static_cast<double>(before[i]))));
    }
}

/// Central differences of `value` by every element of x. With a step of 2^-17 the third derivative (of exp, or none)
/// costs 2^-34 / 6 = 1e-11 of the value's magnitude, and its rounding 2^-53 / 2^-17 = 2e-11 a term.
void require_differences(const Doubles& x, const std::function<double(const Doubles&)>& value, const Doubles& gradient,
                         double magnitude) {
    constexpr double kStep = 0x1p-17;
    for (std::size_t i = 0; i < x.size(); ++i) {
        Doubles up = x;
        Doubles down = x;
        up[i] += kStep;
        down[i] -= kStep;
        CAPTURE(i, gradient[i]);
        REQUIRE(std::fabs((value(up) - value(down)) / (2 * kStep) - gradient[i]) <= 1e-9 * magnitude);
    }
}

double inner(const Doubles& a, const Doubles& b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

TEST_CASE("backward of combine: the reference equals central differences") {
    for (const MixerShape& shape : shapes()) {
        CAPTURE(static_cast<int>(shape.algebra), shape.key_dim, shape.value_dim);
        const Doubles left = wide(random_summary(shape, shape.heads, 1));
        const Doubles right = wide(random_summary(shape, shape.heads, 2));
        const Doubles d_out = wide(random_values(summary_floats(shape), 3));
        const reference::SummaryGradients d = reference::combine_summaries_backward(shape, left, right, d_out);
        const Doubles out = reference::combine_summaries(shape, left, right);
        const double magnitude = std::sqrt(inner(out, out) * inner(d_out, d_out)) + 1;
        const auto by_left = [&](const Doubles& x) {
            return inner(d_out, reference::combine_summaries(shape, x, right));
        };
        const auto by_right = [&](const Doubles& x) {
            return inner(d_out, reference::combine_summaries(shape, left, x));
        };
        require_differences(left, by_left, d.left, magnitude);
        require_differences(right, by_right, d.right, magnitude);
    }
}

TEST_CASE("backward of carry_state: the reference equals central differences") {
    for (const MixerShape& shape : shapes()) {
        CAPTURE(static_cast<int>(shape.algebra), shape.key_dim, shape.value_dim);
        const Doubles node = wide(random_summary(shape, 1, 4));
        const Doubles state = wide(random_values(state_floats(shape), 5));
        const Doubles d_out = wide(random_values(state_floats(shape), 6));
        const reference::CarryGradients d = reference::carry_state_backward(shape, node, state, d_out);
        const Doubles out = reference::carry_state(shape, node, state);
        const double magnitude = std::sqrt(inner(out, out) * inner(d_out, d_out)) + 1;
        require_differences(
            node, [&](const Doubles& x) { return inner(d_out, reference::carry_state(shape, x, state)); }, d.node,
            magnitude);
        require_differences(
            state, [&](const Doubles& x) { return inner(d_out, reference::carry_state(shape, node, x)); }, d.state,
            magnitude);
    }
}

TEST_CASE("backward of combine equals the double reference, adds, and has the same bits with any threads") {
    initialise_blas();
    for (const MixerShape& shape : shapes()) {
        CAPTURE(static_cast<int>(shape.algebra), shape.key_dim, shape.value_dim);
        const Floats left = random_summary(shape, shape.heads, 11);
        const Floats right = random_summary(shape, shape.heads, 12);
        const Floats d_out = random_values(summary_floats(shape), 13);
        const Floats before = random_values(summary_floats(shape), 14);
        Floats d_left = before;
        Floats d_right = before;
        combine_summaries_backward(shape, left.data(), right.data(), d_out.data(), d_left.data(), d_right.data(), 1);
        const reference::SummaryGradients want =
            reference::combine_summaries_backward(shape, wide(left), wide(right), wide(d_out));
        const reference::SummaryGradients bound = reference::combine_summaries_backward(
            shape, magnitudes(shape, left), magnitudes(shape, right), magnitudes(d_out));
        require_added(d_left, before, want.left, bound.left, allowed_error(shape));
        require_added(d_right, before, want.right, bound.right, allowed_error(shape));
        Floats d_left_again = before;
        Floats d_right_again = before;
        combine_summaries_backward(shape, left.data(), right.data(), d_out.data(), d_left_again.data(),
                                   d_right_again.data(), 2);
        const std::size_t bytes = before.size() * sizeof(float);
        REQUIRE(std::memcmp(d_left.data(), d_left_again.data(), bytes) == 0);
        REQUIRE(std::memcmp(d_right.data(), d_right_again.data(), bytes) == 0);
    }
}

TEST_CASE("backward of carry_state equals the double reference, adds, and leaves the node's state alone") {
    initialise_blas();
    for (const MixerShape& shape : shapes()) {
        CAPTURE(static_cast<int>(shape.algebra), shape.key_dim, shape.value_dim);
        const Floats node = random_summary(shape, 1, 21);
        const Floats state = random_values(state_floats(shape), 22);
        const Floats d_out = random_values(state_floats(shape), 23);
        const Floats node_before = random_values(static_cast<std::int64_t>(node.size()), 24);
        const Floats state_before = random_values(state_floats(shape), 25);
        Floats d_node = node_before;
        Floats d_state = state_before;
        carry_state_backward(shape, node.data(), state.data(), d_out.data(), d_node.data(), d_state.data());
        const reference::CarryGradients want =
            reference::carry_state_backward(shape, wide(node), wide(state), wide(d_out));
        const reference::CarryGradients bound =
            reference::carry_state_backward(shape, magnitudes(shape, node), magnitudes(state), magnitudes(d_out));
        require_added(d_node, node_before, want.node, bound.node, allowed_error(shape));
        require_added(d_state, state_before, want.state, bound.state, allowed_error(shape));
        for (auto i = static_cast<std::size_t>(transition_floats(shape)); i < node.size(); ++i) {
            REQUIRE(d_node[i] == node_before[i]);
        }
    }
}

TEST_CASE("CASES A2: backward of combine gives log decays of -inf 0, never NaN") {
    for (const auto algebra : {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal}) {
        const MixerShape shape{algebra, 2, 1, 5, 17, 0};
        for (const bool left_stops : {false, true}) {
            for (const bool right_stops : {false, true}) {
                Floats left = random_summary(shape, shape.heads, 31);
                Floats right = random_summary(shape, shape.heads, 32);
                if (left_stops) left[0] = kMinusInfinity;
                if (right_stops) right[0] = kMinusInfinity;
                const Floats d_out = random_values(summary_floats(shape), 33);
                Floats d_left(left.size());
                Floats d_right(right.size());
                combine_summaries_backward(shape, left.data(), right.data(), d_out.data(), d_left.data(),
                                           d_right.data(), 1);
                const reference::SummaryGradients want =
                    reference::combine_summaries_backward(shape, wide(left), wide(right), wide(d_out));
                const reference::SummaryGradients bound = reference::combine_summaries_backward(
                    shape, magnitudes(shape, left), magnitudes(shape, right), magnitudes(d_out));
                const Floats zeros(left.size());
                require_added(d_left, zeros, want.left, bound.left, allowed_error(shape));
                require_added(d_right, zeros, want.right, bound.right, allowed_error(shape));
                CHECK(d_left[0] == (left_stops ? 0.0F : d_out[0]));
                if (right_stops) CHECK(d_right[0] == 0.0F);
                // Nothing of the left state passes a decay of -inf.
                const auto state = static_cast<std::size_t>(transition_floats(shape));
                CHECK((d_left[state] == 0.0F) == right_stops);
            }
        }
    }
}

}  // namespace fenwick
