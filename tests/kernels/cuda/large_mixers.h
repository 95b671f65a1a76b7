// Calls too large for a reference on the host: inputs that repeat a small document's, in rows and in heads, so that
// the outputs must repeat its outputs bit for bit.
#pragma once

#include "core/cuda/device_info.h"
#include "tests/kernels/cuda/mixer_shards.h"
#include "tests/kernels/cuda/repeated.h"

namespace fenwick::test {

/// One call over `copies` times the heads of `c` and `rows` rows, c's rows again and again. More rows than c has need a
/// document c of a whole block whose first token forgets all before it. The outputs must repeat; those of c's first
/// heads and rows are held against the double reference for `checked` tokens.
inline void check_repeated(const MixerCase& c, std::int64_t copies, std::int64_t rows, std::int64_t checked,
                           Operand operand, Bound allowed) {
    MixerShape shape = c.shape;
    shape.heads *= copies;
    shape.key_heads *= copies;
    const std::int64_t decays = c.decay_columns();
    const std::int64_t keys = c.shape.key_heads * shape.key_dim;
    const std::int64_t values = c.shape.heads * shape.value_dim;
    const std::int64_t lambdas = c.shape.heads * shape.levels;
    const bool matrix = shape.algebra == TransitionAlgebra::kMatrix;
    const std::int64_t size = operand == Operand::kBf16 ? 2 : 4;
    const auto workspace_bytes = static_cast<std::int64_t>(cuda::mixer_workspace_bytes(shape, operand, rows, 0));
    const std::int64_t bytes = workspace_bytes + rows / kBlockTokens * summary_floats(shape) * 4 +
                               rows * copies * (2 * size * (keys + values) + 4 * (decays + lambdas + c.shape.heads));
    INFO(label(c, operand) << ", " << copies << " times the heads, " << rows << " rows");
    if (bytes + (std::int64_t{1} << 30) > cuda::free_device_bytes()) {
        WARN("not run: needs " << (bytes >> 30) + 1 << " GiB of GPU memory");
        return;
    }
    const cuda::Stream owner;
    cudaStream_t stream = owner.get();
    const auto fill = [&](Operand type, const std::vector<float>& from, std::int64_t columns) {
        DeviceRows small(type, from.empty() ? std::vector<float>(1) : from, stream);
        DeviceRows large(type, from.empty() ? 1 : rows * copies * columns, stream);
        if (from.empty()) return large;
        repeat({rows, copies * columns, c.tokens, columns}, small.data(), large.data(), type == Operand::kBf16 ? 2 : 4,
               stream);
        FENWICK_CUDA_CHECK(cudaStreamSynchronize(stream));
        return large;
    };
    DeviceRows q = fill(operand, c.q, keys);
    DeviceRows k = fill(operand, c.k, keys);
    DeviceRows v = fill(operand, c.v, values);
    DeviceRows decay = fill(Operand::kFp32, c.log_decay, decays);
    DeviceRows beta = fill(Operand::kFp32, c.beta, c.shape.heads);
    DeviceRows lambda = fill(Operand::kFp32, c.lambda, lambdas);
    DeviceRows out(operand, rows * copies * values, stream);
    cuda::MixerInputs in;
    in.q = q.data();
    in.k = k.data();
    in.v = v.data();
    in.log_decay = decay.floats();
    in.beta = matrix ? beta.floats() : nullptr;
    in.lambda = shape.log_linear() ? lambda.floats() : nullptr;
    in.q_stride = in.k_stride = copies * keys;
    in.v_stride = copies * values;
    in.decay_stride = copies * decays;
    in.beta_stride = shape.heads;
    in.lambda_stride = copies * lambdas;
    in.rows = rows;
    const std::int64_t blocks = (rows - 1) / kBlockTokens;
    cuda::DeviceBuffer<float> summaries(std::max<std::int64_t>(1, blocks * summary_floats(shape)), stream);
    cuda::DeviceBuffer<unsigned char> workspace(workspace_bytes, stream);
    cuda::mixer_block_summaries(shape, operand, in, 0, blocks, summaries.data(), workspace.data(), stream);
    cuda::mixer_prepare_outputs(shape, operand, in, 0, blocks > 0, workspace.data(), stream);
    cuda::mixer_outputs(shape, operand, in, 0, {}, {summaries.data()}, out.data(), workspace.data(), stream);
    CHECK(count_unlike({rows, copies * values, c.tokens, values}, out.data(), size, stream) == 0);

    // The first heads of the first rows.
    DeviceRows part(operand, checked * values, stream);
    FENWICK_CUDA_CHECK(cudaMemcpy2DAsync(part.data(), static_cast<std::size_t>(values * size), out.data(),
                                         static_cast<std::size_t>(copies * values * size),
                                         static_cast<std::size_t>(values * size), static_cast<std::size_t>(checked),
                                         cudaMemcpyDeviceToDevice, stream));
    const MixerCase start = c.first_tokens(checked);
    const auto [bound_shape, bound_inputs] = testing::magnitude_inputs(start);
    const double worst =
        testing::worst_error(part.download(), reference::mixer_recurrent(start.shape, start.widened(), kThreads),
                             reference::mixer_recurrent(bound_shape, bound_inputs, kThreads));
    CHECK(worst <= allowed(shape, operand));
}

/// CASES A1: offsets of q, k, v and outputs past 2^31 elements, 64 heads of 128x128 in both read-outs (fp32: linear).
inline void check_offsets(TransitionAlgebra algebra, Bound allowed) {
    constexpr std::int64_t kCopies = 32;
    constexpr std::int64_t kRows = 64 * kBlockTokens + 300;
    static_assert(kRows * kCopies * 2 * 128 > std::int64_t{1} << 31);
    for (const std::int64_t levels : {0, 6}) {
        MixerCase c = bf16_case({algebra, 2, 2, 128, 128, levels}, kBlockTokens, 21);
        std::fill_n(c.log_decay.begin(), c.decay_columns(), -kInfinity);
        check_repeated(c, kCopies, kRows, 700, Operand::kBf16, allowed);
        if (levels == 0) check_repeated(c, kCopies, kRows, 700, Operand::kFp32, allowed);
    }
}

/// More blocks x heads than 65,535, 16 heads a key group.
inline void check_many_heads(TransitionAlgebra algebra, Bound allowed) {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {0, 8}) {
            const MixerCase c = bf16_case({algebra, 16, 1, 64, 32, levels}, 130, 22);
            check_repeated(c, 4100, 130, 130, operand, allowed);
        }
    }
    // The same of the tree's operation. Values of magnitude below 1: 8 products, a sum and exp's few ulp.
    const MixerShape shape{algebra, 65600, 65600, 8, 8, 0};
    const cuda::Stream stream;
    std::vector<float> left = random_values(summary_floats(shape), 23, Operand::kFp32, 0.2F);
    std::vector<float> right = random_values(summary_floats(shape), 24, Operand::kFp32, 0.2F);
    for (auto* x : {&left, &right}) {
        for (float& value : *x) value = -std::min(std::fabs(value), 1.0F);  // log decays are not above 0
    }
    std::vector<float> want(left.size());
    combine_summaries(shape, left.data(), right.data(), want.data(), kThreads);
    DeviceRows a(Operand::kFp32, left, stream.get());
    DeviceRows b(Operand::kFp32, right, stream.get());
    DeviceRows out(Operand::kFp32, static_cast<std::int64_t>(left.size()), stream.get());
    cuda::combine_summaries(shape, a.floats(), b.floats(), out.floats(), stream.get());
    CHECK(worst_ratio(out.download(), doubles(want), 24 * 0x1p-24, 0.0) <= 1.0);
}

}  // namespace fenwick::test
