#include "core/errors.h"
#include "kernels/backward/gates.h"
#include "kernels/gates.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kHeads = 67;  // one block of 64 heads and an odd rest
constexpr std::int64_t kDim = 19;
// rate * gradient * slope: the rate is below 8, the gradient below 5; sigmoid 2.5 ulp, exp 1.1, five roundings, and the
// rounding of raw + bias (below 16), which moves a sigmoid by a quarter of it, a softplus by all.
constexpr double kAbsolute = 8 * 5 * 16 * kEps;
constexpr double kRelative = 10 * kEps;
// A parameter's gradient: n terms that each err so, the average magnitude being a tenth of the largest.
double sum_bound(std::int64_t rows) {
    return static_cast<double>(rows + 1) * kAbsolute / 4;
}

struct Parameters {
    TestMatrix bias = TestMatrix::normal(1, kHeads, 1);
    TestMatrix a_log = TestMatrix::normal(1, kHeads, 2, 0.5F);
    TestMatrix bias_before = TestMatrix::normal(1, kHeads, 3);
    TestMatrix a_log_before = TestMatrix::normal(1, kHeads, 4);
};

}  // namespace

TEST_CASE("Gradients of the gates: the references against central differences") {
    // dt open, below its lower bound, above its upper one.
    for (const double raw : {0.3, -3.0, 4.0}) {
        std::vector<double> x = {raw, 0.2, -0.4};  // raw, dt_bias, A_log
        const reference::GateGradients mamba2 = reference::mamba2_gate_backward(x[0], x[1], x[2], 0.1, 2.0, 1.7, -0.6);
        require_gradient(x, {mamba2.raw, mamba2.raw, mamba2.a_log}, [&] {
            const double dt = reference::time_step(x[0], x[1], 0.1, 2.0);
            return 1.7 * dt - 0.6 * reference::log_decay(x[2], dt);
        });
        const reference::GateGradients delta = reference::delta_gate_backward(x[0], x[1], x[2], 1.3);
        require_gradient(x, {delta.raw, delta.raw, delta.a_log},
                         [&] { return 1.3 * reference::log_decay(x[2], reference::softplus(x[0] + x[1])); });
    }
}

TEST_CASE("Gradients of mamba2_gates equal the double reference with any threads and in place") {
    const Parameters parameters;
    const float low = GENERATE(0.0F, 0.4F);
    const float high = GENERATE(1.1F, kInf);
    const Mamba2Gates gates{parameters.bias.view().data, parameters.a_log.view().data, low, high};
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(2 * kHeads));
    for (const std::int64_t rows : kGradientRows) {
        const TestMatrix raw = TestMatrix::normal(rows, kHeads, 10 + static_cast<std::uint32_t>(rows), 2.0F);
        const TestMatrix d_dt = TestMatrix::normal(rows, kHeads, 20 + static_cast<std::uint32_t>(rows));
        const TestMatrix d_decay = TestMatrix::normal(rows, kHeads, 30 + static_cast<std::uint32_t>(rows));
        std::vector<double> of_raw;
        std::vector<double> of_bias(kHeads, 0.0);
        std::vector<double> of_a_log(kHeads, 0.0);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
                // fp32's sum decides whether dt is clamped.
                const reference::GateGradients one = reference::mamba2_gate_backward(
                    raw.at(r, h) + parameters.bias.at(0, h), 0.0, parameters.a_log.at(0, h), low, high, d_dt.at(r, h),
                    d_decay.at(r, h));
                of_raw.push_back(one.raw);
                of_bias[h] += one.raw;
                of_a_log[h] += one.a_log;
            }
        }
        TestMatrix d_raw(rows, kHeads);
        TestMatrix d_bias = parameters.bias_before;
        TestMatrix d_a_log = parameters.a_log_before;
        mamba2_gates_backward(gates, raw.view(), d_dt.view(), d_decay.view(), d_raw.view(), d_bias.view().data,
                              d_a_log.view().data, 1, workspace.data());
        require_close(d_raw.view(), of_raw, kAbsolute, kRelative);
        require_close(d_bias.view(), added(parameters.bias_before, of_bias), sum_bound(rows), 0);
        require_close(d_a_log.view(), added(parameters.a_log_before, of_a_log), sum_bound(rows), 0);
        for (const TestMatrix* matrix : {&d_raw, &d_bias, &d_a_log}) matrix->require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix in_place = threads == 2 ? d_dt : d_decay;
            TestMatrix bias_again = parameters.bias_before;
            TestMatrix a_log_again = parameters.a_log_before;
            mamba2_gates_backward(gates, raw.view(), threads == 2 ? in_place.view() : d_dt.view(),
                                  threads == 2 ? d_decay.view() : in_place.view(), in_place.view(),
                                  bias_again.view().data, a_log_again.view().data, threads, workspace.data());
            require_equal(in_place, d_raw);
            require_equal(bias_again, d_bias);
            require_equal(a_log_again, d_a_log);
        }
    }
}

TEST_CASE("A clamped dt passes nothing on but its decay's A_log") {
    const float bias = 0;
    const float a_log = 0;
    const std::vector<float> raw = {-30, 30, 0};
    const std::vector<float> ones(3, 1.0F);
    std::vector<float> d_raw(3);
    float d_bias = 0;
    float d_a_log = 0;
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(2));
    mamba2_gates_backward({&bias, &a_log, 0.5F, 2.0F}, {raw.data(), 3, 1}, {ones.data(), 3, 1}, {ones.data(), 3, 1},
                          {d_raw.data(), 3, 1}, &d_bias, &d_a_log, 1, workspace.data());
    CHECK(d_raw[0] == 0.0F);
    CHECK(d_raw[1] == 0.0F);
    CHECK(d_raw[2] == 0.0F);  // d dt - exp(A_log) d log_decay = 0
    CHECK(d_bias == 0.0F);
    CHECK(d_a_log == Approx(-(0.5 + 2.0 + std::log(2.0))).epsilon(1e-6));
}

TEST_CASE("Gradients of delta_gates equal the double reference with any threads and in place") {
    const Parameters parameters;
    const bool negative = GENERATE(false, true);
    const DeltaGates gates{parameters.bias.view().data, parameters.a_log.view().data, negative};
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(2 * kHeads));
    for (const std::int64_t rows : kGradientRows) {
        const TestMatrix a = TestMatrix::normal(rows, kHeads, 10 + static_cast<std::uint32_t>(rows), 2.0F);
        const TestMatrix b = TestMatrix::normal(rows, kHeads, 20 + static_cast<std::uint32_t>(rows), 8.0F);
        const TestMatrix d_decay = TestMatrix::normal(rows, kHeads, 30 + static_cast<std::uint32_t>(rows));
        const TestMatrix d_beta = TestMatrix::normal(rows, kHeads, 40 + static_cast<std::uint32_t>(rows));
        std::vector<double> of_a;
        std::vector<double> of_b;
        std::vector<double> of_bias(kHeads, 0.0);
        std::vector<double> of_a_log(kHeads, 0.0);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < kHeads; ++h) {
                const reference::GateGradients one = reference::delta_gate_backward(
                    a.at(r, h), parameters.bias.at(0, h), parameters.a_log.at(0, h), d_decay.at(r, h));
                of_a.push_back(one.raw);
                of_bias[h] += one.raw;
                of_a_log[h] += one.a_log;
                const double x = b.at(r, h);
                of_b.push_back((negative ? 2 : 1) * d_beta.at(r, h) * reference::sigmoid(x) * reference::sigmoid(-x));
            }
        }
        TestMatrix d_a(rows, kHeads);
        TestMatrix d_b(rows, kHeads);
        TestMatrix d_bias = parameters.bias_before;
        TestMatrix d_a_log = parameters.a_log_before;
        delta_gates_backward(gates, a.view(), b.view(), d_decay.view(), d_beta.view(), d_a.view(), d_b.view(),
                             d_bias.view().data, d_a_log.view().data, 1, workspace.data());
        require_close(d_a.view(), of_a, kAbsolute, kRelative);
        require_close(d_b.view(), of_b, 0, kRelative);  // nothing cancels: relative, however near to 0 or 1 beta is
        require_close(d_bias.view(), added(parameters.bias_before, of_bias), sum_bound(rows), 0);
        require_close(d_a_log.view(), added(parameters.a_log_before, of_a_log), sum_bound(rows), 0);
        for (const TestMatrix* matrix : {&d_a, &d_b, &d_bias, &d_a_log}) matrix->require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix a_again = d_decay;
            TestMatrix b_again = d_beta;
            TestMatrix bias_again = parameters.bias_before;
            TestMatrix a_log_again = parameters.a_log_before;
            delta_gates_backward(gates, a.view(), b.view(), a_again.view(), b_again.view(), a_again.view(),
                                 b_again.view(), bias_again.view().data, a_log_again.view().data, threads,
                                 workspace.data());
            require_equal(a_again, d_a);
            require_equal(b_again, d_b);
            require_equal(bias_again, d_bias);
            require_equal(a_log_again, d_a_log);
        }
    }
}

TEST_CASE("A decay of exactly one or of minus infinity has gradients of zero") {
    // exp(A_log): 0, beyond fp32 (log decay -inf for every token), and 1 with a dt of 0 and a finite one.
    const std::vector<float> a_log = {-kInf, 100.0F, 0.0F, kInf};
    const std::vector<float> bias(4, 0.3F);
    const TestMatrix raw = TestMatrix::normal(65, 4, 7);
    const TestMatrix ones = TestMatrix::normal(65, 4, 8);
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(8));
    TestMatrix d_raw(65, 4);
    TestMatrix d_b(65, 4);
    TestMatrix d_bias = TestMatrix::normal(1, 4, 1, 0.0F);
    TestMatrix d_a_log = TestMatrix::normal(1, 4, 1, 0.0F);
    delta_gates_backward({bias.data(), a_log.data(), false}, raw.view(), raw.view(), ones.view(), ones.view(),
                         d_raw.view(), d_b.view(), d_bias.view().data, d_a_log.view().data, 1, workspace.data());
    for (const std::int64_t h : {0, 1, 3}) {
        CHECK(d_a_log.at(0, h) == 0.0F);
        CHECK(d_bias.at(0, h) == 0.0F);
        for (std::int64_t r = 0; r < 65; ++r) REQUIRE(d_raw.at(r, h) == 0.0F);
    }
    CHECK(d_a_log.at(0, 2) != 0.0F);
    // Mamba-2: the same, and dt's own gradient still passes.
    mamba2_gates_backward({bias.data(), a_log.data(), 0.0F, kInf}, raw.view(), ones.view(), ones.view(), d_raw.view(),
                          d_bias.view().data, d_a_log.view().data, 1, workspace.data());
    for (const std::int64_t h : {0, 1, 3}) {
        CHECK(d_a_log.at(0, h) == 0.0F);
        for (std::int64_t r = 0; r < 65; ++r) {
            const double slope = reference::sigmoid(static_cast<double>(raw.at(r, h)) + bias[h]);
            REQUIRE(d_raw.at(r, h) == Approx(ones.at(r, h) * slope).epsilon(1e-6));
        }
    }
}

TEST_CASE("A NaN shows through the gradients of the gates") {
    const float zero = 0.0F;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(2));
    float d_raw = 0;
    float d_bias = 0;
    float d_a_log = 0;
    mamba2_gates_backward({&zero, &zero, 0.001F, 0.1F}, {&nan, 1, 1}, {&zero, 1, 1}, {&zero, 1, 1}, {&d_raw, 1, 1},
                          &d_bias, &d_a_log, 1, workspace.data());
    CHECK(std::isnan(d_raw));
    CHECK(std::isnan(d_bias));
    CHECK(std::isnan(d_a_log));
}

TEST_CASE("Gradients of level_scales equal their definition") {
    const TestMatrix scale = TestMatrix::normal(1, kHeads, 1);
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(kHeads));
    for (const std::int64_t rows : kGradientRows) {
        const TestMatrix dl = TestMatrix::normal(rows, kHeads, 10 + static_cast<std::uint32_t>(rows), 3.0F);
        const TestMatrix d_lambda = TestMatrix::normal(rows, kHeads, 20 + static_cast<std::uint32_t>(rows));
        const TestMatrix before = TestMatrix::normal(1, kHeads, 3);
        std::vector<double> of_dl;
        std::vector<double> of_scale(kHeads, 0.0);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < kHeads; ++c) {
                const double x = dl.at(r, c);
                const double factor = scale.at(0, c);
                const double passed = d_lambda.at(r, c) * reference::sigmoid(factor * x);
                of_dl.push_back(passed * factor);
                of_scale[c] += passed * x;
                if (r > 0) continue;
                // The formula itself against a central difference of lambda = softplus(scale dl).
                const double h = 1e-4;
                const double difference =
                    d_lambda.at(r, c) *
                    (reference::softplus(factor * (x + h)) - reference::softplus(factor * (x - h))) / (2 * h);
                REQUIRE(std::abs(difference - of_dl.back()) <= 1e-7 * (1 + std::abs(difference)));
            }
        }
        TestMatrix d_dl(rows, kHeads);
        TestMatrix d_scale = before;
        level_scales_backward(scale.view().data, dl.view(), d_lambda.view(), d_dl.view(), d_scale.view().data, 1,
                              workspace.data());
        // scale dl is below 45 and its rounding moves the sigmoid by a quarter of it, where it is not flat: below 4.
        require_close(d_dl.view(), of_dl, 4 * kAbsolute, kRelative);
        require_close(d_scale.view(), added(before, of_scale), 4 * sum_bound(rows), 0);
        d_dl.require_guards();
        d_scale.require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix in_place = d_lambda;
            TestMatrix again = before;
            level_scales_backward(scale.view().data, dl.view(), in_place.view(), in_place.view(), again.view().data,
                                  threads, workspace.data());
            require_equal(in_place, d_dl);
            require_equal(again, d_scale);
        }
    }
}

TEST_CASE("Gradients of scale_heads and add_skip are the products that they are") {
    const bool per_head = GENERATE(true, false);
    const std::int64_t d_count = per_head ? kHeads : kHeads * kDim;
    const TestMatrix d = TestMatrix::normal(1, d_count, 2);
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(d_count));
    for (const std::int64_t rows : {0, 1, 17, 65, 300}) {
        const TestMatrix x = TestMatrix::normal(rows, kHeads * kDim, 10 + static_cast<std::uint32_t>(rows));
        const TestMatrix dy = TestMatrix::normal(rows, kHeads * kDim, 20 + static_cast<std::uint32_t>(rows));
        const TestMatrix factor = TestMatrix::normal(rows, kHeads, 30 + static_cast<std::uint32_t>(rows));
        const TestMatrix d_before = TestMatrix::normal(1, d_count, 3);
        std::vector<double> of_scaled;
        std::vector<double> of_skipped;
        std::vector<double> of_factor(static_cast<std::size_t>(rows * kHeads), 0.0);
        std::vector<double> of_d(static_cast<std::size_t>(d_count), 0.0);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < kHeads * kDim; ++c) {
                const double product = static_cast<double>(dy.at(r, c)) * x.at(r, c);
                const std::int64_t entry = per_head ? c / kDim : c;
                of_scaled.push_back(static_cast<double>(dy.at(r, c)) * factor.at(r, c / kDim));
                of_skipped.push_back(static_cast<double>(dy.at(r, c)) * d.at(0, entry));
                of_factor[r * kHeads + c / kDim] += product;
                of_d[entry] += product;
            }
        }
        // A head's dot product of kDim terms below 25: lanes of two and a tree of four.
        const double dot_bound = kDim * 2 * 8 * kEps / 2;
        TestMatrix scaled(rows, kHeads * kDim);
        TestMatrix d_factor(rows, kHeads);
        scale_heads_backward(x.view(), factor.view(), dy.view(), scaled.view(), false, d_factor.view(), 2);
        require_close(scaled.view(), of_scaled, 0, kEps / 2);
        require_close(d_factor.view(), of_factor, dot_bound, 0);
        TestMatrix sum = x;
        scale_heads_backward(x.view(), factor.view(), dy.view(), sum.view(), true, d_factor.view(), 3);
        std::vector<double> of_sum = of_scaled;
        const std::vector<double> xs = x.doubles();
        for (std::size_t i = 0; i < of_sum.size(); ++i) of_sum[i] += xs[i];
        require_close(sum.view(), of_sum, 0, kEps / 2);
        TestMatrix in_place = dy;
        scale_heads_backward(x.view(), factor.view(), in_place.view(), in_place.view(), false, d_factor.view(), 1);
        require_equal(in_place, scaled);

        TestMatrix skipped(rows, kHeads * kDim);
        TestMatrix d_d = d_before;
        add_skip_backward(d.view().data, d_count, x.view(), dy.view(), skipped.view(), d_d.view().data, 1,
                          workspace.data());
        require_close(skipped.view(), of_skipped, 0, kEps / 2);
        require_close(d_d.view(), added(d_before, of_d), static_cast<double>(rows + 1) * dot_bound, kEps);
        for (const TestMatrix* matrix : {&scaled, &d_factor, &sum, &skipped, &d_d}) matrix->require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix again = d_before;
            add_skip_backward(d.view().data, d_count, x.view(), dy.view(), skipped.view(), again.view().data, threads,
                              workspace.data());
            require_equal(again, d_d);
        }
    }
}

TEST_CASE("Gate parameters over many rows lose nothing to the number of rows") {
    constexpr std::int64_t kRows = 200000;
    std::vector<float> x(kRows, 1.0F);
    std::vector<float> dy(kRows, 0.1F);
    const float d = 1;
    float d_d = 0;
    std::vector<float> workspace = poisoned(gates_backward_workspace_floats(1));
    add_skip_backward(&d, 1, {x.data(), kRows, 1}, {dy.data(), kRows, 1}, {x.data(), kRows, 1}, &d_d, 2,
                      workspace.data());
    const double exact = static_cast<double>(0.1F) * kRows;
    CHECK(std::abs(static_cast<double>(d_d) - exact) <= kEps * exact);
}

TEST_CASE("Gradients of the gates name shapes that differ") {
    TestMatrix a = TestMatrix::normal(2, 3, 1);
    TestMatrix b = TestMatrix::normal(2, 4, 1);
    float* data = a.view().data;
    CHECK_THROWS_WITH(
        mamba2_gates_backward({data, data, 0, 1}, a.view(), b.view(), a.view(), a.view(), data, data, 1, data),
        Catch::Contains("[2, 3]") && Catch::Contains("[2, 4]"));
    CHECK_THROWS_AS(delta_gates_backward({data, data, false}, a.view(), a.view(), a.view(), b.view(), a.view(),
                                         a.view(), data, data, 1, data),
                    InternalError);
    CHECK_THROWS_AS(level_scales_backward(data, a.view(), b.view(), a.view(), data, 1, data), InternalError);
    CHECK_THROWS_AS(scale_heads_backward(b.view(), a.view(), b.view(), b.view(), false, a.view(), 1), InternalError);
    CHECK_THROWS_AS(add_skip_backward(data, 3, b.view(), b.view(), b.view(), data, 1, data), InternalError);
}
