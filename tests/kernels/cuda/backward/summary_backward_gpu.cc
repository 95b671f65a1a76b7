// Gradients of combine and carry on the GPU against the double reference.
//
// Bounds. Every gradient is one or two sums of at most n = max(d_k, d_v) products (log decays: d_k d_v of them), one
// product with a decay (expf: 2 ulp) and additions to what is there: n + 8 roundings of at most the sum of magnitudes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cuda/backward/summary.h"
#include "kernels/reference/summary.h"
#include "kernels/summary.h"
#include "tests/kernels/cuda/backward/mixer_gradients_gpu.h"

namespace fenwick {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

std::int64_t head_floats(const MixerShape& shape) {
    return transition_floats(shape) + state_floats(shape);
}

bool is_log_decay(const MixerShape& shape, std::size_t i) {
    return shape.algebra != TransitionAlgebra::kMatrix &&
           static_cast<std::int64_t>(i) % head_floats(shape) < transition_floats(shape);
}

Floats random_summary(const MixerShape& shape, std::uint64_t seed) {
    Floats x = test::random_values(summary_floats(shape), seed);
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (is_log_decay(shape, i)) x[i] = -std::fabs(x[i]);
    }
    if (shape.algebra != TransitionAlgebra::kMatrix) x[0] = -std::numeric_limits<float>::infinity();
    return x;
}

Doubles magnitudes(const MixerShape& shape, const Floats& summary, bool is_gradient) {
    Doubles x(summary.begin(), summary.end());
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (is_gradient || !is_log_decay(shape, i)) x[i] = std::fabs(x[i]);
    }
    return x;
}

double allowed(const MixerShape& shape) {
    return static_cast<double>(shape.algebra == TransitionAlgebra::kMatrix ? shape.key_dim + shape.value_dim
                                                                           : shape.key_dim * shape.value_dim) +
           8;
}

const MixerShape kShapes[] = {{TransitionAlgebra::kScalar, 3, 1, 33, 7, 0},
                              {TransitionAlgebra::kDiagonal, 3, 1, 5, 70, 0},
                              {TransitionAlgebra::kMatrix, 3, 1, 33, 20, 0}};

TEST_CASE("gradients of combine on the GPU agree with the reference", "[small]") {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    for (const MixerShape& shape : kShapes) {
        const Floats left = random_summary(shape, 1);
        const Floats right = random_summary(shape, 2);
        const Floats d_out = test::random_values(summary_floats(shape), 3);
        const auto device_left = test::upload(left, stream);
        const auto device_right = test::upload(right, stream);
        const auto device_d = test::upload(d_out, stream);
        auto d_left = test::upload(Floats(left.size(), 0.5F), stream);
        auto d_right = test::upload(Floats(left.size(), 0.5F), stream);
        cuda::combine_summaries_backward(shape, device_left.data(), device_right.data(), device_d.data(), d_left.data(),
                                         d_right.data(), true, stream);
        reference::SummaryGradients want = reference::combine_summaries_backward(
            shape, {left.begin(), left.end()}, {right.begin(), right.end()}, {d_out.begin(), d_out.end()});
        reference::SummaryGradients bound = reference::combine_summaries_backward(
            shape, magnitudes(shape, left, false), magnitudes(shape, right, false), magnitudes(shape, d_out, true));
        for (auto* x : {&want.left, &want.right, &bound.left, &bound.right}) {
            for (double& value : *x) value += 0.5;  // what was there
        }
        CHECK(testing::worst_error(test::download(d_left, stream), want.left, bound.left) <= allowed(shape));
        CHECK(testing::worst_error(test::download(d_right, stream), want.right, bound.right) <= allowed(shape));

        // A node that starts the document: its A and the node's dA are not read.
        Floats first = left;
        Floats d_first = d_out;
        Floats d_known = d_out;
        for (std::size_t i = 0; i < first.size(); ++i) {
            if (static_cast<std::int64_t>(i) % head_floats(shape) >= transition_floats(shape)) continue;
            first[i] = d_first[i] = NAN;
            d_known[i] = 0.0F;
        }
        const auto device_first = test::upload(first, stream);
        const auto device_d_first = test::upload(d_first, stream);
        d_left = test::upload(Floats(left.size()), stream);
        d_right = test::upload(Floats(left.size()), stream);
        cuda::combine_summaries_backward(shape, device_first.data(), device_right.data(), device_d_first.data(),
                                         d_left.data(), d_right.data(), false, stream);
        want = reference::combine_summaries_backward(shape, {left.begin(), left.end()}, {right.begin(), right.end()},
                                                     {d_known.begin(), d_known.end()});
        CHECK(testing::worst_error(test::download(d_left, stream), want.left, bound.left) <= allowed(shape));
        CHECK(testing::worst_error(test::download(d_right, stream), want.right, bound.right) <= allowed(shape));
    }
}

TEST_CASE("gradients of carried states on the GPU agree with the reference", "[small]") {
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    for (const MixerShape& shape : kShapes) {
        const std::int64_t floats = state_floats(shape);
        const Floats node = random_summary(shape, 4);
        const Floats state = test::random_values(shape.heads * floats, 5);
        const Floats d_out = test::random_values(shape.heads * floats, 6);
        const auto device_node = test::upload(node, stream);
        const auto device_state = test::upload(state, stream);
        const auto device_d = test::upload(d_out, stream);
        auto d_node = test::upload(Floats(node.size()), stream);
        auto d_state = test::upload(Floats(state.size()), stream);
        cuda::carry_states_backward(shape, device_node.data(), device_state.data(), device_d.data(), d_node.data(),
                                    d_state.data(), stream);
        const Floats got_node = test::download(d_node, stream);
        const Floats got_state = test::download(d_state, stream);
        for (std::int64_t h = 0; h < shape.heads; ++h) {
            const auto part = [h](const auto& x, std::int64_t each) {
                return Doubles(x.begin() + h * each, x.begin() + (h + 1) * each);
            };
            const Doubles one = part(node, head_floats(shape));
            const reference::CarryGradients want =
                reference::carry_state_backward(shape, one, part(state, floats), part(d_out, floats));
            Doubles large = part(magnitudes(shape, node, false), head_floats(shape));
            Doubles large_state = part(state, floats);
            Doubles large_d = part(d_out, floats);
            for (auto* x : {&large_state, &large_d}) {
                for (double& value : *x) value = std::fabs(value);
            }
            const reference::CarryGradients bound = reference::carry_state_backward(shape, large, large_state, large_d);
            const auto slice = [h](const Floats& x, std::int64_t each) {
                return Floats(x.begin() + h * each, x.begin() + (h + 1) * each);
            };
            CHECK(testing::worst_error(slice(got_node, head_floats(shape)), want.node, bound.node) <= allowed(shape));
            CHECK(testing::worst_error(slice(got_state, floats), want.state, bound.state) <= allowed(shape));
        }
    }
}

}  // namespace
}  // namespace fenwick
