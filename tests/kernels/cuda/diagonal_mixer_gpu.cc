// The diagonal algebra on the GPU against the double reference, over shapes, lengths, decays and cuts.
//
// Bounds, as shares of the sum of magnitudes. fp32: that of tests/kernels/mixer_test.cc, as the sums have the same
// lengths. bf16 (unit 2^-9, inputs exact): a term of the chunk itself is rounded with its decayed query, its decayed
// key, its score and its output, a term of an older chunk with query, key, state (log-linear: as a node, and when
// decayed to the reading chunk) and output: at most five times; 2^-11 for __expf and the second order.
#include <cmath>

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
    return {TransitionAlgebra::kDiagonal, heads, key_heads, key_dim, value_dim, levels};
}

double allowed(const MixerShape& shape, Operand operand) {
    if (operand == Operand::kBf16) return (5 * 0x1p-9 + 0x1p-11) / 0x1p-24;
    return std::sqrt(static_cast<double>(shape.key_dim) + 64 + 64 + 40) + 4;
}

TEST_CASE("diagonal mixer on the GPU agrees with the reference at every length") {
    for (const std::int64_t levels : {15, 0}) {
        // Lengths around chunk, group, span and block.
        test::check_case(bf16_case(shape_of(4, 2, 128, 64, levels), 9000, 1),
                         {1, 63, 64, 65, 127, 128, 129, 1024, 1025, 2049, 4095, 4096, 4097, 8192, 9000}, allowed);
    }
}

TEST_CASE("diagonal mixer on the GPU agrees with the reference for every head shape") {
    for (const std::int64_t key_dim : {64, 128, 192, 256}) {
        for (const std::int64_t value_dim : {32, 64, 128, 192, 256}) {
            // Two key groups; levels fewer than the document has, so that the last lambda stands for more.
            for (const std::int64_t levels : {9, 0}) {
                test::check_case(bf16_case(shape_of(4, 2, key_dim, value_dim, levels), 1100, 2), {1100}, allowed);
            }
        }
    }
    test::check_case(bf16_case(shape_of(2, 1, 64, 128, 16), 13000, 3), {13000}, allowed);
    test::check_case(bf16_case(shape_of(2, 2, 128, 128, 0), 13000, 4), {13000}, allowed);
    test::check_case(bf16_case(shape_of(2, 2, 128, 72, 1), 4500, 4), {4500}, allowed);
    test::check_case(bf16_case(shape_of(2, 2, 256, 96, 15), 9000, 5), {9000}, allowed);
}

TEST_CASE("diagonal mixer on the GPU stays right for strong decay and for none") {
    for (const std::int64_t levels : {15, 0}) {
        for (const float decay : {0.0F, -20.0F, -320.0F, -kInfinity}) {
            MixerCase c = bf16_case(shape_of(2, 1, 128, 64, levels), 4500, 5);
            std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
            test::check_case(c, {4500}, allowed);
        }
        // A few forgetful channels of tokens among mild ones: they must not disturb the others.
        MixerCase c = bf16_case(shape_of(2, 1, 128, 64, levels), 9000, 6);
        for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
        test::check_case(c, {9000}, allowed);
    }
}

TEST_CASE("diagonal mixer on the GPU gives the same bits for every cut and again") {
    for (const Operand operand : {Operand::kBf16, Operand::kFp32}) {
        for (const std::int64_t levels : {17, 0}) {
            const MixerCase c = bf16_case(shape_of(2, 1, 128, 64, levels), 7 * kBlockTokens + 777, 7);
            test::check_bits(c, operand, {{0, 1}, {0, 3, 4}, {0, 6, 7}, {0, 1, 2, 3, 4, 5, 6}}, 5 * kBlockTokens + 5);
        }
    }
}

TEST_CASE("diagonal mixer on the GPU with offsets past 2^31", "[large]") {
    test::check_offsets(TransitionAlgebra::kDiagonal, allowed);
}

TEST_CASE("diagonal mixer on the GPU with more blocks times heads than 65,535", "[large]") {
    test::check_many_heads(TransitionAlgebra::kDiagonal, allowed);
}

TEST_CASE("diagonal mixer on the GPU with the shared memory of smaller GPUs") {
    for (const int kibibytes : {163, 99}) {
        const cuda::SharedLimit limit(kibibytes * 1024);
        for (const std::int64_t levels : {15, 0}) {
            test::check_case(bf16_case(shape_of(2, 1, 128, 64, levels), 4500, 8), {4500}, allowed);
        }
    }
}

// Few and short, for compute-sanitizer (ops/gpu-check --sanitize): the matrix units' kernels in two shards with a last
// block that is not whole, the plain ones on the start of a block.
TEST_CASE("diagonal mixer on the GPU on small sizes", "[small]") {
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
