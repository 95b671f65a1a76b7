// Row-wise GPU kernels against the double references; a row's bits do not depend on how many rows there are.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "kernels/cuda/activations.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/read_out.h"
#include "kernels/reference/rowwise.h"
#include "tests/kernels/cuda/device_rows.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr Operand kOperands[] = {Operand::kFp32, Operand::kBf16};
// Around a warp and the convolution's strip of 32 rows; 45 channels cannot be moved in fours.
constexpr std::int64_t kRowCounts[] = {1, 2, 3, 31, 32, 33, 65, 300};
constexpr std::int64_t kChannels[] = {45, 64, 1536};

}  // namespace

TEST_CASE("GPU rms_norm equals the double reference whatever the number of rows") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : kChannels) {
            const std::vector<float> x = random_values(300 * channels, 1);
            const std::vector<float> weight = random_values(channels, 2);
            const std::vector<double> wide = doubles(x);
            const std::vector<double> want =
                reference::group_rms_norm({wide.data(), 300, channels}, doubles(weight), channels, 1e-5);
            DeviceRows dx(Operand::kFp32, x, stream.get());
            DeviceRows dw(Operand::kFp32, weight, stream.get());
            std::vector<float> all;
            for (const std::int64_t rows : {300, 1, 2, 65}) {
                DeviceRows y(operand, rows * channels, stream.get());
                cuda::rms_norm(operand, dx.floats(), dw.floats(), 1e-5F, y.data(), rows, channels, stream.get());
                const std::vector<float> got = y.download();
                if (rows == 300) all = got;
                INFO(operand_name(operand) << ", " << channels << " channels, " << rows << " rows");
                REQUIRE(std::equal(got.begin(), got.end(), all.begin()));
            }
            // Sums of n squares in chains of n / 256 * 4 and a tree of 8; half of it enters the root; 4 roundings more.
            const double roundings = static_cast<double>(channels) / 64 + 14;
            CHECK(worst_ratio(all, want, 1e-7, relative_bound(operand, roundings)) <= 1);
        }
    }
}

TEST_CASE("GPU l2_norm equals the double reference in strided rows") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t head_dim : {9, 64, 256}) {
            const std::int64_t heads = 5;
            const std::int64_t stride = heads * head_dim + 12;
            const std::vector<float> x = random_values(65 * stride, 3, operand);
            DeviceRows dx(operand, x, stream.get());
            cuda::l2_norm(operand, dx.data(), stride, 65, heads, head_dim, 1e-6F, 0.25F, stream.get());
            const std::vector<float> got = dx.download();
            const std::vector<double> wide = doubles(x);
            std::vector<double> want = wide;  // what lies between the rows stays
            const std::vector<double> rows =
                reference::l2_norm({wide.data(), 65, heads * head_dim, stride}, head_dim, 1e-6, 0.25);
            for (std::int64_t r = 0; r < 65; ++r) {
                std::copy_n(rows.begin() + r * heads * head_dim, heads * head_dim, want.begin() + r * stride);
            }
            INFO(operand_name(operand) << ", head_dim " << head_dim);
            CHECK(worst_ratio(got, want, 1e-8, relative_bound(operand, 24)) <= 1);
        }
    }
}

TEST_CASE("GPU convolution with SiLU and v equals the double reference with and without halo") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : {45, 256}) {
            for (const std::int64_t width : {1, 2, 3, 4, 7}) {
                const std::int64_t before = width - 1;
                const std::int64_t head_dim = channels == 45 ? 5 : 16;
                const std::int64_t v_channels = channels == 45 ? 25 : 128;
                const std::int64_t heads = v_channels / head_dim;
                const std::int64_t stride = channels + 8;
                const std::vector<float> x = random_values(300 * stride, 5, operand);
                const std::vector<float> halo = random_values(before * channels, 6, operand);
                const std::vector<float> weight = random_values(channels * width, 7);
                const std::vector<float> bias = random_values(channels, 8);
                std::vector<float> dt = random_values(300 * heads, 9);
                for (float& value : dt) value = std::fabs(value);
                DeviceRows dx(operand, x, stream.get());
                DeviceRows dh(operand, halo, stream.get());
                DeviceRows dw(Operand::kFp32, weight, stream.get());
                DeviceRows db(Operand::kFp32, bias, stream.get());
                DeviceRows ddt(Operand::kFp32, dt, stream.get());
                for (const bool with_halo : {false, true}) {
                    const std::vector<double> wx = doubles(x);
                    const std::vector<double> wh = doubles(halo);
                    const std::vector<double> ww = doubles(weight);
                    const std::vector<double> want = reference::causal_convolution(
                        {ww.data(), channels, width}, doubles(bias),
                        with_halo ? MatrixView<const double>(wh.data(), before, channels) : MatrixView<const double>(),
                        {wx.data(), 300, channels, stride}, true);
                    for (const std::int64_t rows : kRowCounts) {
                        DeviceRows y(operand, rows * channels, stream.get());
                        DeviceRows v(operand, rows * v_channels, stream.get());
                        cuda::ConvolutionCall call;
                        call.convolution = {dw.floats(), db.floats(), channels, width, true};
                        call.halo = with_halo && before > 0 ? dh.data() : nullptr;
                        call.x = dx.data();
                        call.y = y.data();
                        call.x_stride = stride;
                        call.rows = rows;
                        call.v = v.data();
                        call.dt = ddt.floats();
                        call.dt_stride = heads;
                        call.v_channels = v_channels;
                        call.v_head_dim = head_dim;
                        cuda::causal_convolution(operand, call, stream.get());
                        std::vector<double> want_v;
                        for (std::int64_t t = 0; t < rows; ++t) {
                            for (std::int64_t c = 0; c < v_channels; ++c) {
                                want_v.push_back(want[t * channels + c] *
                                                 static_cast<double>(dt[t * heads + c / head_dim]));
                            }
                        }
                        INFO(operand_name(operand) << ", width " << width << ", channels " << channels << ", rows "
                                                   << rows << ", halo " << with_halo);
                        // 8 roundings of terms below 4 * 4 each, before the SiLU, which is 1.1 steep.
                        const double absolute = 10 * 16 * 0x1p-24;
                        const std::vector<double> first(want.begin(), want.begin() + rows * channels);
                        REQUIRE(worst_ratio(y.download(), first, absolute, relative_bound(operand, 8)) <= 1);
                        REQUIRE(worst_ratio(v.download(), want_v, 4 * absolute, relative_bound(operand, 9)) <= 1);
                        if (before == 0) continue;
                        DeviceRows next(operand, before * channels, stream.get());
                        cuda::next_halo(operand, call, next.data(), stream.get());
                        const std::vector<float> got = next.download();
                        for (std::int64_t i = 0; i < before * channels; ++i) {
                            const std::int64_t row = rows - before + i / channels;
                            const float old =
                                with_halo ? halo[(row + before) * channels % (before * channels) + i % channels] : 0;
                            REQUIRE(got[i] == (row >= 0 ? x[row * stride + i % channels] : old));
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("GPU swiglu equals the double reference in place") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t columns : {45, 256}) {
            const std::vector<float> both = random_values(130 * columns, 11, operand, 3.0F);
            DeviceRows rows(operand, both, stream.get());
            void* up = static_cast<char*>(rows.data()) + columns * (operand == Operand::kBf16 ? 2 : 4);
            cuda::swiglu(operand, rows.data(), up, 2 * columns, 65, columns, stream.get());
            std::vector<double> want = doubles(both);
            for (std::int64_t r = 0; r < 65; ++r) {
                for (std::int64_t c = 0; c < columns; ++c) {
                    double& gate = want[r * 2 * columns + c];
                    gate = reference::silu(gate) * want[r * 2 * columns + columns + c];
                }
            }
            CHECK(worst_ratio(rows.download(), want, 1e-9, relative_bound(operand, 10)) <= 1);
        }
    }
}

TEST_CASE("GPU gates equal the double reference and know decays of minus infinity") {
    const cuda::Stream stream;
    const std::int64_t heads = 12;
    const std::int64_t rows = 300;
    const std::int64_t stride = 40;
    std::vector<float> raw = random_values(rows * stride, 13, Operand::kFp32, 3.0F);
    const std::vector<float> bias = random_values(heads, 14);
    std::vector<float> a_log = random_values(heads, 15);
    a_log[3] = -INFINITY;
    DeviceRows draw(Operand::kFp32, raw, stream.get());
    DeviceRows dbias(Operand::kFp32, bias, stream.get());
    DeviceRows dlog(Operand::kFp32, a_log, stream.get());
    DeviceRows decay(Operand::kFp32, rows * heads, stream.get());
    cuda::mamba2_gates({dbias.floats(), dlog.floats(), 0.001F, 5.0F}, draw.floats(), stride, decay.floats(), rows,
                       heads, stream.get());
    cuda::level_scales(dbias.floats(), draw.floats() + heads, stride, rows, heads, stream.get());
    std::vector<double> want = doubles(raw);
    std::vector<double> want_decay;
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t h = 0; h < heads; ++h) {
            const double b = bias[h];
            double& dt = want[r * stride + h];
            // The limit as the kernel has it: 0.001 in fp32.
            dt = reference::time_step(dt, b, static_cast<double>(0.001F), 5.0);
            want_decay.push_back(reference::log_decay(a_log[h], dt));
            double& dl = want[r * stride + heads + h];
            dl = reference::softplus(b * dl);
        }
    }
    // softplus: 3 functions of 2 ulp each; its argument's rounding, up to 16 * 2^-24, adds to the result.
    CHECK(worst_ratio(draw.download(), want, 0x1p-20, 16 * 0x1p-24) <= 1);
    CHECK(worst_ratio(decay.download(), want_decay, 0x1p-16, 24 * 0x1p-24) <= 1);

    for (const bool negative : {false, true}) {
        DeviceRows ab(Operand::kFp32, raw, stream.get());
        cuda::delta_gates({dbias.floats(), dlog.floats(), negative}, ab.floats(), ab.floats() + heads, stride, rows,
                          heads, stream.get());
        std::vector<double> want_ab = doubles(raw);
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t h = 0; h < heads; ++h) {
                double& a = want_ab[r * stride + h];
                a = reference::log_decay(a_log[h], reference::softplus(a + static_cast<double>(bias[h])));
                double& b = want_ab[r * stride + heads + h];
                b = (negative ? 2 : 1) * reference::sigmoid(b);
            }
        }
        CHECK(worst_ratio(ab.download(), want_ab, 0x1p-16, 24 * 0x1p-24) <= 1);
    }
}

TEST_CASE("GPU read_out equals the double reference in every form") {
    const cuda::Stream stream;
    struct Form {
        bool skip, gate, norm, before;
        std::int64_t group;
    };
    for (const Operand operand : kOperands) {
        for (const std::int64_t channels : {45, 256, 3072}) {
            const std::int64_t small_group = channels == 45 ? 9 : 64;
            for (const Form& form :
                 {Form{true, true, true, false, channels}, Form{true, true, true, true, channels},
                  Form{false, true, true, true, small_group}, Form{false, false, true, false, small_group},
                  Form{true, true, false, false, channels}}) {
                const std::int64_t rows = 33;
                const std::vector<float> o = random_values(rows * channels, 17, operand);
                const std::vector<float> x = random_values(rows * channels, 18, operand);
                const std::vector<float> z = random_values(rows * channels, 19, operand);
                const std::vector<float> skip = random_values(channels / small_group, 20);
                const std::vector<float> weight = random_values(form.group, 21);
                DeviceRows dev_o(operand, o, stream.get());
                DeviceRows dev_x(operand, x, stream.get());
                DeviceRows dev_z(operand, z, stream.get());
                DeviceRows dev_skip(Operand::kFp32, skip, stream.get());
                DeviceRows dev_weight(Operand::kFp32, weight, stream.get());
                cuda::ReadOut call;
                call.o = dev_o.data();
                if (form.skip) call.x = dev_x.data();
                if (form.gate) call.gate = dev_z.data();
                if (form.norm) call.weight = dev_weight.floats();
                call.skip = dev_skip.floats();
                call.x_stride = call.gate_stride = call.channels = channels;
                call.rows = rows;
                call.skip_channels = small_group;
                call.group_size = call.weight_period = form.group;
                call.eps = 1e-5F;
                call.norm_before_gate = form.before;
                cuda::read_out(operand, call, stream.get());

                std::vector<double> v = doubles(o);
                for (std::size_t i = 0; form.skip && i < v.size(); ++i) {
                    const std::int64_t c = static_cast<std::int64_t>(i) % channels;
                    v[i] += static_cast<double>(skip[c / small_group]) * static_cast<double>(x[i]);
                }
                const std::vector<double> gate = doubles(z);
                const MatrixView<const double> vv(v.data(), rows, channels);
                const MatrixView<const double> gv(gate.data(), rows, channels);
                std::vector<double> want;
                if (!form.norm) want = reference::swiglu(gv, vv);
                if (form.norm && !form.gate) want = reference::group_rms_norm(vv, doubles(weight), form.group, 1e-5);
                if (form.norm && form.gate) {
                    want = reference::gated_rms_norm(vv, gv, doubles(weight), form.group, 1e-5, form.before);
                }
                INFO(operand_name(operand) << ", " << channels << " channels, groups of " << form.group << ", norm "
                                           << form.norm << ", gate " << form.gate << ", before " << form.before);
                // The sum as in rms_norm; o + D x cancels, so its rounding is absolute, times gate and weight (< 16).
                CHECK(worst_ratio(dev_o.download(), want, 64 * 0x1p-24,
                                  relative_bound(operand, static_cast<double>(channels) / 64 + 24)) <= 1);
            }
        }
    }
}

TEST_CASE("GPU embed_rows copies rows") {
    const cuda::Stream stream;
    for (const Operand operand : kOperands) {
        for (const std::int64_t hidden : {45, 64}) {
            const std::vector<float> table = random_values(384 * hidden, 23, operand);
            const std::vector<std::int32_t> ids = {383, 0, 17, 17, 5};
            cuda::DeviceBuffer<std::int32_t> dev_ids(5, stream.get());
            FENWICK_CUDA_CHECK(
                cudaMemcpyAsync(dev_ids.data(), ids.data(), dev_ids.bytes(), cudaMemcpyHostToDevice, stream.get()));
            DeviceRows dev_table(operand, table, stream.get());
            DeviceRows out(Operand::kFp32, 5 * hidden, stream.get());
            cuda::embed_rows(operand, dev_table.data(), dev_ids.data(), out.floats(), 5, hidden, stream.get());
            const std::vector<float> got = out.download();
            for (std::int64_t i = 0; i < 5 * hidden; ++i) {
                REQUIRE(got[i] == table[ids[i / hidden] * hidden + i % hidden]);
            }
        }
    }
}
