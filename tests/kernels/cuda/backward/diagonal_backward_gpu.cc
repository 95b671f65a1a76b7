// The diagonal algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term of a gradient passes at most five roundings to bf16: dv's the key
// that is decayed to its chunk's end and again when it is carried, the weighted rows of dO and the decayed queries that
// a state's gradient is summed from, and that gradient. A decay is a product of up to 4,096 factors in fp32, each
// within four units of 2^-24 (2^x of a rounded product, and the product): 2^-10.
#include <cmath>

#include "kernels/cuda/backward/workspace.h"
#include "kernels/cuda/shared_memory.h"
#include "tests/kernels/cuda/backward/mixer_gradients_gpu.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using testing::MixerCase;

MixerShape shape_of(std::int64_t heads, std::int64_t key_heads, std::int64_t key_dim, std::int64_t value_dim,
                    std::int64_t levels) {
    return {TransitionAlgebra::kDiagonal, heads, key_heads, key_dim, value_dim, levels};
}

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (5 * 0x1p-9 + 0x1p-10) / 0x1p-24;
}

void check(const MixerCase& c, const std::vector<std::int64_t>& cuts = {0}) {
    test::check_gradients(c, allowed, {Operand::kBf16}, cuts);
}

TEST_CASE("diagonal mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t levels : {0, 15, 5}) {
            for (const std::int64_t tokens : {1, 63, 64, 65, 300}) {
                check(bf16_case(shape_of(2, 1, key_dim, 64, levels), tokens, 1));
            }
        }
    }
}

TEST_CASE("diagonal mixer gradients on the GPU agree for every head shape") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t value_dim : {8, 64, 72, 128, 256}) {
            for (const std::int64_t levels : {9, 0}) {
                check(bf16_case(shape_of(4, 2, key_dim, value_dim, levels), 200, 2));
            }
        }
        check(bf16_case(shape_of(1, 1, key_dim, 8, 64), 130, 11));  // the most levels
        check(bf16_case(shape_of(1, 1, key_dim, 8, 1), 130, 12));
    }
}

TEST_CASE("diagonal mixer gradients on the GPU agree over blocks and shards") {
    for (const std::int64_t levels : {0, 15}) {
        const MixerCase c = test::bf16_long_case(shape_of(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 3);
        check(c);
        check(c, {0, 1, 3});
        const cuda::backward::BatchLimit limit(1);  // a block at a time
        check(c, {0, 1});
    }
}

TEST_CASE("diagonal mixer gradients on the GPU agree over blocks whose states take several tiles") {
    for (const std::int64_t levels : {0, 15}) {
        check(test::bf16_long_case(shape_of(2, 1, 128, 72, levels), kBlockTokens + 70, 8), {0, 1});
        check(test::bf16_long_case(shape_of(1, 1, 128, 8, levels), 2 * kBlockTokens, 9), {0, 1});
    }
}

TEST_CASE("diagonal mixer gradients on the GPU stay right for strong decay and for none") {
    for (const std::int64_t levels : {15, 0}) {
        for (const float decay : {0.0F, -20.0F, -320.0F, -test::kInfinity}) {
            MixerCase c = bf16_case(shape_of(2, 1, 64, 8, levels), 700, 5);
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            check(c);
        }
        MixerCase c = bf16_case(shape_of(2, 1, 64, 8, levels), 700, 6);
        for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -test::kInfinity : -5e5F;
        check(c);
    }
}

TEST_CASE("diagonal mixer gradients on the GPU have the same bits again") {
    for (const std::int64_t levels : {15, 0}) {
        const MixerCase c = bf16_case(shape_of(4, 1, 128, 64, levels), kBlockTokens + 300, 7);
        const std::vector<float> d_out = test::bf16_d_out(c);
        CHECK(test::gpu_gradients(c, d_out, Operand::kBf16) == test::gpu_gradients(c, d_out, Operand::kBf16));
    }
}

TEST_CASE("diagonal mixer gradients on the GPU with the shared memory of smaller GPUs") {
    const cuda::SharedLimit limit(99 * 1024);
    check(bf16_case(shape_of(2, 1, 64, 8, 15), 300, 8));
}

}  // namespace
}  // namespace fenwick
