// Gradients of the row-wise GPU kernels against the double references.
#include "kernels/cuda/backward/activations.h"
#include "kernels/cuda/backward/bias.h"
#include "kernels/cuda/backward/embedding.h"
#include "kernels/cuda/backward/gates.h"
#include "kernels/cuda/backward/norm.h"
#include "kernels/cuda/backward/read_out.h"
#include "kernels/reference/rowwise.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/cuda/backward/device_gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

// Below a slice, one row more than a slice's least, several slices.
constexpr std::int64_t kRowCounts[] = {1, 5, 65, 300};

}  // namespace

TEST_CASE("GPU swiglu_backward equals the double reference also in place") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t columns : {45, 64}) {
            const std::int64_t rows = 33;
            const std::int64_t stride = columns + 4;
            const std::vector<float> gate = random_values(rows * stride, 1, operand, 3.0F);
            const std::vector<float> up = random_values(rows * stride, 2, operand);
            const std::vector<float> dy = random_values(rows * stride, 3, operand);
            const std::vector<double> gates = doubles(columns_of(gate, stride, 0, columns));
            const std::vector<double> ups = doubles(columns_of(up, stride, 0, columns));
            const reference::SwigluGradients want = reference::swiglu_backward(
                matrix(gates, rows), matrix(ups, rows), matrix(doubles(columns_of(dy, stride, 0, columns)), rows));
            DeviceRows dev_gate(operand, gate, stream.get());
            DeviceRows dev_up(operand, up, stream.get());
            DeviceRows dev_dy(operand, dy, stream.get());
            cuda::SwigluBackward call;
            call.gate = call.d_gate = dev_gate.data();
            call.up = call.d_up = dev_up.data();
            call.dy = call.y = dev_dy.data();
            call.stride = call.d_stride = call.y_stride = stride;
            call.rows = rows;
            call.columns = columns;
            cuda::swiglu_backward(operand, call, stream.get());
            const auto check = [&](DeviceRows& device, const std::vector<double>& expected, double absolute) {
                const std::vector<float> got = columns_of(device.download(), stride, 0, columns);
                CHECK(worst_ratio(got, expected, absolute, relative_bound(operand, 20)) <= 1);
            };
            INFO(operand_name(operand) << ", " << columns << " columns");
            check(dev_gate, want.gate, 16 * 8 * kUnit);  // the slope's root: 8 roundings of |dy up| below 16
            check(dev_up, want.up, 1e-9);
            check(dev_dy, reference::swiglu(matrix(gates, rows), matrix(ups, rows)), 1e-9);
        }
    }
}

TEST_CASE("GPU rms_norm_backward equals the double reference and adds") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : {45, 64, 1536}) {
            for (const std::int64_t rows : kRowCounts) {
                const std::vector<float> x = random_values(rows * channels, 1);
                const std::vector<float> weight = random_values(channels, 2);
                const std::vector<float> dy = random_values(rows * channels, 3, operand);
                const std::vector<float> before = random_values(rows * channels, 4);
                const std::vector<float> weight_before = random_values(channels, 5);
                const std::vector<double> xs = doubles(x);
                const std::vector<double> dys = doubles(dy);
                const reference::NormGradients want = reference::group_rms_norm_backward(
                    matrix(xs, rows), doubles(weight), channels, 1e-5, matrix(dys, rows));
                DeviceRows dev_x(Operand::kFp32, x, stream.get());
                DeviceRows dev_weight(Operand::kFp32, weight, stream.get());
                DeviceRows dev_dy(operand, dy, stream.get());
                Bytes workspace = workspace_of(cuda::rms_norm_backward_workspace_bytes(rows, channels), stream);
                for (const bool accumulate : {true, false}) {
                    DeviceRows dx(Operand::kFp32, before, stream.get());
                    DeviceRows d_weight(Operand::kFp32, weight_before, stream.get());
                    cuda::RmsNormBackward call;
                    call.x = dev_x.floats();
                    call.weight = dev_weight.floats();
                    call.eps = 1e-5F;
                    call.dy_operand = operand;
                    call.dy = dev_dy.data();
                    call.dx = dx.floats();
                    call.accumulate = accumulate;
                    call.d_weight = d_weight.floats();
                    call.rows = rows;
                    call.channels = channels;
                    cuda::rms_norm_backward(call, workspace.data(), stream.get());
                    INFO(operand_name(operand) << ", " << channels << " channels, " << rows << " rows");
                    // Sums in chains of n / 32 or n / 256 * 4, a tree of 5 and 8 warps: below 64 roundings of what
                    // is below 2 * 5 * 4, and dx itself below 40.
                    CHECK(worst_ratio(dx.download(), accumulate ? added(before, want.x) : want.x, 80 * 40 * kUnit, 0) <=
                          1);
                    // Terms below 25 with 64 roundings each, half on average of one row.
                    CHECK(worst_ratio(d_weight.download(), added(weight_before, want.weight),
                                      static_cast<double>(rows + 1) * 2 * 64 * kUnit, 4 * kUnit) <= 1);
                }
            }
        }
    }
}

TEST_CASE("GPU l2_norm_backward equals the double reference in strided rows") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t head_dim : {9, 64, 256}) {
            const std::int64_t rows = 65;
            const std::int64_t width = 3 * head_dim;
            const std::int64_t stride = width + 4;
            const std::vector<float> x = random_values(rows * stride, 1, operand);
            const std::vector<float> dy = random_values(rows * stride, 2);
            const std::vector<double> xs = doubles(columns_of(x, stride, 0, width));
            const std::vector<double> dys = doubles(columns_of(dy, stride, 0, width));
            const std::vector<double> want =
                reference::l2_norm_backward(matrix(xs, rows), head_dim, 1e-6, 0.25, matrix(dys, rows));
            DeviceRows dev_x(operand, x, stream.get());
            DeviceRows dev_dy(Operand::kFp32, dy, stream.get());
            Bytes workspace = workspace_of(cuda::l2_norm_backward_workspace_bytes(rows, 3), stream);
            cuda::L2NormBackward call;
            call.x = dev_x.data();
            call.dy = call.dx = dev_dy.floats();
            call.x_stride = call.dy_stride = stride;
            call.rows = rows;
            call.heads = 3;
            call.head_dim = head_dim;
            call.eps = 1e-6F;
            call.scale = 0.25F;
            cuda::l2_norm_backward(operand, call, workspace.data(), stream.get());
            INFO(operand_name(operand) << ", head_dim " << head_dim);
            const std::vector<float> all = dev_dy.download();
            // scale / |x| is below 1 here; the dot product of 256 terms below 16 in chains of 8 and a tree.
            CHECK(worst_ratio(columns_of(all, stride, 0, width), want, 40 * 16 * kUnit, 0) <= 1);
            CHECK(columns_of(all, stride, width, 4) == columns_of(dy, stride, width, 4));
        }
    }
}

TEST_CASE("GPU read_out_backward equals the double reference in every form") {
    const cuda::Stream stream;
    struct Form {
        bool skip, gate, norm, before;
        std::int64_t group;
    };
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : {45, 256, 1536}) {
            const std::int64_t small_group = channels == 45 ? 9 : 64;
            for (const Form& form :
                 {Form{true, true, true, false, channels}, Form{true, true, true, true, channels},
                  Form{false, true, true, true, small_group}, Form{false, false, true, false, small_group},
                  Form{true, true, false, false, channels}}) {
                const std::int64_t rows = 70;
                const std::int64_t stride = channels + 8;
                const std::int64_t heads = channels / small_group;
                const std::vector<float> o = random_values(rows * channels, 17, operand);
                const std::vector<float> x = random_values(rows * channels, 18, operand);
                const std::vector<float> z = random_values(rows * channels, 19, operand);
                const std::vector<float> dy = random_values(rows * channels, 20, operand);
                const std::vector<float> skip = random_values(heads, 21);
                const std::vector<float> weight = random_values(form.group, 22);
                DeviceRows dev_o(operand, o, stream.get());
                DeviceRows dev_x(operand, x, stream.get());
                DeviceRows dev_z(operand, z, stream.get());
                DeviceRows dev_dy(operand, dy, stream.get());
                DeviceRows dev_skip(Operand::kFp32, skip, stream.get());
                DeviceRows dev_weight(Operand::kFp32, weight, stream.get());
                DeviceRows d_x(Operand::kFp32, rows * stride, stream.get());
                DeviceRows d_gate(operand, rows * stride, stream.get());
                DeviceRows d_weight(Operand::kFp32, weight, stream.get());
                DeviceRows d_skip(Operand::kFp32, skip, stream.get());
                cuda::ReadOutBackward call;
                call.forward.o = dev_o.data();
                if (form.skip) call.forward.x = dev_x.data();
                if (form.gate) call.forward.gate = dev_z.data();
                if (form.norm) call.forward.weight = dev_weight.floats();
                call.forward.skip = dev_skip.floats();
                call.forward.x_stride = call.forward.gate_stride = call.forward.channels = channels;
                call.forward.rows = rows;
                call.forward.skip_channels = small_group;
                call.forward.group_size = call.forward.weight_period = form.group;
                call.forward.eps = 1e-5F;
                call.forward.norm_before_gate = form.before;
                call.dy = call.d_o = dev_dy.data();
                call.y = dev_o.data();
                call.d_x = d_x.floats();
                call.d_gate = d_gate.data();
                call.d_weight = d_weight.floats();
                call.d_skip = d_skip.floats();
                call.d_x_stride = call.d_gate_stride = stride;
                Bytes workspace = workspace_of(cuda::read_out_backward_workspace_bytes(call.forward), stream);
                cuda::read_out_backward(operand, call, workspace.data(), stream.get());

                std::vector<double> v = doubles(o);
                for (std::size_t i = 0; form.skip && i < v.size(); ++i) {
                    const std::int64_t c = static_cast<std::int64_t>(i) % channels;
                    v[i] += static_cast<double>(skip[c / small_group]) * static_cast<double>(x[i]);
                }
                const std::vector<double> zs = doubles(z);
                const std::vector<double> dys = doubles(dy);
                const std::vector<double> ws = doubles(weight);
                reference::NormGradients want;
                std::vector<double> y;
                if (!form.norm) {
                    const reference::SwigluGradients gates =
                        reference::swiglu_backward(matrix(zs, rows), matrix(v, rows), matrix(dys, rows));
                    want.x = gates.up;
                    want.gate = gates.gate;
                    y = reference::swiglu(matrix(zs, rows), matrix(v, rows));
                } else if (form.gate) {
                    want = reference::gated_rms_norm_backward(matrix(v, rows), matrix(zs, rows), ws, form.group, 1e-5,
                                                              form.before, matrix(dys, rows));
                    y = reference::gated_rms_norm(matrix(v, rows), matrix(zs, rows), ws, form.group, 1e-5, form.before);
                } else {
                    want = reference::group_rms_norm_backward(matrix(v, rows), ws, form.group, 1e-5, matrix(dys, rows));
                    y = reference::group_rms_norm(matrix(v, rows), ws, form.group, 1e-5);
                }
                INFO(operand_name(operand) << ", " << channels << " channels, groups of " << form.group << ", norm "
                                           << form.norm << ", gate " << form.gate << ", before " << form.before);
                // Sums as in rms_norm; elements below 4 * 4 * 4 * 4, whose parts cancel.
                const double absolute = 80 * 256 * kUnit;
                const double relative = relative_bound(operand, 24);
                CHECK(worst_ratio(dev_dy.download(), want.x, absolute, relative) <= 1);
                CHECK(worst_ratio(dev_o.download(), y, absolute, relative) <= 1);
                if (form.gate) {
                    const std::vector<float> got = d_gate.download();
                    CHECK(worst_ratio(columns_of(got, stride, 0, channels), want.gate, absolute, relative) <= 1);
                    CHECK(poison_left(got, stride, 0, channels));
                }
                if (form.norm) {
                    CHECK(worst_ratio(d_weight.download(), added(weight, want.weight),
                                      static_cast<double>(rows) * 4 * 80 * kUnit, 4 * kUnit) <= 1);
                }
                if (!form.skip) continue;
                std::vector<double> of_x = want.x;
                std::vector<double> of_skip(static_cast<std::size_t>(heads), 0.0);
                double terms = 0;
                for (std::size_t i = 0; i < of_x.size(); ++i) {
                    const std::int64_t head = static_cast<std::int64_t>(i) % channels / small_group;
                    of_skip[head] += of_x[i] * static_cast<double>(x[i]);
                    terms += std::fabs(of_x[i] * static_cast<double>(x[i]));
                    of_x[i] *= static_cast<double>(skip[head]);
                }
                const std::vector<float> got = d_x.download();
                CHECK(worst_ratio(columns_of(got, stride, 0, channels), of_x, 4 * absolute, 24 * kUnit) <= 1);
                CHECK(poison_left(got, stride, 0, channels));
                // d_o has been rounded to the operand type: half its last place of every term.
                const double each = terms / static_cast<double>(heads);
                CHECK(worst_ratio(d_skip.download(), added(skip, of_skip),
                                  each * relative_bound(operand, 64) + static_cast<double>(rows) * 4 * absolute,
                                  0) <= 1);
            }
        }
    }
}

TEST_CASE("GPU embed_rows_backward equals the double reference") {
    const cuda::Stream stream;
    for (const std::int64_t hidden : {45, 64}) {
        for (const std::int64_t rows : {1, 7, 300, 5000}) {
            const std::int64_t vocab = 40;
            std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
            for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t * t * 7 % 39);
            const std::vector<float> dy = random_values(rows * hidden, 1);
            const std::vector<float> before = random_values(vocab * hidden, 2);
            const std::vector<double> dys = doubles(dy);
            const std::vector<double> want =
                added(before, reference::embed_rows_backward(vocab, ids.data(), {dys.data(), rows, hidden}));
            DeviceRows dev_dy(Operand::kFp32, dy, stream.get());
            DeviceRows table(Operand::kFp32, before, stream.get());
            cuda::DeviceBuffer<std::int32_t> dev_ids(rows, stream.get());
            FENWICK_CUDA_CHECK(
                cudaMemcpyAsync(dev_ids.data(), ids.data(), dev_ids.bytes(), cudaMemcpyHostToDevice, stream.get()));
            Bytes workspace = workspace_of(cuda::embed_rows_backward_workspace_bytes(rows, vocab), stream);
            cuda::embed_rows_backward(table.floats(), dev_ids.data(), dev_dy.floats(), rows, vocab, hidden,
                                      workspace.data(), stream.get());
            INFO(rows << " rows of " << hidden);
            // Sums, below 64 here, keep what they round off: one rounding of theirs and one of the result.
            CHECK(worst_ratio(table.download(), want, 64 * kUnit, kUnit) <= 1);
        }
    }
}

TEST_CASE("GPU add_bias_backward equals sums of columns in strided rows") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t columns : {45, 64}) {
            const std::int64_t rows = 300;
            const std::int64_t stride = columns + 8;
            const std::vector<float> dy = random_values(rows * stride, 1, operand);
            const std::vector<float> before = random_values(columns, 2);
            std::vector<double> sums(static_cast<std::size_t>(columns), 0.0);
            for (std::int64_t i = 0; i < rows * stride; ++i) {
                if (i % stride < columns) sums[i % stride] += static_cast<double>(dy[i]);
            }
            DeviceRows dev_dy(operand, dy, stream.get());
            DeviceRows d_bias(Operand::kFp32, before, stream.get());
            Bytes workspace = workspace_of(cuda::add_bias_backward_workspace_bytes(columns), stream);
            cuda::add_bias_backward(operand, dev_dy.data(), stride, d_bias.floats(), rows, columns, workspace.data(),
                                    stream.get());
            CHECK(worst_ratio(d_bias.download(), added(before, sums), 64 * kUnit, kUnit) <= 1);
        }
    }
}

TEST_CASE("GPU sums over many rows lose nothing to their number") {
    const cuda::Stream stream;
    const std::int64_t rows = 100000;
    const std::vector<float> dy(static_cast<std::size_t>(rows), 0.1F);
    const double exact = static_cast<double>(0.1F) * static_cast<double>(rows);
    DeviceRows dev_dy(Operand::kFp32, dy, stream.get());
    DeviceRows table(Operand::kFp32, std::vector<float>(1, 0.0F), stream.get());
    cuda::DeviceBuffer<std::int32_t> ids(rows, stream.get());
    FENWICK_CUDA_CHECK(cudaMemsetAsync(ids.data(), 0, ids.bytes(), stream.get()));
    Bytes workspace = workspace_of(cuda::embed_rows_backward_workspace_bytes(rows, 1), stream);
    cuda::embed_rows_backward(table.floats(), ids.data(), dev_dy.floats(), rows, 1, 1, workspace.data(), stream.get());
    CHECK(std::fabs(static_cast<double>(table.download()[0]) - exact) <= 2 * kUnit * exact);

    // lambda = softplus(0 * dl): every term is d_lambda / 2 * dl, exactly.
    DeviceRows zero(Operand::kFp32, std::vector<float>(1, 0.0F), stream.get());
    DeviceRows twos(Operand::kFp32, std::vector<float>(static_cast<std::size_t>(rows), 2.0F), stream.get());
    DeviceRows d_dl(Operand::kFp32, rows, stream.get());
    DeviceRows d_scale(Operand::kFp32, std::vector<float>(1, 0.0F), stream.get());
    Bytes gate_workspace = workspace_of(cuda::gates_backward_workspace_bytes(1), stream);
    cuda::level_scales_backward(Operand::kFp32, zero.floats(), {twos.floats(), 1}, {dev_dy.floats(), 1},
                                {d_dl.data(), 1}, d_scale.floats(), rows, 1, gate_workspace.data(), stream.get());
    CHECK(std::fabs(static_cast<double>(d_scale.download()[0]) - exact) <= 2 * kUnit * exact);
}
