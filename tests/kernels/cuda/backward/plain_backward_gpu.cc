// The plain gradients of all mixers on the GPU against the double reference: every algebra and read-out, in shards,
// with odd sizes, grouped keys and hard decays.
//
// Bounds. A gradient is a sum of products, formed by recurrences of at most n = 4,096 tokens a block, then of blocks
// and levels, and by sums over d_k, d_v and heads. Every step of a recurrence multiplies by a rounded decay and adds:
// two roundings of 2^-24 and two of expf. Roundings of both signs: 2 sqrt(n + d_k + d_v) + 8 units of 2^-24 of the sum
// of the terms' magnitudes; the matrix algebra forms p and r besides and subtracts them: a factor of 4 as on the CPU.
// In the diagonal algebra nodes' log decays of up to 104 are rounded before their exp: 104 units more.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/cuda/backward/mixer_gradients_gpu.h"

namespace fenwick {
namespace {

using cuda::Operand;
using test::bf16_case;
using test::check_gradients;
using testing::MixerCase;

constexpr TransitionAlgebra kAlgebras[] = {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal,
                                           TransitionAlgebra::kMatrix};

double allowed(const MixerShape& shape, Operand /*operand*/, const std::string& /*field*/) {
    const double units = std::sqrt(4096.0 + static_cast<double>(shape.key_dim + shape.value_dim)) + 8;
    if (shape.algebra == TransitionAlgebra::kMatrix) return 4 * units;
    return units + 104;  // nodes' log decays are sums, rounded before their exp
}

void check_lengths(const std::vector<std::int64_t>& lengths) {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {15, 3, 0}) {
            for (const std::int64_t tokens : lengths) {
                check_gradients(bf16_case({algebra, 4, 2, 7, 5, levels}, tokens, 1), allowed);
            }
        }
    }
}

// compute-sanitizer needs minutes for more.
TEST_CASE("plain mixer gradients on the GPU agree with the reference for short documents", "[small]") {
    check_lengths({1, 65});
}

TEST_CASE("plain mixer gradients on the GPU agree with the reference") {
    check_lengths({300});
}

TEST_CASE("plain mixer gradients on the GPU agree over blocks") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {15, 0}) {
            check_gradients(test::bf16_long_case({algebra, 1, 1, 7, 5, levels}, 3 * kBlockTokens + 130, 2), allowed,
                            {Operand::kFp32});
        }
    }
}

TEST_CASE("plain mixer gradients on the GPU agree in shards") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {15, 0}) {
            check_gradients(test::bf16_long_case({algebra, 1, 1, 6, 5, levels}, 7 * kBlockTokens + 130, 3), allowed,
                            {Operand::kFp32}, {0, 1, 3});
            check_gradients(test::bf16_long_case({algebra, 1, 1, 6, 5, levels}, 6 * kBlockTokens, 4), allowed,
                            {Operand::kFp32}, {0, 3, 5});
        }
    }
}

TEST_CASE("plain mixer gradients on the GPU agree for every head shape") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t key_dim : {1, 32, 33, 72, 200, 256}) {
            for (const std::int64_t value_dim : {1, 32, 40, 256}) {
                check_gradients(bf16_case({algebra, 2, 1, key_dim, value_dim, 9}, 33, 5), allowed, {Operand::kFp32});
            }
        }
    }
}

TEST_CASE("plain mixer gradients on the GPU stay right for strong decay and for none") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {15, 0}) {
            for (const float decay : {0.0F, -20.0F, -320.0F, -test::kInfinity}) {
                MixerCase c = bf16_case({algebra, 2, 1, 7, 5, levels}, 150, 6);
                std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
                check_gradients(c, allowed, {Operand::kFp32});
            }
            MixerCase c = bf16_case({algebra, 2, 1, 7, 5, levels}, 400, 7);
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) {
                c.log_decay[i] = i % 2 == 0 ? -test::kInfinity : -5e5F;
            }
            check_gradients(c, allowed, {Operand::kFp32});
        }
    }
}

TEST_CASE("mixer gradients on the GPU name what does not fit") {
    const MixerCase c = bf16_case({TransitionAlgebra::kMatrix, 2, 1, 7, 5, 15}, 64, 3);
    const cuda::Stream stream;
    test::DeviceCase device(c, Operand::kFp32, stream.get());
    test::DeviceGradients gradients(c, stream.get());
    cuda::MixerGradients missing = gradients.rows(c, 0);
    missing.beta = nullptr;
    const auto call = [&](const MixerShape& shape, std::int64_t first_block, const cuda::MixerGradients& to) {
        cuda::mixer_outputs_backward(shape, Operand::kFp32, device.rows(0, 64), first_block, {}, {}, nullptr, 0, to, {},
                                     nullptr, false, nullptr, stream.get());
    };
    CHECK_THROWS_WITH(call(c.shape, 0, missing), Catch::Contains("of q, k, v, log decay, beta, lambda, found"));
    CHECK_THROWS_WITH(call(c.shape, 1, gradients.rows(c, 0)), Catch::Contains("do not enter block 1"));
    MixerShape wide = c.shape;
    wide.key_dim = 257;
    CHECK_THROWS_WITH(call(wide, 0, gradients.rows(c, 0)), Catch::Contains("d_k 257"));
}

}  // namespace
}  // namespace fenwick
