// The matrix algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term passes the roundings of T, W or U, of the weighted rows, of the
// state and of its gradient, and of the 64 x 64 products that lead from dT to keys and beta: at most eight. The chunk
// form's own terms are larger than the definition's, which the bound sums (inverses of triangles: a factor of 2). 2^-8
// for __expf and fp32 sums.
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
    return {TransitionAlgebra::kMatrix, heads, key_heads, key_dim, value_dim, levels};
}

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (2 * 8 * 0x1p-9 + 0x1p-8) / 0x1p-24;
}

void check(const MixerCase& c, const std::vector<std::int64_t>& cuts = {0}) {
    test::check_gradients(c, allowed, {Operand::kBf16}, cuts);
}

TEST_CASE("matrix mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t levels : {0, 15, 5}) {
            for (const std::int64_t tokens : {1, 63, 64, 65, 300}) {
                check(bf16_case(shape_of(2, 1, key_dim, 64, levels), tokens, 1));
            }
        }
    }
}

TEST_CASE("matrix mixer gradients on the GPU agree for every head shape") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t value_dim : {8, 64, 72, 128, 256}) {
            for (const std::int64_t levels : {9, 0}) {
                check(bf16_case(shape_of(4, 2, key_dim, value_dim, levels), 140, 2));
            }
        }
    }
}

TEST_CASE("matrix mixer gradients on the GPU agree over blocks and shards") {
    for (const std::int64_t levels : {0, 15}) {
        const MixerCase c = test::bf16_long_case(shape_of(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 3);
        check(c);
        check(c, {0, 1, 3});
        const cuda::backward::BatchLimit limit(1);  // a block at a time
        check(c, {0, 1});
    }
}

TEST_CASE("matrix mixer gradients on the GPU agree over blocks whose states take several tiles") {
    for (const std::int64_t levels : {0, 15}) {
        check(test::bf16_long_case(shape_of(2, 1, 128, 72, levels), kBlockTokens + 70, 8), {0, 1});
    }
}

// Blocks that forget what entered them, little by little and at once, between such that do not: walks end where
// nothing is left (matrix.h).
TEST_CASE("matrix mixer gradients on the GPU agree over blocks that forget") {
    for (const std::int64_t levels : {0, 15}) {
        MixerCase c = test::bf16_long_case(shape_of(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 9);
        for (std::int64_t i = kBlockTokens; i < 2 * kBlockTokens; ++i) c.log_decay[i] *= 100.0F;
        for (std::int64_t i = 0; i < kChunkTokens; ++i) {
            c.log_decay[2 * kBlockTokens + 20 * kChunkTokens + i] = -1.0F;
        }
        check(c);
        check(c, {0, 1, 3});
    }
}

TEST_CASE("matrix mixer gradients on the GPU stay right for hard decays and for beta at its ends") {
    for (const std::int64_t levels : {0, 15}) {
        for (const float decay : {0.0F, -20.0F, -320.0F, -test::kInfinity}) {
            MixerCase c = bf16_case(shape_of(2, 1, 64, 8, levels), 300, 5);
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            check(c);
        }
        for (const float beta : {0.0F, 1.0F, 2.0F}) {
            MixerCase c = bf16_case(shape_of(2, 1, 64, 8, levels), 300, 6);
            std::fill(c.beta.begin(), c.beta.end(), beta);
            check(c);
        }
    }
}

TEST_CASE("matrix mixer gradients on the GPU have the same bits again") {
    const MixerCase c = bf16_case(shape_of(4, 2, 128, 64, 15), kBlockTokens + 300, 7);
    const std::vector<float> d_out = test::bf16_d_out(c);
    CHECK(test::gpu_gradients(c, d_out, Operand::kBf16) == test::gpu_gradients(c, d_out, Operand::kBf16));
}

}  // namespace
}  // namespace fenwick
