// The scalar algebra's gradients on the matrix units against the double reference, over lengths, shapes, decays and
// shards.
//
// Bounds (bf16: unit u = 2^-9, inputs exact). A term of a gradient passes at most four roundings to bf16: of the
// weighted rows that a state (or its gradient) is summed from, of that state, or of a weighted score or of W; where an
// entering state is a sum of nodes in fp32 nothing is added. __expf and fp32 sums beside: 2^-11.
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
    return {TransitionAlgebra::kScalar, heads, key_heads, key_dim, value_dim, levels};
}

double allowed(const MixerShape& /*shape*/, Operand /*operand*/, const std::string& /*field*/) {
    return (4 * 0x1p-9 + 0x1p-11) / 0x1p-24;
}

void check(const MixerCase& c, const std::vector<std::int64_t>& cuts = {0}) {
    test::check_gradients(c, allowed, {Operand::kBf16}, cuts);
}

TEST_CASE("scalar mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t levels : {15, 5, 0}) {
            for (const std::int64_t tokens : {1, 63, 64, 65, 300}) {
                check(bf16_case(shape_of(2, 1, key_dim, 64, levels), tokens, 1));
            }
        }
    }
}

TEST_CASE("scalar mixer gradients on the GPU agree for every head shape") {
    for (const std::int64_t key_dim : {64, 128}) {
        for (const std::int64_t value_dim : {8, 64, 72, 128, 256}) {
            check(bf16_case(shape_of(4, 2, key_dim, value_dim, 9), 200, 2));
        }
    }
}

TEST_CASE("scalar mixer gradients on the GPU agree over blocks and shards") {
    for (const std::int64_t levels : {15, 0}) {
        const MixerCase c = test::bf16_long_case(shape_of(1, 1, 64, 8, levels), 3 * kBlockTokens + 130, 3);
        check(c);
        check(c, {0, 1, 3});
        const cuda::backward::BatchLimit limit(1);  // a block at a time
        check(c, {0, 1});
    }
}

// With so many chunks that thread blocks have several heads each, one after the other: heads of one key head in shares
// of its gradients, and all heads of each key head together.
TEST_CASE("scalar mixer gradients on the GPU agree where a thread block has several heads") {
    for (const std::int64_t levels : {15, 0}) {
        for (const std::int64_t key_dim : {64, 128}) {
            check(bf16_case(shape_of(48, 1, key_dim, 8, levels), 700, 9));
        }
        check(test::bf16_long_case(shape_of(8, 4, 64, 8, levels), kBlockTokens + 130, 10));
    }
}

TEST_CASE("scalar mixer gradients on the GPU stay right for strong decay and for none") {
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

TEST_CASE("scalar mixer gradients on the GPU have the same bits again") {
    const MixerCase c = bf16_case(shape_of(4, 1, 128, 64, 15), kBlockTokens + 300, 7);
    const std::vector<float> d_out = test::bf16_d_out(c);
    CHECK(test::gpu_gradients(c, d_out, Operand::kBf16) == test::gpu_gradients(c, d_out, Operand::kBf16));
}

TEST_CASE("scalar mixer gradients on the GPU with the shared memory of smaller GPUs") {
    const cuda::SharedLimit limit(99 * 1024);
    check(bf16_case(shape_of(2, 1, 64, 8, 15), 300, 8));
}

}  // namespace
}  // namespace fenwick
