// Gradients of the gates on the GPU against the double references, and the optimiser's step against the CPU's bits.
#include <cstring>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/backward/gates.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/cuda/backward/device_gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kHeads = 37;
constexpr std::int64_t kStride = 40;
// Below 8 * 5 * 16 with 24 roundings where raw + bias moves the slope: as kernels' tests on the CPU.
constexpr double kAbsolute = 8 * 5 * 32 * kUnit;

struct Rows {
    Rows(std::int64_t rows, std::uint64_t seed, float scale, const cuda::Stream& stream)
        : values(random_values(rows * kStride, seed, Operand::kFp32, scale)),
          device(Operand::kFp32, values, stream.get()) {}
    [[nodiscard]] cuda::GateRows view() { return {device.floats(), kStride}; }
    [[nodiscard]] double at(std::int64_t r, std::int64_t h) const { return values[r * kStride + h]; }
    std::vector<float> values;
    DeviceRows device;
};

struct Want {
    std::vector<double> raw;
    std::vector<double> bias = std::vector<double>(kHeads, 0.0);
    std::vector<double> a_log = std::vector<double>(kHeads, 0.0);

    void add(std::int64_t h, const reference::GateGradients& one) {
        raw.push_back(one.raw);
        bias[h] += one.raw;
        a_log[h] += one.a_log;
    }
};

double sum_bound(std::int64_t rows) {
    return static_cast<double>(rows + 1) * kAbsolute / 2;
}

void check_target(DeviceRows& target, const std::vector<double>& want, Operand operand, double absolute) {
    const std::vector<float> got = target.download();
    CHECK(worst_ratio(columns_of(got, kStride, 0, kHeads), want, absolute, relative_bound(operand, 24)) <= 1);
    CHECK(poison_left(got, kStride, 0, kHeads));
}

}  // namespace

TEST_CASE("GPU gradients of the gates equal the double references") {
    const cuda::Stream stream;
    const std::vector<float> bias = random_values(kHeads, 1);
    const std::vector<float> a_log = random_values(kHeads, 2, Operand::kFp32, 0.5F);
    DeviceRows dev_bias(Operand::kFp32, bias, stream.get());
    DeviceRows dev_a_log(Operand::kFp32, a_log, stream.get());
    cuda::DeviceBuffer<unsigned char> workspace(static_cast<std::int64_t>(cuda::gates_backward_workspace_bytes(kHeads)),
                                                stream.get());
    for (const Operand operand : kOperands) {
        for (const std::int64_t rows : {1, 65, 300}) {
            Rows raw(rows, 3, 2.0F, stream);
            Rows b(rows, 4, 4.0F, stream);
            Rows d_step(rows, 5, 1.0F, stream);
            Rows d_decay(rows, 6, 1.0F, stream);
            Want mamba2;
            Want delta;
            std::vector<double> of_b;
            std::vector<double> of_dl;
            std::vector<double> of_scale(kHeads, 0.0);
            for (std::int64_t r = 0; r < rows; ++r) {
                for (std::int64_t h = 0; h < kHeads; ++h) {
                    const double sum = raw.values[r * kStride + h] + bias[h];  // fp32's decides whether dt is clamped
                    mamba2.add(h, reference::mamba2_gate_backward(sum, 0, a_log[h], static_cast<double>(0.4F),
                                                                  static_cast<double>(1.1F), d_step.at(r, h),
                                                                  d_decay.at(r, h)));
                    delta.add(h, reference::delta_gate_backward(raw.at(r, h), bias[h], a_log[h], d_decay.at(r, h)));
                    const double x = b.at(r, h);
                    of_b.push_back(2 * d_step.at(r, h) * reference::sigmoid(x) * reference::sigmoid(-x));
                    const double passed = d_step.at(r, h) * reference::sigmoid(static_cast<double>(bias[h]) * x);
                    of_dl.push_back(passed * static_cast<double>(bias[h]));
                    of_scale[h] += passed * x;
                }
            }
            INFO(operand_name(operand) << ", " << rows << " rows");
            {
                DeviceRows d_raw(operand, rows * kStride, stream.get());
                DeviceRows d_bias(Operand::kFp32, bias, stream.get());
                DeviceRows d_a_log(Operand::kFp32, a_log, stream.get());
                cuda::mamba2_gates_backward(operand, {dev_bias.floats(), dev_a_log.floats(), 0.4F, 1.1F}, raw.view(),
                                            d_step.view(), d_decay.view(), {d_raw.data(), kStride}, d_bias.floats(),
                                            d_a_log.floats(), rows, kHeads, workspace.data(), stream.get());
                check_target(d_raw, mamba2.raw, operand, kAbsolute);
                CHECK(worst_ratio(d_bias.download(), added(bias, mamba2.bias), sum_bound(rows), 0) <= 1);
                CHECK(worst_ratio(d_a_log.download(), added(a_log, mamba2.a_log), sum_bound(rows), 0) <= 1);
            }
            {
                DeviceRows d_a(operand, rows * kStride, stream.get());
                DeviceRows d_b(operand, rows * kStride, stream.get());
                DeviceRows d_bias(Operand::kFp32, bias, stream.get());
                DeviceRows d_a_log(Operand::kFp32, a_log, stream.get());
                cuda::delta_gates_backward(operand, {dev_bias.floats(), dev_a_log.floats(), true}, raw.view(), b.view(),
                                           d_decay.view(), d_step.view(), {d_a.data(), kStride}, {d_b.data(), kStride},
                                           d_bias.floats(), d_a_log.floats(), rows, kHeads, workspace.data(),
                                           stream.get());
                check_target(d_a, delta.raw, operand, kAbsolute);
                check_target(d_b, of_b, operand, 1e-9);
                CHECK(worst_ratio(d_bias.download(), added(bias, delta.bias), sum_bound(rows), 0) <= 1);
                CHECK(worst_ratio(d_a_log.download(), added(a_log, delta.a_log), sum_bound(rows), 0) <= 1);
            }
            DeviceRows d_dl(operand, rows * kStride, stream.get());
            DeviceRows d_scale(Operand::kFp32, bias, stream.get());
            cuda::level_scales_backward(operand, dev_bias.floats(), b.view(), d_step.view(), {d_dl.data(), kStride},
                                        d_scale.floats(), rows, kHeads, workspace.data(), stream.get());
            check_target(d_dl, of_dl, operand, 4 * kAbsolute);
            CHECK(worst_ratio(d_scale.download(), added(bias, of_scale), 4 * sum_bound(rows), 0) <= 1);
        }
    }
}

TEST_CASE("GPU gradients of decays of one and of minus infinity are zero") {
    const cuda::Stream stream;
    const std::int64_t rows = 65;
    const std::vector<float> a_log = {-INFINITY, 100.0F, 0.0F, INFINITY};
    const std::vector<float> zeros(4, 0.0F);
    DeviceRows dev_a_log(Operand::kFp32, a_log, stream.get());
    DeviceRows dev_bias(Operand::kFp32, zeros, stream.get());
    DeviceRows d_bias(Operand::kFp32, zeros, stream.get());
    DeviceRows d_a_log(Operand::kFp32, zeros, stream.get());
    Rows raw(rows, 3, 1.0F, stream);
    Rows ones(rows, 5, 1.0F, stream);
    DeviceRows d_a(Operand::kFp32, rows * kStride, stream.get());
    DeviceRows d_b(Operand::kFp32, rows * kStride, stream.get());
    cuda::DeviceBuffer<unsigned char> workspace(static_cast<std::int64_t>(cuda::gates_backward_workspace_bytes(4)),
                                                stream.get());
    cuda::delta_gates_backward(Operand::kFp32, {dev_bias.floats(), dev_a_log.floats(), false}, raw.view(), raw.view(),
                               ones.view(), ones.view(), {d_a.data(), kStride}, {d_b.data(), kStride}, d_bias.floats(),
                               d_a_log.floats(), rows, 4, workspace.data(), stream.get());
    const std::vector<float> got = d_a.download();
    for (const std::int64_t h : {0, 1, 3}) {
        for (std::int64_t r = 0; r < rows; ++r) REQUIRE(got[r * kStride + h] == 0.0F);
        CHECK(d_bias.download()[h] == 0.0F);
        CHECK(d_a_log.download()[h] == 0.0F);
    }
    CHECK(d_a_log.download()[2] != 0.0F);
}

TEST_CASE("GPU scale_heads_backward equals its definition") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t head_dim : {5, 64}) {
            const std::int64_t rows = 33;
            const std::int64_t heads = 7;
            const std::int64_t width = heads * head_dim;
            const std::vector<float> x = random_values(rows * width, 1, operand);
            const std::vector<float> d_v = random_values(rows * width, 2);
            const std::vector<float> before = random_values(rows * width, 3);
            const std::vector<float> factor = random_values(rows * heads, 4);
            std::vector<double> of_x = doubles(before);
            std::vector<double> of_factor(factor.size(), 0.0);
            for (std::size_t i = 0; i < x.size(); ++i) {
                const std::size_t head = i / static_cast<std::size_t>(head_dim);
                of_x[i] += static_cast<double>(d_v[i]) * static_cast<double>(factor[head]);
                of_factor[head] += static_cast<double>(d_v[i]) * static_cast<double>(x[i]);
            }
            DeviceRows dev_x(operand, x, stream.get());
            DeviceRows dev_d_v(Operand::kFp32, d_v, stream.get());
            DeviceRows dev_factor(Operand::kFp32, factor, stream.get());
            DeviceRows d_x(Operand::kFp32, before, stream.get());
            DeviceRows d_factor(Operand::kFp32, rows * heads, stream.get());
            cuda::ScaleHeadsBackward call;
            call.x = dev_x.data();
            call.factor = dev_factor.floats();
            call.d_v = dev_d_v.floats();
            call.d_x = d_x.floats();
            call.d_factor = d_factor.floats();
            call.accumulate = true;
            call.x_stride = call.d_v_stride = call.d_x_stride = width;
            call.factor_stride = call.d_factor_stride = heads;
            call.rows = rows;
            call.heads = heads;
            call.head_dim = head_dim;
            cuda::scale_heads_backward(operand, call, stream.get());
            CHECK(worst_ratio(d_x.download(), of_x, 1e-9, kUnit) <= 1);
            // Chains of two and a tree of five, of terms below 16.
            CHECK(worst_ratio(d_factor.download(), of_factor, 8 * 64 * 2 * kUnit, 0) <= 1);
        }
    }
}

TEST_CASE("GPU AdamW has the bits of the CPU and its norm that of double sums") {
    const cuda::Stream stream;
    const std::int64_t size = 40001;
    const AdamW hyper{3e-3, 0.9, 0.95, 1e-8, 0.1};
    std::vector<float> values = random_values(size, 1);
    std::vector<float> first(values.size(), 0.0F);
    std::vector<float> second(values.size(), 0.0F);
    DeviceRows dev_values(Operand::kFp32, values, stream.get());
    DeviceRows dev_first(Operand::kFp32, first, stream.get());
    DeviceRows dev_second(Operand::kFp32, second, stream.get());
    for (std::int64_t step = 1; step <= 5; ++step) {
        const std::vector<float> gradient =
            random_values(size, 10 + static_cast<std::uint64_t>(step), Operand::kFp32, 1e-3F);
        DeviceRows dev_gradient(Operand::kFp32, gradient, stream.get());
        const bool decayed = step % 2 == 0;
        adamw_step(hyper, step, 0.3F, {size, gradient.data(), values.data(), first.data(), second.data(), decayed}, 1);
        cuda::adamw_step(
            hyper, step, 0.3F,
            {size, dev_gradient.floats(), dev_values.floats(), dev_first.floats(), dev_second.floats(), decayed},
            stream.get());
    }
    CHECK(dev_values.download() == values);
    CHECK(dev_first.download() == first);
    CHECK(dev_second.download() == second);

    cuda::DeviceBuffer<double> norm(1, stream.get());
    cuda::DeviceBuffer<unsigned char> workspace(static_cast<std::int64_t>(cuda::squared_norm_workspace_bytes()),
                                                stream.get());
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{257}, size}) {
        cuda::squared_norm(dev_values.floats(), count, norm.data(), workspace.data(), stream.get());
        double got = -1;
        FENWICK_CUDA_CHECK(cudaMemcpyAsync(&got, norm.data(), sizeof(got), cudaMemcpyDeviceToHost, stream.get()));
        stream.synchronize();
        const double want = squared_norm(values.data(), count, 1);
        CHECK(std::fabs(got - want) <= 1e-12 * want);
    }
}
