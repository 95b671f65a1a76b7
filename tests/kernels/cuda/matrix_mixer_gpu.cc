// The matrix algebra on the GPU against the double reference, over shapes, lengths, decays and cuts.
//
// Bounds. The reference sees the operands after rounding to bf16. What remains is the kernels' own: each output is a
// sum of products whose other factors (T, P, X, U', lambda * P) are rounded to bf16, relative error 2^-9 each, and the
// output itself is rounded. Six roundings stand between an input and an output within a chunk; a state is rounded once
// more in every chunk that it is carried through, but only what the chunk removes from it (K^^T W X) carries that
// error, and what is removed in all is at most the state. Summing magnitudes, not squares: 6 + 1 + 1 = 8 units of 2^-9
// times the bound of |o| of mixer_inputs.h. fp32: sums of 4,096 steps, each a dot product of d_k, in any order:
// sqrt(steps * d_k) * 2^-24 for random signs; 256 units.
#include "kernels/cuda/shared_memory.h"
#include "tests/kernels/cuda/large_mixers.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using test::kInfinity;
using testing::MixerCase;

MixerShape shape_of(std::int64_t heads, std::int64_t key_heads, std::int64_t key_dim, std::int64_t value_dim,
                    std::int64_t levels) {
    return {TransitionAlgebra::kMatrix, heads, key_heads, key_dim, value_dim, levels};
}

double allowed(const MixerShape&, Operand operand) {
    return operand == Operand::kBf16 ? 8.0 * 0x1p15 : 256.0;
}

TEST_CASE("matrix mixer on the GPU agrees with the reference at every length") {
    for (const std::int64_t levels : {15, 0}) {
        // Lengths around chunk and block, and one with two bits of block number.
        test::check_case(bf16_case(shape_of(2, 1, 128, 128, levels), 13000, 1),
                         {1, 63, 64, 65, 4095, 4096, 4097, 8192, 13000}, allowed);
    }
}

TEST_CASE("matrix mixer on the GPU agrees with the reference for every head shape") {
    for (const std::int64_t key_dim : {64, 128, 192, 256}) {
        for (const std::int64_t value_dim : {32, 64, 128, 192, 256}) {
            // Two key groups; levels fewer than the document has, so that the last lambda stands for more.
            for (const std::int64_t levels : {9, 0}) {
                test::check_case(bf16_case(shape_of(4, 2, key_dim, value_dim, levels), 700, 2), {700}, allowed);
            }
        }
    }
    test::check_case(bf16_case(shape_of(2, 2, 64, 64, 15), 16500, 3), {16500}, allowed);
    test::check_case(bf16_case(shape_of(2, 1, 128, 40, 3), 4200, 4), {4200}, allowed);
    // Plain kernels with summaries and nodes: other d_k, and more levels than the matrix units' kernel takes.
    for (const std::int64_t levels : {15, 0}) {
        test::check_case(bf16_case(shape_of(2, 2, 192, 96, levels), 13000, 5), {13000}, allowed);
        test::check_case(bf16_case(shape_of(1, 1, 256, 256, levels), 8300, 6), {8300}, allowed);
    }
    test::check_case(bf16_case(shape_of(1, 1, 64, 32, 40), 4200, 7), {4200}, allowed);
}

TEST_CASE("matrix mixer on the GPU stays right for gates of exactly 1 and for strong decay") {
    for (const std::int64_t levels : {15, 0}) {
        for (const float decay : {0.0F, -20.0F, -kInfinity}) {
            MixerCase c = bf16_case(shape_of(2, 1, 128, 64, levels), 9000, 7);
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            std::fill(c.beta.begin(), c.beta.end(), 1.0F);
            test::check_case(c, {9000}, allowed);
        }
        MixerCase c = bf16_case(shape_of(2, 1, 128, 64, levels), 4300, 8);
        for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
        test::check_case(c, {4300}, allowed);
    }
}

// A block forgets what is older than 44 / decay tokens: its summary is walked from there on, in another chunk for every
// head. Keys of twice the length make a token's transition one that does not shrink, after which nothing is skipped.
TEST_CASE("matrix mixer on the GPU stays right where blocks forget their start") {
    for (const std::int64_t levels : {15, 0}) {
        MixerCase c = bf16_case(shape_of(4, 2, 128, 128, levels), 3 * kBlockTokens + 100, 13);
        const std::vector<float> decays = {-0.012F, -0.02F, -0.1F, -3.0F};
        for (std::size_t i = 0; i < c.log_decay.size(); ++i) c.log_decay[i] = decays[i % decays.size()];
        test::check_case(c, {c.tokens}, allowed, {Operand::kBf16}, {0, 1, 3});
        std::fill(c.beta.begin(), c.beta.end(), 0.75F);
        const std::size_t token = kBlockTokens + 3000;
        for (std::size_t i = 0; i < 2 * 128; ++i) c.k[token * 2 * 128 + i] *= 2.0F;
        test::check_case(c, {c.tokens}, allowed, {Operand::kBf16});
    }
}

TEST_CASE("a mixer refuses nodes above fewer blocks than its outputs follow") {
    const float node = 0.0F;
    cuda::MixerInputs in;
    in.rows = 3 * kBlockTokens + 1;
    CHECK_THROWS_WITH(cuda::mixer_outputs(shape_of(1, 1, 64, 64, 0), Operand::kBf16, in, 0, {}, {&node, &node, 2},
                                          nullptr, nullptr, nullptr),
                      "mixer_outputs: nodes above 2 blocks of a shard in which 3 are followed");
}

TEST_CASE("matrix mixer on the GPU gives the same bits for every cut and again") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {15, 0}) {
            const MixerCase c = bf16_case(shape_of(2, 1, 128, 128, levels), 4 * kBlockTokens + 777, 9);
            test::check_bits(c, operand, {{0, 1}, {0, 2, 3}, {0, 1, 2, 3, 4}}, 2 * kBlockTokens + 5);
        }
    }
    const MixerCase c = bf16_case(shape_of(2, 1, 256, 40, 15), 3 * kBlockTokens + 70, 9);
    test::check_bits(c, Operand::kBf16, {{0, 1}, {0, 2, 3}}, kBlockTokens + 5);
}

TEST_CASE("matrix mixer on the GPU reads more entering states than one pass takes") {
    // Blocks from 63 on have six.
    const MixerCase c = bf16_case(shape_of(1, 1, 64, 16, 20), 64 * kBlockTokens, 10);
    test::check_case(c, {c.tokens}, allowed, {Operand::kBf16});
    test::check_bits(c, Operand::kBf16, {{0, 31}, {0, 63}}, 63 * kBlockTokens + 1);
}

TEST_CASE("matrix mixer on the GPU with offsets past 2^31", "[large]") {
    test::check_offsets(TransitionAlgebra::kMatrix, allowed);
}

TEST_CASE("matrix mixer on the GPU with more blocks times heads than 65,535", "[large]") {
    test::check_many_heads(TransitionAlgebra::kMatrix, allowed);
}

TEST_CASE("matrix mixer on the GPU with the shared memory of smaller GPUs") {
    for (const int kibibytes : {163, 99}) {
        const cuda::SharedLimit limit(kibibytes * 1024);
        for (const std::int64_t levels : {15, 0}) {
            const MixerCase c = bf16_case(shape_of(2, 1, 128, 128, levels), 8300, 11);
            test::check_case(c, {8300}, allowed, {Operand::kBf16});
            test::check_case(bf16_case(shape_of(2, 1, 64, 64, levels), 4300, 12), {4300}, allowed, {Operand::kBf16});
        }
    }
}

// Few and short, for compute-sanitizer (ops/gpu-check --sanitize): the matrix units' kernels in two shards with a last
// block that is not whole, the plain ones on the start of a block.
TEST_CASE("matrix mixer on the GPU on small sizes", "[small]") {
    for (const std::int64_t levels : {15, 0}) {
        for (const std::int64_t key_dim : {64, 128}) {
            const MixerCase c = bf16_case(shape_of(1, 1, key_dim, 72, levels), kBlockTokens + 150, 8);
            test::check_case(c, {c.tokens}, allowed, {Operand::kBf16}, {0, 1});
        }
        test::check_case(bf16_case(shape_of(1, 1, 40, 24, levels), 130, 9), {130}, allowed);
    }
}

}  // namespace
}  // namespace fenwick
