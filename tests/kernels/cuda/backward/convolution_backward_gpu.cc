// Gradients of the short convolution on the GPU against the double reference, and of packed documents against each
// alone.
#include "kernels/cuda/backward/convolution.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/cuda/backward/device_gradients.h"

using namespace fenwick;
using namespace fenwick::test;

TEST_CASE("GPU convolution gradients equal the double reference with halo and packed documents") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : {45, 64}) {
            for (const std::int64_t width : {1, 2, 4, 7, 8}) {
                for (const std::int64_t rows : {1, 3, 70, 300}) {
                    const bool silu = width != 2;
                    const bool with_halo = width != 4;
                    const std::int64_t before = width - 1;
                    const std::int64_t stride = channels + 4;
                    const std::vector<float> x = random_values(rows * stride, 5, operand);
                    const std::vector<float> halo = random_values(before * channels, 6, operand);
                    const std::vector<float> weight = random_values(channels * width, 7);
                    const std::vector<float> bias = random_values(channels, 8);
                    const std::vector<float> dy = random_values(rows * stride, 9);
                    const std::vector<double> xs = doubles(columns_of(x, stride, 0, channels));
                    const std::vector<double> halos = doubles(halo);
                    const std::vector<double> weights = doubles(weight);
                    const std::vector<double> dys = doubles(columns_of(dy, stride, 0, channels));
                    const reference::ConvolutionGradients want = reference::causal_convolution_backward(
                        {weights.data(), channels, width}, doubles(bias),
                        with_halo ? MatrixView<const double>(halos.data(), before, channels)
                                  : MatrixView<const double>(),
                        {xs.data(), rows, channels}, silu, {dys.data(), rows, channels});
                    DeviceRows dev_x(operand, x, stream.get());
                    DeviceRows dev_halo(operand, halo, stream.get());
                    DeviceRows dev_weight(Operand::kFp32, weight, stream.get());
                    DeviceRows dev_bias(Operand::kFp32, bias, stream.get());
                    DeviceRows dev_dy(Operand::kFp32, dy, stream.get());
                    DeviceRows dx(operand, rows * stride, stream.get());
                    DeviceRows d_halo(Operand::kFp32, before * channels, stream.get());
                    DeviceRows d_weight(Operand::kFp32, weight, stream.get());
                    DeviceRows d_bias(Operand::kFp32, bias, stream.get());
                    cuda::ConvolutionBackward call;
                    call.convolution = {dev_weight.floats(), dev_bias.floats(), channels, width, silu};
                    call.halo = with_halo && before > 0 ? dev_halo.data() : nullptr;
                    call.x = dev_x.data();
                    call.dy = dev_dy.floats();
                    call.dx = dx.data();
                    call.d_halo = before > 0 ? d_halo.floats() : nullptr;
                    call.d_weight = d_weight.floats();
                    call.d_bias = d_bias.floats();
                    call.x_stride = call.dy_stride = call.dx_stride = stride;
                    call.rows = rows;
                    Bytes workspace =
                        workspace_of(cuda::causal_convolution_backward_workspace_bytes(channels, width), stream);
                    cuda::causal_convolution_backward(operand, call, workspace.data(), stream.get());
                    INFO(operand_name(operand)
                         << ", width " << width << ", channels " << channels << ", rows " << rows);
                    // A sum before SiLU errs by 9 roundings of 8 terms below 16; that moves the slope by half of it.
                    const double slope = 9 * 128 * kUnit / 2 + 16 * kUnit;
                    const std::vector<float> got = dx.download();
                    CHECK(worst_ratio(columns_of(got, stride, 0, channels), want.x, 8 * 16 * slope,
                                      relative_bound(operand, 16)) <= 1);
                    CHECK(poison_left(got, stride, 0, channels));
                    if (before > 0) CHECK(worst_ratio(d_halo.download(), want.halo, 8 * 16 * slope, 16 * kUnit) <= 1);
                    CHECK(worst_ratio(d_weight.download(), added(weight, want.weight),
                                      static_cast<double>(rows + 1) * 2 * slope, 8 * kUnit) <= 1);
                    CHECK(worst_ratio(d_bias.download(), added(bias, want.bias),
                                      static_cast<double>(rows + 1) * 2 * slope, 8 * kUnit) <= 1);
                }
            }
        }
    }
}

TEST_CASE("GPU convolution gradients of packed documents are those of each alone") {
    const cuda::Stream stream;
    const std::int64_t channels = 40;
    const std::int64_t width = 4;
    const std::vector<std::int64_t> lengths = {1, 2, 30, 3, 65};
    std::vector<std::int32_t> positions;
    for (const std::int64_t length : lengths) {
        for (std::int64_t t = 0; t < length; ++t) positions.push_back(static_cast<std::int32_t>(t));
    }
    const auto rows = static_cast<std::int64_t>(positions.size());
    const std::vector<float> x = random_values(rows * channels, 1);
    const std::vector<float> dy = random_values(rows * channels, 2);
    const std::vector<float> weight = random_values(channels * width, 3);
    const std::vector<double> xs = doubles(x);
    const std::vector<double> dys = doubles(dy);
    const std::vector<double> weights = doubles(weight);
    std::vector<double> want_x;
    std::vector<double> want_weight(weights.size(), 0.0);
    std::int64_t first = 0;
    for (const std::int64_t length : lengths) {
        const reference::ConvolutionGradients one = reference::causal_convolution_backward(
            {weights.data(), channels, width}, {}, {}, {xs.data() + first * channels, length, channels}, true,
            {dys.data() + first * channels, length, channels});
        want_x.insert(want_x.end(), one.x.begin(), one.x.end());
        for (std::size_t i = 0; i < want_weight.size(); ++i) want_weight[i] += one.weight[i];
        first += length;
    }
    DeviceRows dev_x(Operand::kFp32, x, stream.get());
    DeviceRows dev_weight(Operand::kFp32, weight, stream.get());
    DeviceRows dev_dy(Operand::kFp32, dy, stream.get());
    DeviceRows dx(Operand::kFp32, rows * channels, stream.get());
    DeviceRows d_weight(Operand::kFp32, weight, stream.get());
    cuda::DeviceBuffer<std::int32_t> dev_positions(rows, stream.get());
    FENWICK_CUDA_CHECK(cudaMemcpyAsync(dev_positions.data(), positions.data(), dev_positions.bytes(),
                                       cudaMemcpyHostToDevice, stream.get()));
    cuda::ConvolutionBackward call;
    call.convolution = {dev_weight.floats(), nullptr, channels, width, true};
    call.x = dev_x.data();
    call.positions = dev_positions.data();
    call.dy = dev_dy.floats();
    call.dx = dx.data();
    call.d_weight = d_weight.floats();
    call.x_stride = call.dy_stride = call.dx_stride = channels;
    call.rows = rows;
    Bytes workspace = workspace_of(cuda::causal_convolution_backward_workspace_bytes(channels, width), stream);
    cuda::causal_convolution_backward(Operand::kFp32, call, workspace.data(), stream.get());
    const double slope = 5 * 64 * kUnit / 2 + 16 * kUnit;
    CHECK(worst_ratio(dx.download(), want_x, 4 * 16 * slope, 16 * kUnit) <= 1);
    CHECK(worst_ratio(d_weight.download(), added(weight, want_weight), 100 * 2 * slope, 8 * kUnit) <= 1);
}
