// The diagonal algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term of a gradient passes at most five roundings to bf16: dv's the key
// that is decayed to its chunk's end and again when it is carried, the weighted rows of dO and the decayed queries that
// a state's gradient is summed from, and that gradient. A decay is a product of up to 4,096 factors in fp32, each
// within four units of 2^-24 (2^x of a rounded product, and the product): 2^-10.
#include <cmath>

#include "kernels/cuda/shared_memory.h"
#include "tests/kernels/cuda/backward/tensor_gradients_gpu.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using testing::MixerCase;

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (5 * 0x1p-9 + 0x1p-10) / 0x1p-24;
}

constexpr test::TensorGradients kGradients{TransitionAlgebra::kDiagonal, allowed};

TEST_CASE("diagonal mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    kGradients.check_short_documents();
}

TEST_CASE("diagonal mixer gradients on the GPU agree for every head shape") {
    kGradients.check_head_shapes(200);
    for (const std::int64_t key_dim : {64, 128}) {
        kGradients.check(bf16_case(kGradients.shape(1, 1, key_dim, 8, 64), 130, 11));  // the most levels
        kGradients.check(bf16_case(kGradients.shape(1, 1, key_dim, 8, 1), 130, 12));
    }
}

TEST_CASE("diagonal mixer gradients on the GPU agree over blocks and shards") {
    kGradients.check_blocks_and_shards();
}

TEST_CASE("diagonal mixer gradients on the GPU agree over blocks whose states take several tiles") {
    for (const std::int64_t levels : {0, 15}) {
        kGradients.check(test::bf16_long_case(kGradients.shape(2, 1, 128, 72, levels), kBlockTokens + 70, 8), {0, 1});
        kGradients.check(test::bf16_long_case(kGradients.shape(1, 1, 128, 8, levels), 2 * kBlockTokens, 9), {0, 1});
    }
}

TEST_CASE("diagonal mixer gradients on the GPU stay right for strong decay and for none") {
    kGradients.check_decays(700);
}

TEST_CASE("diagonal mixer gradients on the GPU have the same bits again") {
    kGradients.check_same_bits();
}

TEST_CASE("diagonal mixer gradients on the GPU with the shared memory of smaller GPUs") {
    const cuda::SharedLimit limit(99 * 1024);
    kGradients.check(bf16_case(kGradients.shape(2, 1, 64, 8, 15), 300, 8));
}

}  // namespace
}  // namespace fenwick
