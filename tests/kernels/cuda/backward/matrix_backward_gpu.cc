// The matrix algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term passes the roundings of M, W or U (linear: Z and dV), of the
// weighted rows, of the state and of its gradient, and of the 64 x 64 products that lead from dM to keys and beta
// (linear: of F or H): at most eight. The chunk form's own terms are larger than the definition's, which the bound sums
// (inverses of triangles: a factor of 2). 2^-8 for __expf and fp32 sums.
#include <cmath>

#include "tests/kernels/cuda/backward/tensor_gradients_gpu.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using testing::MixerCase;

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (2 * 8 * 0x1p-9 + 0x1p-8) / 0x1p-24;
}

constexpr test::TensorGradients kGradients{TransitionAlgebra::kMatrix, allowed};

TEST_CASE("matrix mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    kGradients.check_short_documents();
}

TEST_CASE("matrix mixer gradients on the GPU agree for every head shape") {
    kGradients.check_head_shapes(140);
}

TEST_CASE("matrix mixer gradients on the GPU agree over blocks and shards") {
    kGradients.check_blocks_and_shards();
}

TEST_CASE("matrix mixer gradients on the GPU agree over blocks whose states take several tiles") {
    for (const std::int64_t levels : {0, 15}) {
        kGradients.check(test::bf16_long_case(kGradients.shape(2, 1, 128, 72, levels), kBlockTokens + 70, 8), {0, 1});
    }
}

// Blocks that forget what entered them, little by little and at once, between such that do not: walks end where
// nothing is left (matrix.h).
TEST_CASE("matrix mixer gradients on the GPU agree over blocks that forget") {
    for (const std::int64_t levels : {0, 15}) {
        MixerCase c = test::bf16_long_case(kGradients.shape(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 9);
        for (std::int64_t i = kBlockTokens; i < 2 * kBlockTokens; ++i) c.log_decay[i] *= 100.0F;
        for (std::int64_t i = 0; i < kChunkTokens; ++i) {
            c.log_decay[2 * kBlockTokens + 20 * kChunkTokens + i] = -1.0F;
        }
        kGradients.check(c);
        kGradients.check(c, {0, 1, 3});
    }
}

TEST_CASE("matrix mixer gradients on the GPU stay right for hard decays and for beta at its ends") {
    kGradients.check_decays(300);
    for (const std::int64_t levels : {0, 15}) {
        for (const float beta : {0.0F, 1.0F, 2.0F}) {
            MixerCase c = bf16_case(kGradients.shape(2, 1, 64, 8, levels), 300, 6);
            std::fill(c.beta.begin(), c.beta.end(), beta);
            kGradients.check(c);
        }
    }
}

TEST_CASE("matrix mixer gradients on the GPU have the same bits again") {
    kGradients.check_same_bits();
}

}  // namespace
}  // namespace fenwick
