#include "core/errors.h"
#include "kernels/backward/activations.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

TEST_CASE("Gradients of swiglu: the reference against central differences") {
    OwnMatrix gate(5, 7, 1, 3.0F);
    OwnMatrix up(5, 7, 2);
    const OwnMatrix dy(5, 7, 3);
    const auto objective = [&] { return weighted_sum(reference::swiglu(gate.view(), up.view()), dy.values); };
    const reference::SwigluGradients gradients = reference::swiglu_backward(gate.view(), up.view(), dy.view());
    require_gradient(gate.values, gradients.gate, objective);
    require_gradient(up.values, gradients.up, objective);
}

TEST_CASE("Gradients of swiglu equal the double reference with any threads and in place") {
    constexpr std::int64_t kColumns = 67;
    for (const std::int64_t rows : kGradientRows) {
        const TestMatrix gate = TestMatrix::normal(rows, kColumns, 10 + static_cast<std::uint32_t>(rows), 8.0F);
        const TestMatrix up = TestMatrix::normal(rows, kColumns, 20 + static_cast<std::uint32_t>(rows));
        const TestMatrix dy = TestMatrix::normal(rows, kColumns, 30 + static_cast<std::uint32_t>(rows), 1, 0, 1);
        const reference::SwigluGradients expected =
            reference::swiglu_backward(DoubleMatrix(gate).view, DoubleMatrix(up).view, DoubleMatrix(dy).view);
        TestMatrix d_gate(rows, kColumns);
        TestMatrix d_up(rows, kColumns);
        swiglu_backward(gate.view(), up.view(), dy.view(), d_gate.view(), d_up.view(), 1);
        // silu's slope: 4 eps absolute near its root, times |dy up| below 25; silu 3 ulp.
        require_close(d_gate.view(), expected.gate, 25 * 4 * kEps, 10 * kEps);
        require_close(d_up.view(), expected.up, 0, 4 * kEps);
        d_gate.require_guards();
        d_up.require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix gate_again = gate;
            TestMatrix up_again = up;
            swiglu_backward(gate_again.view(), up_again.view(), dy.view(), gate_again.view(), up_again.view(), threads);
            require_equal(gate_again, d_gate);
            require_equal(up_again, d_up);
        }
    }
}

TEST_CASE("Gradients of swiglu stay finite for large gates and show a NaN") {
    const std::vector<float> gate = {1e4F, -1e4F, 90.0F, -90.0F, NAN};
    const std::vector<float> ones(5, 1.0F);
    std::vector<float> d_gate(5);
    std::vector<float> d_up(5);
    swiglu_backward({gate.data(), 1, 5}, {ones.data(), 1, 5}, {ones.data(), 1, 5}, {d_gate.data(), 1, 5},
                    {d_up.data(), 1, 5}, 1);
    CHECK(d_gate[0] == 1.0F);
    CHECK(d_gate[1] == 0.0F);
    CHECK(d_gate[2] == 1.0F);
    CHECK(std::abs(d_gate[3]) < 1e-36F);
    CHECK(d_up[0] == 1e4F);
    CHECK(std::isnan(d_gate[4]));
    CHECK(std::isnan(d_up[4]));
    CHECK_THROWS_AS(swiglu_backward({gate.data(), 1, 5}, {ones.data(), 1, 5}, {ones.data(), 1, 4},
                                    {d_gate.data(), 1, 5}, {d_up.data(), 1, 5}, 1),
                    InternalError);
}
