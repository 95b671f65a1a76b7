// Products, losses and node combines on the GPU against double references; the same bits for any number of blocks.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/fenwick.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/summary.h"
#include "kernels/reference/matmul.h"
#include "tests/kernels/cuda/device_rows.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr Operand kOperands[] = {Operand::kFp32, Operand::kBf16};

std::int64_t padded(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

/// Rows `first`, first + 1, ... of a row-major matrix.
std::vector<double> some_rows(const std::vector<float>& x, std::int64_t columns, std::int64_t first,
                              std::int64_t count) {
    return {x.begin() + first * columns, x.begin() + (first + count) * columns};
}

}  // namespace

TEST_CASE("GPU products equal the double reference and do not depend on the number of blocks") {
    const cuda::Stream stream;
    cuda::Matmul matmul;
    cuda::DeviceBuffer<unsigned char> workspace(cuda::Matmul::kWorkspaceBytes, stream.get());
    struct Case {
        std::int64_t n, k;
        bool accumulate;
    };
    // Gates of a few heads; the projections of a layer of 1,536; down-projection into the residual.
    for (const Case& c : {Case{24, 64, false}, Case{768, 1536, false}, Case{1536, 512, true}}) {
        for (const Operand operand : kOperands) {
            for (const Operand output : kOperands) {
                if (output == Operand::kBf16 && (operand == Operand::kFp32 || c.accumulate)) continue;
                const std::int64_t rows = 16 * kBlockTokens;
                const std::vector<float> x = random_values(rows * c.k, 1, operand);
                const std::vector<float> weight = random_values(c.n * c.k, 2, operand);
                const std::vector<float> before = random_values(rows * c.n, 3);
                DeviceRows dx(operand, x, stream.get());
                DeviceRows dw(operand, weight, stream.get());
                std::vector<float> all;
                for (const std::int64_t count : {rows, kBlockTokens, 2 * kBlockTokens + 1, 7 * kBlockTokens, rows}) {
                    DeviceRows y(output, rows * c.n, stream.get());
                    if (c.accumulate) {
                        // In the product's stream: a plain copy may still be on its way when it returns.
                        FENWICK_CUDA_CHECK(cudaMemcpyAsync(y.data(), before.data(), before.size() * sizeof(float),
                                                           cudaMemcpyHostToDevice, stream.get()));
                    }
                    cuda::MatmulCall call;
                    call.operand = operand;
                    call.output = output;
                    call.x = dx.data();
                    call.weight = dw.data();
                    call.y = y.data();
                    call.rows = count;
                    call.n = c.n;
                    call.k = call.x_stride = c.k;
                    call.y_stride = c.n;
                    call.accumulate = c.accumulate;
                    matmul.multiply(call, workspace.data(), stream.get());
                    const std::vector<float> got = y.download();
                    if (all.empty()) all = got;
                    INFO(operand_name(operand)
                         << " to " << operand_name(output) << ", n " << c.n << ", k " << c.k << ", rows " << count);
                    REQUIRE(std::memcmp(got.data(), all.data(), static_cast<std::size_t>(padded(count) * c.n) * 4) ==
                            0);
                }
                for (const std::int64_t first : {std::int64_t{0}, 5 * kBlockTokens - 3, rows - 4}) {
                    const std::vector<double> xs = some_rows(x, c.k, first, 4);
                    const std::vector<double> ws = doubles(weight);
                    std::vector<double> want = reference::matmul({xs.data(), 4, c.k}, {ws.data(), c.n, c.k}, {});
                    if (c.accumulate) {
                        const std::vector<double> old = some_rows(before, c.n, first, 4);
                        for (std::size_t i = 0; i < want.size(); ++i) want[i] += old[i];
                    }
                    const std::vector<float> part(all.begin() + first * c.n, all.begin() + (first + 4) * c.n);
                    // k terms of deviation 1 each round at about sqrt(k) * 2^-24 a step; 8 deviations of their sum, and
                    // the matrix units truncate (a factor of 2).
                    const double absolute = 16 * static_cast<double>(c.k) * 0x1p-24;
                    CHECK(worst_ratio(part, want, absolute, relative_bound(output, 2)) <= 1);
                }
            }
        }
    }
}

TEST_CASE("GPU cross entropy equals the double reference whatever the number of rows") {
    const cuda::Stream stream;
    cuda::Matmul matmul;
    cuda::DeviceBuffer<unsigned char> product_space(cuda::Matmul::kWorkspaceBytes, stream.get());
    const std::int64_t hidden = 64;
    // Bytes; a common vocabulary and one more: four tiles, the last one short.
    for (const std::int64_t vocab : {256, 384, 32001}) {
        for (const Operand operand : kOperands) {
            const std::int64_t capacity = 2 * kBlockTokens;
            const std::int64_t rows = kBlockTokens + 5;
            const std::vector<float> h = random_values(capacity * hidden, 5, operand);
            const std::vector<float> head = random_values(vocab * hidden, 6, operand, 0.5F);
            std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
            for (std::int64_t t = 0; t < rows; ++t)
                targets[t] = static_cast<std::int32_t>((t * 7919 + vocab - 1) % vocab);
            DeviceRows dh(operand, h, stream.get());
            DeviceRows dev_head(operand, head, stream.get());
            cuda::DeviceBuffer<std::int32_t> dev_targets(rows, stream.get());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(dev_targets.data(), targets.data(), dev_targets.bytes(),
                                               cudaMemcpyHostToDevice, stream.get()));
            const auto bytes = static_cast<std::int64_t>(cuda::cross_entropy_workspace_bytes(vocab));
            cuda::DeviceBuffer<unsigned char> workspace(bytes, stream.get());
            FENWICK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0xFF, workspace.bytes(), stream.get()));
            std::vector<float> all;
            for (const std::int64_t count : {rows, std::int64_t{1}, std::int64_t{300}}) {
                DeviceRows nll(Operand::kFp32, count, stream.get());
                cuda::cross_entropy(
                    {operand, dh.data(), dev_head.data(), dev_targets.data(), nll.floats(), count, hidden, vocab},
                    matmul, workspace.data(), product_space.data(), stream.get());
                const std::vector<float> got = nll.download();
                if (all.empty()) all = got;
                REQUIRE(std::memcmp(got.data(), all.data(), got.size() * 4) == 0);
            }
            for (const std::int64_t first : {std::int64_t{0}, kBlockTokens - 1}) {
                const std::vector<double> hs = some_rows(h, hidden, first, 6);
                const std::vector<double> ws = doubles(head);
                const std::vector<double> want = reference::cross_entropy(
                    {hs.data(), 6, hidden}, {ws.data(), vocab, hidden}, targets.data() + first);
                const std::vector<float> part(all.begin() + first, all.begin() + first + 6);
                INFO(operand_name(operand) << ", vocabulary " << vocab);
                // A logit errs by 16 k / 2 * 2^-24 as above, once as target and once in the sum.
                CHECK(worst_ratio(part, want, 16 * static_cast<double>(hidden) * 0x1p-24 + 64 * 0x1p-24, 0x1p-22) <= 1);
            }
        }
    }
}

TEST_CASE("GPU cross entropy shows a NaN and an infinity in the loss of its row alone") {
    const cuda::Stream stream;
    cuda::Matmul matmul;
    cuda::DeviceBuffer<unsigned char> product_space(cuda::Matmul::kWorkspaceBytes, stream.get());
    cuda::DeviceBuffer<unsigned char> workspace(static_cast<std::int64_t>(cuda::cross_entropy_workspace_bytes(256)),
                                                stream.get());
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<float> h = random_values(kBlockTokens * 64, 7);
        h[2 * 64 + 3] = bad;
        DeviceRows dh(Operand::kFp32, h, stream.get());
        DeviceRows head(Operand::kFp32, random_values(std::int64_t{256} * 64, 8), stream.get());
        cuda::DeviceBuffer<std::int32_t> targets(4, stream.get());
        FENWICK_CUDA_CHECK(cudaMemsetAsync(targets.data(), 0, targets.bytes(), stream.get()));
        DeviceRows nll(Operand::kFp32, 4, stream.get());
        cuda::cross_entropy({Operand::kFp32, dh.data(), head.data(), targets.data(), nll.floats(), 4, 64, 256}, matmul,
                            workspace.data(), product_space.data(), stream.get());
        const std::vector<float> got = nll.download();
        CHECK(std::isnan(got[2]));
        CHECK((std::isfinite(got[1]) && std::isfinite(got[3])));
    }
}

TEST_CASE("GPU node combines equal the combine of the CPU") {
    const cuda::Stream stream;
    const MixerShape shapes[] = {{TransitionAlgebra::kScalar, 5, 1, 64, 32, 0},
                                 {TransitionAlgebra::kDiagonal, 3, 3, 33, 20, 0},
                                 {TransitionAlgebra::kMatrix, 3, 1, 33, 72, 0},
                                 {TransitionAlgebra::kMatrix, 2, 1, 128, 128, 0}};
    for (const MixerShape& shape : shapes) {
        const std::int64_t floats = summary_floats(shape);
        const std::int64_t one = transition_floats(shape) + state_floats(shape);
        std::vector<float> left = random_values(floats, 31);
        std::vector<float> right = random_values(floats, 32);
        if (shape.algebra != TransitionAlgebra::kMatrix) {
            for (std::vector<float>* list : {&left, &right}) {
                for (std::int64_t i = 0; i < floats; ++i) {
                    float& value = (*list)[i];
                    if (i % one < transition_floats(shape)) value = -std::fabs(value);
                }
            }
            right[0] = -INFINITY;
        }
        DeviceRows dl(Operand::kFp32, left, stream.get());
        DeviceRows dr(Operand::kFp32, right, stream.get());
        DeviceRows out(Operand::kFp32, floats, stream.get());
        cuda::combine_summaries(shape, dl.floats(), dr.floats(), out.floats(), stream.get());
        std::vector<float> want(static_cast<std::size_t>(floats));
        combine_summaries(shape, left.data(), right.data(), want.data(), 1);
        const std::vector<float> got = out.download();
        double worst = 0.0;
        for (std::int64_t i = 0; i < floats; ++i) {
            if (std::isinf(want[i])) {
                REQUIRE(got[i] == want[i]);
                continue;
            }
            worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
        }
        // Two fp32 sums of at most d_k terms below 16 in magnitude, in different orders.
        CHECK(worst <= 2.0 * 16 * static_cast<double>(shape.key_dim) * 0x1p-24);
    }
}
