// The scalar algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term of a gradient passes at most four roundings to bf16: of the
// weighted rows that a state (or its gradient) is summed from, of that state, or of a weighted score or of W; where an
// entering state is a sum of nodes in fp32 nothing is added. __expf and fp32 sums beside: 2^-11.
#include <cmath>

#include "kernels/cuda/shared_memory.h"
#include "tests/kernels/cuda/backward/tensor_gradients_gpu.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using testing::MixerCase;

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (4 * 0x1p-9 + 0x1p-11) / 0x1p-24;
}

constexpr test::TensorGradients kGradients{TransitionAlgebra::kScalar, allowed};

TEST_CASE("scalar mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    kGradients.check_short_documents();
}

TEST_CASE("scalar mixer gradients on the GPU agree for every head shape") {
    kGradients.check_head_shapes(200);
}

TEST_CASE("scalar mixer gradients on the GPU agree over blocks and shards") {
    kGradients.check_blocks_and_shards();
}

// With so many chunks that thread blocks have several heads each, one after the other: heads of one key head in shares
// of its gradients, and all heads of each key head together.
TEST_CASE("scalar mixer gradients on the GPU agree where a thread block has several heads") {
    for (const std::int64_t levels : {15, 0}) {
        for (const std::int64_t key_dim : {64, 128}) {
            kGradients.check(bf16_case(kGradients.shape(48, 1, key_dim, 8, levels), 700, 9));
        }
        kGradients.check(test::bf16_long_case(kGradients.shape(8, 4, 64, 8, levels), kBlockTokens + 130, 10));
    }
}

TEST_CASE("scalar mixer gradients on the GPU stay right for strong decay and for none") {
    kGradients.check_decays(700);
}

TEST_CASE("scalar mixer gradients on the GPU have the same bits again") {
    kGradients.check_same_bits();
}

TEST_CASE("scalar mixer gradients on the GPU with the shared memory of smaller GPUs") {
    const cuda::SharedLimit limit(99 * 1024);
    kGradients.check(bf16_case(kGradients.shape(2, 1, 64, 8, 15), 300, 8));
}

}  // namespace
}  // namespace fenwick
