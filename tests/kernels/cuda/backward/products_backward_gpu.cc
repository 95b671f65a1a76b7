// Gradients of products and of the loss on the GPU against double references.
#include "core/fenwick.h"
#include "kernels/cuda/backward/cross_entropy.h"
#include "kernels/cuda/matmul.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/cuda/backward/device_gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

std::int64_t padded(std::int64_t rows) {
    return (rows + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

/// Rows on the device in memory for whole blocks, poison behind them.
DeviceRows block_rows(Operand operand, const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
                      const cuda::Stream& stream) {
    std::vector<float> all(static_cast<std::size_t>(padded(rows) * columns), NAN);
    std::copy(values.begin(), values.end(), all.begin());
    return {operand, all, stream.get()};
}

}  // namespace

TEST_CASE("GPU gradients of products equal the double reference") {
    const cuda::Stream stream;
    cuda::Matmul matmul;
    cuda::DeviceBuffer<unsigned char> workspace(cuda::Matmul::kWorkspaceBytes, stream.get());
    struct Case {
        std::int64_t rows, n, k;
    };
    // One block with a tail, more than one part of a weight's gradient; gates of a few heads.
    for (const Case& c : {Case{70, 24, 64}, Case{kBlockTokens + 1, 40, 48}, Case{5 * kBlockTokens - 3, 16, 32}}) {
        for (const Operand operand : kOperands) {
            const std::vector<float> x = random_values(c.rows * c.k, 1, operand);
            const std::vector<float> dy = random_values(c.rows * c.n, 2, operand);
            const std::vector<float> weight = random_values(c.n * c.k, 3, operand);
            const std::vector<float> before = random_values(c.n * c.k, 4);
            const std::vector<double> xs = doubles(x);
            const std::vector<double> dys = doubles(dy);
            const std::vector<double> ws = doubles(weight);
            const reference::MatmulGradients want =
                reference::matmul_backward({xs.data(), c.rows, c.k}, {ws.data(), c.n, c.k}, {dys.data(), c.rows, c.n});
            DeviceRows dev_x = block_rows(operand, x, c.rows, c.k, stream);
            DeviceRows dev_dy = block_rows(operand, dy, c.rows, c.n, stream);
            DeviceRows dev_weight(operand, weight, stream.get());
            DeviceRows dx(Operand::kFp32, padded(c.rows) * c.k, stream.get());
            cuda::MatmulCall input;
            input.operand = operand;
            input.output = Operand::kFp32;
            input.x = dev_dy.data();
            input.weight = dev_weight.data();
            input.weight_by_inputs = true;
            input.y = dx.data();
            input.rows = c.rows;
            input.n = input.y_stride = c.k;
            input.k = input.x_stride = c.n;
            matmul.multiply(input, workspace.data(), stream.get());
            std::vector<float> got = dx.download();
            got.resize(want.x.size());
            INFO(operand_name(operand) << ", rows " << c.rows << ", n " << c.n << ", k " << c.k);
            // n terms below 16 and 1 on average.
            const auto terms = static_cast<double>(c.n);
            CHECK(worst_ratio(got, want.x, terms * 2 * terms * kUnit, 0) <= 1);

            for (int run = 0; run < 2; ++run) {
                DeviceRows d_weight(Operand::kFp32, before, stream.get());
                cuda::WeightGradientCall call;
                call.operand = operand;
                call.dy = dev_dy.data();
                call.x = dev_x.data();
                call.d_weight = d_weight.floats();
                call.rows = c.rows;
                call.n = call.dy_stride = c.n;
                call.k = call.x_stride = c.k;
                matmul.add_weight_gradient(call, workspace.data(), stream.get());
                const std::vector<float> sums = d_weight.download();
                static std::vector<float> first;
                if (run == 0) first = sums;
                CHECK(sums == first);
                // Terms below 16, 1 on average: one chain of all rows at the worst, though random signs cancel.
                const auto rows = static_cast<double>(c.rows);
                CHECK(worst_ratio(sums, added(before, want.weight), 8 * rows * std::sqrt(rows) * kUnit, 0) <= 1);
            }
        }
    }
}

TEST_CASE("GPU loss and gradients equal the double reference") {
    const cuda::Stream stream;
    cuda::Matmul matmul;
    cuda::DeviceBuffer<unsigned char> matmul_workspace(cuda::Matmul::kWorkspaceBytes, stream.get());
    struct Case {
        std::int64_t rows, hidden, vocab;
        float z_loss;
    };
    // Bytes; two tiles of the vocabulary, uneven; a tail.
    for (const Case& c : {Case{70, 32, 256, 0.0F}, Case{33, 24, 2100, 0.01F}, Case{1, 16, 2100, 0.0F}}) {
        for (const Operand operand : kOperands) {
            const std::vector<float> h = random_values(c.rows * c.hidden, 1, operand);
            const std::vector<float> lm_head = random_values(c.vocab * c.hidden, 2, operand, 0.25F);
            const std::vector<float> before = random_values(c.vocab * c.hidden, 3, Operand::kFp32, 0.01F);
            std::vector<std::int32_t> targets(static_cast<std::size_t>(c.rows));
            for (std::size_t t = 0; t < targets.size(); ++t) {
                targets[t] = t % 5 == 4 ? kNoTarget : static_cast<std::int32_t>((t * 37 + 2099) % c.vocab);
            }
            const CrossEntropyOptions options{1.0F / 64, c.z_loss};
            const std::vector<double> hs = doubles(h);
            const std::vector<double> ws = doubles(lm_head);
            const reference::CrossEntropyGradients want = reference::cross_entropy_backward(
                {hs.data(), c.rows, c.hidden}, {ws.data(), c.vocab, c.hidden}, targets.data(),
                static_cast<double>(options.scale), static_cast<double>(options.z_loss));
            DeviceRows dev_h = block_rows(operand, h, c.rows, c.hidden, stream);
            DeviceRows dev_lm_head(operand, lm_head, stream.get());
            DeviceRows nll(Operand::kFp32, c.rows, stream.get());
            DeviceRows d_h(Operand::kFp32, padded(c.rows) * c.hidden, stream.get());
            DeviceRows d_lm_head(Operand::kFp32, before, stream.get());
            cuda::DeviceBuffer<std::int32_t> dev_targets(c.rows, stream.get());
            FENWICK_CUDA_CHECK(cudaMemcpyAsync(dev_targets.data(), targets.data(), dev_targets.bytes(),
                                               cudaMemcpyHostToDevice, stream.get()));
            cuda::DeviceBuffer<unsigned char> workspace(
                static_cast<std::int64_t>(cuda::cross_entropy_backward_workspace_bytes(operand, c.vocab)),
                stream.get());
            cuda::CrossEntropyBackward call;
            call.forward.operand = operand;
            call.forward.h = dev_h.data();
            call.forward.lm_head = dev_lm_head.data();
            call.forward.targets = dev_targets.data();
            call.forward.nll = nll.floats();
            call.forward.rows = c.rows;
            call.forward.hidden = c.hidden;
            call.forward.vocab = c.vocab;
            call.options = options;
            call.d_h = d_h.floats();
            call.d_lm_head = d_lm_head.floats();
            cuda::cross_entropy_with_gradient(call, matmul, workspace.data(), matmul_workspace.data(), stream.get());
            INFO(operand_name(operand) << ", rows " << c.rows << ", vocab " << c.vocab);
            // A logit of hidden terms below 4 errs by hidden roundings of them; a probability by twice that.
            const double logit = static_cast<double>(c.hidden * c.hidden) * kUnit + 80 * kUnit;
            CHECK(worst_ratio(nll.download(), want.nll, 2 * logit, 2 * kUnit) <= 1);
            // Gradients of logits sum to at most 2 over the vocabulary and are rounded to the operand type; |w| < 1.5.
            const double each = 2 * logit + (operand == Operand::kBf16 ? 0x1p-8 : 0.0) + 600 * kUnit;
            const double scale = static_cast<double>(options.scale);
            std::vector<float> got = d_h.download();
            got.resize(want.h.size());
            CHECK(worst_ratio(got, want.h, scale * 2 * 1.5 * each, 0) <= 1);
            // A column of the vocabulary meets a target or two of these rows, and small probabilities; |h| < 4.5.
            CHECK(worst_ratio(d_lm_head.download(), added(before, want.lm_head), scale * 4 * 4.5 * each, kUnit) <= 1);
        }
    }
}
