#include "core/errors.h"
#include "kernels/backward/norm.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kChannels = 133;  // seven groups of 19: one turn of the lanes and an odd rest
constexpr float kNormEps = 1e-5F;
// A group of n: the sum of squares and the dot product err by (n / 16 + 5) eps / 2 of their terms' magnitudes, and
// enter dx as factor * n * mean, with factor below 2 here, |n| below 5 and the mean of |dn n| below 2, times the gate
// below 5: (n / 16 + 5 + 10 further roundings) * eps / 2 * 100. silu and its slope are within 4 ulp.
double row_bound(std::int64_t group) {
    return (static_cast<double>(group) / 16 + 15) * kEps / 2 * 100;
}
// A weight's gradient: each term (below 5 * 5 * 5) errs by as many roundings, and their sum does not grow.
double weight_bound(std::int64_t terms, std::int64_t group) {
    return static_cast<double>(terms + 1) * 2 * (static_cast<double>(group) / 16 + 15) * kEps / 2;
}

struct Form {
    bool gated, norm_before_gate, shared_weight;
    std::int64_t group;
};
constexpr Form kForms[] = {{false, false, false, kChannels}, {false, false, true, 19}, {false, false, false, 19},
                           {true, true, true, 19},           {true, false, false, 19}, {true, false, false, kChannels}};

std::vector<double> forward(const Form& form, MatrixView<const double> x, MatrixView<const double> gate,
                            const std::vector<double>& weight, double eps) {
    return form.gated ? reference::gated_rms_norm(x, gate, weight, form.group, eps, form.norm_before_gate)
                      : reference::group_rms_norm(x, weight, form.group, eps);
}

reference::NormGradients backward(const Form& form, MatrixView<const double> x, MatrixView<const double> gate,
                                  const std::vector<double>& weight, double eps, MatrixView<const double> dy) {
    return form.gated ? reference::gated_rms_norm_backward(x, gate, weight, form.group, eps, form.norm_before_gate, dy)
                      : reference::group_rms_norm_backward(x, weight, form.group, eps, dy);
}

}  // namespace

TEST_CASE("Gradients of norms: the references against central differences") {
    for (const Form& form : kForms) {
        OwnMatrix x(3, kChannels, 1);
        OwnMatrix gate(3, kChannels, 2);
        std::vector<double> weight = OwnMatrix(1, form.shared_weight ? form.group : kChannels, 3).values;
        const OwnMatrix dy(3, kChannels, 4);
        const auto objective = [&] {
            return weighted_sum(forward(form, x.view(), gate.view(), weight, 1e-2), dy.values);
        };
        const reference::NormGradients gradients = backward(form, x.view(), gate.view(), weight, 1e-2, dy.view());
        require_gradient(x.values, gradients.x, objective);
        require_gradient(weight, gradients.weight, objective);
        if (form.gated) require_gradient(gate.values, gradients.gate, objective);
    }
    OwnMatrix x(3, 20, 1);
    const OwnMatrix dy(3, 20, 2);
    require_gradient(x.values, reference::l2_norm_backward(x.view(), 5, 1e-2, 0.3, dy.view()),
                     [&] { return weighted_sum(reference::l2_norm(x.view(), 5, 1e-2, 0.3), dy.values); });
}

TEST_CASE("Gradients of norms equal the double reference with any threads and in place") {
    for (const Form& form : kForms) {
        const std::int64_t weights = form.shared_weight ? form.group : kChannels;
        const TestMatrix weight = TestMatrix::normal(1, weights, 3);
        const GroupNorm norm{form.group, weight.view().data, weights, kNormEps};
        std::vector<float> workspace = poisoned(norm_backward_workspace_floats(kChannels));
        for (const std::int64_t rows : kGradientRows) {
            const TestMatrix x = TestMatrix::normal(rows, kChannels, 10 + static_cast<std::uint32_t>(rows));
            const TestMatrix gate = TestMatrix::normal(rows, kChannels, 20 + static_cast<std::uint32_t>(rows));
            const TestMatrix dy = TestMatrix::normal(rows, kChannels, 30 + static_cast<std::uint32_t>(rows), 1, 0, 2);
            const TestMatrix weight_before = TestMatrix::normal(1, weights, 5);
            const reference::NormGradients expected =
                backward(form, DoubleMatrix(x).view, DoubleMatrix(gate).view, weight.doubles(),
                         static_cast<double>(kNormEps), DoubleMatrix(dy).view);
            const auto run = [&](MatrixView<const float> of_y, MatrixView<float> dx, MatrixView<float> d_gate,
                                 float* d_weight, int threads) {
                if (form.gated) {
                    gated_rms_norm_backward(x.view(), gate.view(), norm, form.norm_before_gate, of_y, dx, d_gate,
                                            d_weight, threads, workspace.data());
                } else if (form.group == kChannels) {
                    rms_norm_backward(x.view(), weight.view().data, kNormEps, of_y, dx, false, d_weight, threads,
                                      workspace.data());
                } else {
                    group_rms_norm_backward(x.view(), norm, of_y, dx, d_weight, threads, workspace.data());
                }
            };
            TestMatrix dx(rows, kChannels);
            TestMatrix d_gate(rows, kChannels);
            TestMatrix d_weight = weight_before;
            run(dy.view(), dx.view(), d_gate.view(), d_weight.view().data, 1);
            require_close(dx.view(), expected.x, row_bound(form.group), 0);
            if (form.gated) require_close(d_gate.view(), expected.gate, row_bound(form.group), 0);
            const std::int64_t terms = rows * kChannels / weights;
            require_close(d_weight.view(), added(weight_before, expected.weight), weight_bound(terms, form.group), 0);
            for (const TestMatrix* matrix : {&dx, &d_weight, &d_gate}) matrix->require_guards();
            for (const int threads : {2, 3}) {
                TestMatrix in_place = dy;
                TestMatrix gate_again(rows, kChannels, 4);
                TestMatrix weight_again = weight_before;
                run(in_place.view(), in_place.view(), gate_again.view(), weight_again.view().data, threads);
                require_equal(in_place, dx);
                require_equal(weight_again, d_weight);
                if (form.gated) require_equal(gate_again, d_gate);
            }
        }
    }
}

TEST_CASE("The gradient of rms_norm is added to what is there where it is asked for") {
    const TestMatrix x = TestMatrix::normal(65, 45, 1);
    const TestMatrix dy = TestMatrix::normal(65, 45, 2);
    const TestMatrix weight = TestMatrix::normal(1, 45, 3);
    std::vector<float> workspace = poisoned(norm_backward_workspace_floats(45));
    TestMatrix alone(65, 45);
    TestMatrix sum = TestMatrix::normal(65, 45, 4);
    const TestMatrix before = sum;
    TestMatrix d_weight = TestMatrix::normal(1, 45, 5, 0.0F);
    rms_norm_backward(x.view(), weight.view().data, kNormEps, dy.view(), alone.view(), false, d_weight.view().data, 2,
                      workspace.data());
    rms_norm_backward(x.view(), weight.view().data, kNormEps, dy.view(), sum.view(), true, d_weight.view().data, 2,
                      workspace.data());
    for (std::int64_t r = 0; r < 65; ++r) {
        for (std::int64_t c = 0; c < 45; ++c) REQUIRE(sum.at(r, c) == before.at(r, c) + alone.at(r, c));
    }
}

TEST_CASE("The gradient of l2_norm equals the double reference") {
    for (const std::int64_t head_dim : {1, 5, 64}) {
        for (const std::int64_t rows : kGradientRows) {
            const TestMatrix x = TestMatrix::normal(rows, 3 * head_dim, 10 + static_cast<std::uint32_t>(rows));
            const TestMatrix dy = TestMatrix::normal(rows, 3 * head_dim, 20 + static_cast<std::uint32_t>(rows));
            const double eps = static_cast<double>(1e-2F);
            const std::vector<double> expected = reference::l2_norm_backward(
                DoubleMatrix(x).view, head_dim, eps, static_cast<double>(0.3F), DoubleMatrix(dy).view);
            TestMatrix dx(rows, 3 * head_dim);
            l2_norm_backward(x.view(), head_dim, 1e-2F, 0.3F, dy.view(), dx.view(), 1);
            // scale / sqrt(eps) is at most 3; terms below 5, the dot product of 64 terms as above.
            require_close(dx.view(), expected, 3 * 10 * 20 * kEps / 2, 0);
            dx.require_guards();
            for (const int threads : {2, 3}) {
                TestMatrix in_place = dy;
                l2_norm_backward(x.view(), head_dim, 1e-2F, 0.3F, in_place.view(), in_place.view(), threads);
                require_equal(in_place, dx);
            }
        }
    }
}

TEST_CASE("A norm's weight over many rows loses nothing to the number of rows") {
    constexpr std::int64_t kRows = 200000;
    std::vector<float> x(kRows, 3.0F);
    std::vector<float> dy(kRows, 0.1F);
    const float weight = 1;
    float d_weight = 0;
    std::vector<float> workspace = poisoned(norm_backward_workspace_floats(1));
    rms_norm_backward({x.data(), kRows, 1}, &weight, 0.0F, {dy.data(), kRows, 1}, {dy.data(), kRows, 1}, false,
                      &d_weight, 2, workspace.data());
    // 3 / sqrt(9) rounds to 1 within eps.
    const double exact = static_cast<double>(0.1F) * kRows;
    CHECK(std::abs(static_cast<double>(d_weight) - exact) <= 3 * kEps * exact);
}

TEST_CASE("Gradients of norms name groups and shapes that do not fit") {
    TestMatrix x = TestMatrix::normal(2, 10, 1);
    TestMatrix wide = TestMatrix::normal(2, 11, 1);
    float* data = x.view().data;
    CHECK_THROWS_AS(l2_norm_backward(x.view(), 3, 1e-6F, 1.0F, x.view(), x.view(), 1), InternalError);
    CHECK_THROWS_AS(rms_norm_backward(x.view(), data, 0, wide.view(), x.view(), false, data, 1, data), InternalError);
    CHECK_THROWS_WITH(group_rms_norm_backward(x.view(), {5, data, 7, 1e-6F}, x.view(), x.view(), data, 1, data),
                      Catch::Contains("groups of 5 with 7 weights"));
    CHECK_THROWS_AS(gated_rms_norm_backward(x.view(), wide.view(), {5, data, 5, 1e-6F}, true, x.view(), x.view(),
                                            x.view(), data, 1, data),
                    InternalError);
}
