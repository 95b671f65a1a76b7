// The mixers' gradients on the CPU: the kernels against the double reference, that against central differences, and the
// properties that follow from the definition.
//
// Tolerance. Every gradient is a sum of products, as an output is: of d_out, lambda, q, decays, k and v. It is added up
// over d_k or d_v, over the rows of a chunk and the chunks of a block, and over nodes, both for the forward's values
// that are formed again and for the gradients. With n the longest chain, |error| <= n * u * sum of |terms| (u = 2^-24)
// and n <= d_k + d_v + 64 + 64 + 2 * 40; roundings are of both signs, so the tests allow sqrt(n) + 4. The matrix
// algebra's triangle is solved twice: a factor of 4 as in tests/kernels/mixer_test.cc. The diagonal algebra's decays
// are exps of fp32 sums of up to 104 (beyond that they are 0), and rounding such a sum by u of itself changes the exp
// by 104 u: gradients whose every term has passed such decays (of lambda's far levels, of log decays) may be off by
// that much more.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/backward/mixer_gradients.h"

namespace fenwick {
namespace {

using testing::MixerCase;
using testing::MixerGradientRows;

constexpr TransitionAlgebra kAlgebras[] = {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal,
                                           TransitionAlgebra::kMatrix};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

double allowed(const MixerShape& shape, const std::string& field) {
    const double n = static_cast<double>(shape.key_dim + shape.value_dim) + 64 + 64 + 80;
    const double chain = std::sqrt(n) + 4;
    if (shape.algebra == TransitionAlgebra::kMatrix) return 4 * chain;
    const bool far = shape.algebra == TransitionAlgebra::kDiagonal && (field == "lambda" || field == "log_decay");
    return far ? chain + 104 : chain;
}

std::string label(const MixerCase& c) {
    return "algebra " + std::to_string(static_cast<int>(c.shape.algebra)) + ", levels " +
           std::to_string(c.shape.levels) + ", tokens " + std::to_string(c.tokens);
}

// Heads share keys, and no size is a multiple of a vector.
MixerShape small_shape(TransitionAlgebra algebra, std::int64_t levels) {
    return {algebra, 2, 1, 7, 5, levels};
}

void check_against_reference(const MixerCase& c, const MixerGradientRows& got, const std::vector<float>& d_out) {
    const reference::MixerInputs want = testing::reference_gradients(c, d_out);
    const reference::MixerInputs bound = testing::gradient_magnitudes(c, d_out);
    for (const testing::NamedField& field : testing::kGradientFields) {
        INFO(label(c) << ", gradient of " << field.name);
        REQUIRE((got.*field.got).size() == (want.*field.want).size());
        CHECK(testing::worst_error(got.*field.got, want.*field.want, bound.*field.want) < allowed(c.shape, field.name));
    }
}

void check_against_reference(const MixerCase& c) {
    const std::vector<float> d_out = testing::random_d_out(c);
    check_against_reference(c, testing::kernel_gradients(c, d_out), d_out);
}

}  // namespace

// With step h the difference is off by h^2 / 6 of the third derivative (all terms are products of numbers near 1) and
// by the rounding of L over h: 1e-10 and 1e-11 of sums of about 10.
TEST_CASE("reference gradients of the mixers are central differences of the definition") {
    constexpr double kStep = 1e-5;
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 3, 12}) {
            const MixerShape shape{algebra, 4, 2, 3, 2, levels};
            const MixerCase c = testing::random_case(shape, 21, 31);
            const std::vector<float> d_out = testing::random_d_out(c);
            const reference::MixerInputs want = testing::reference_gradients(c, d_out);
            reference::MixerInputs moved = c.widened();
            const auto objective = [&] {
                const std::vector<double> out = reference::mixer_dense(shape, moved);
                double sum = 0.0;
                for (std::size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(d_out[i]) * out[i];
                return sum;
            };
            for (const testing::NamedField& field : testing::kGradientFields) {
                std::vector<double>& x = moved.*field.want;
                REQUIRE(x.size() == (want.*field.want).size());
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const double at = x[i];
                    x[i] = at + kStep;
                    const double above = objective();
                    x[i] = at - kStep;
                    const double below = objective();
                    x[i] = at;
                    const double expected = (above - below) / (2 * kStep);
                    INFO(label(c) << ", " << field.name << " " << i);
                    REQUIRE(std::fabs((want.*field.want)[i] - expected) < 2e-8 * (1 + std::fabs(expected)));
                }
            }
        }
    }
}

// Tokens, chunks and blocks with none over, one less and one more; four blocks, so that nodes are taken apart.
TEST_CASE("mixer gradients agree with the reference at every length") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerShape shape = small_shape(algebra, levels);
            for (const std::int64_t tokens : {1, 63, 64, 65, 200, 4096 + 77}) {
                check_against_reference(testing::random_case(shape, tokens, 7));
            }
            for (const std::int64_t tokens : {130, 3 * 4096 + 130}) {
                check_against_reference(testing::long_memory_case(shape, tokens, 7));
            }
        }
    }
}

TEST_CASE("mixer gradients take grouped keys, uneven heads and few levels") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        const std::pair<MixerShape, std::int64_t> cases[] = {{{algebra, 2, 1, 128, 64, 14}, 150},
                                                             {{algebra, 6, 3, 32, 16, 5}, 300},
                                                             {{algebra, 2, 2, 64, 33, 0}, 140},
                                                             {{algebra, 3, 1, 1, 1, 2}, 4170},
                                                             {{algebra, 1, 1, 9, 17, 1}, 4300}};
        for (const auto& [shape, tokens] : cases) check_against_reference(testing::random_case(shape, tokens, 5));
    }
}

// CASES A2: strong decays; -inf is legal. What no pair crosses has gradient 0 exactly, in the reference and here.
TEST_CASE("mixer gradients stay finite and right for strong and infinite decays") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            for (const float decay : {-1e-4F, -16.0F, -20.0F, -60.0F, -320.0F, -kInfinity}) {
                MixerCase c = testing::random_case(small_shape(algebra, levels), 300, 17);
                std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
                INFO("log decay " << decay);
                check_against_reference(c);
            }
            // A few forgetful tokens among mild ones.
            MixerCase c = testing::random_case(small_shape(algebra, levels), 4170, 18);
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
            check_against_reference(c);
            const MixerGradientRows got = testing::kernel_gradients(c, testing::random_d_out(c));
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) REQUIRE(got.log_decay[i] == 0.0F);
        }
    }
}

// A gate of exactly 1, a key's direction replaced (beta 1) or mirrored (beta 2), nothing written (beta 0).
TEST_CASE("mixer gradients are right without decay and for beta at its ends") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        const bool matrix = algebra == TransitionAlgebra::kMatrix;
        for (const std::int64_t levels : {0, 15}) {
            for (const float beta : {0.0F, 1.0F, 2.0F}) {
                if (!matrix && beta != 1.0F) continue;
                MixerCase c = testing::random_case(small_shape(algebra, levels), 4500, 19);
                std::fill(c.log_decay.begin(), c.log_decay.end(), 0.0F);
                std::fill(c.beta.begin(), c.beta.end(), beta);
                INFO("beta " << beta);
                check_against_reference(c);
            }
        }
    }
}

TEST_CASE("lambda of one gives the linear mixer's gradients") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        MixerCase c = testing::random_case(small_shape(algebra, 15), 9000, 3);
        std::fill(c.lambda.begin(), c.lambda.end(), 1.0F);
        MixerCase linear = c;
        linear.shape.levels = 0;
        linear.lambda.clear();
        const std::vector<float> d_out = testing::random_d_out(c);
        const MixerGradientRows got = testing::kernel_gradients(c, d_out);
        const MixerGradientRows line = testing::kernel_gradients(linear, d_out);
        const reference::MixerInputs bound = testing::gradient_magnitudes(linear, d_out);
        for (const testing::NamedField& field : testing::kGradientFields) {
            if (std::string(field.name) == "lambda") continue;
            const std::vector<float>& want = line.*field.got;
            INFO(label(c) << ", gradient of " << field.name);
            // Both carry their own rounding.
            CHECK(testing::worst_error(got.*field.got, {want.begin(), want.end()}, bound.*field.want) <
                  2 * allowed(c.shape, field.name));
        }
    }
}

// Rows after the last scored one get nothing, and their values change nothing; nothing scored, nothing at all (CASES
// H1).
TEST_CASE("mixer gradients are causal") {
    constexpr std::int64_t kScored = 4201;
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = testing::random_case(small_shape(algebra, levels), 8300, 13);
            std::vector<float> d_out = testing::random_d_out(c);
            const std::size_t columns = d_out.size() / static_cast<std::size_t>(c.tokens);
            std::fill(d_out.begin() + static_cast<std::ptrdiff_t>(kScored * columns), d_out.end(), 0.0F);
            const MixerGradientRows before = testing::kernel_gradients(c, d_out);
            MixerCase changed = c;
            for (auto* x : {&changed.q, &changed.k, &changed.v, &changed.beta, &changed.lambda}) {
                const std::size_t scored = x->size() / static_cast<std::size_t>(c.tokens) * kScored;
                for (std::size_t i = scored; i < x->size(); ++i) (*x)[i] *= -0.5F;
            }
            const MixerGradientRows after = testing::kernel_gradients(changed, d_out);
            for (const testing::NamedField& field : testing::kGradientFields) {
                INFO(label(c) << ", gradient of " << field.name);
                const std::vector<float>& x = before.*field.got;
                CHECK(x == after.*field.got);
                const auto first_unscored =
                    x.begin() + static_cast<std::ptrdiff_t>(x.size() / static_cast<std::size_t>(c.tokens) * kScored);
                CHECK(std::all_of(first_unscored, x.end(), [](float g) { return g == 0.0F; }));
                const auto nonzero = [](float g) { return g != 0.0F; };
                CHECK((x.empty() || std::any_of(x.begin(), first_unscored, nonzero)));
            }
            std::fill(d_out.begin(), d_out.end(), 0.0F);
            CHECK(testing::kernel_gradients(c, d_out) == MixerGradientRows(c));
        }
    }
}

TEST_CASE("mixer gradients have the same bits for any number of threads") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = testing::random_case({algebra, 4, 2, 3, 5, levels}, 2 * kBlockTokens + 77, 9);
            const std::vector<float> d_out = testing::random_d_out(c);
            const MixerGradientRows one = testing::kernel_gradients(c, d_out, 1);
            for (const int threads : {2, 3, 5}) {
                INFO(label(c) << ", threads " << threads);
                CHECK(testing::kernel_gradients(c, d_out, threads) == one);
            }
        }
    }
}

TEST_CASE("a NaN in a mixer's inputs shows in its gradients") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            MixerCase c = testing::random_case(small_shape(algebra, levels), 200, 23);
            c.log_decay[static_cast<std::size_t>(100 * c.decay_columns())] = NAN;
            const MixerGradientRows got = testing::kernel_gradients(c, testing::random_d_out(c));
            const auto is_nan = [](float x) { return std::isnan(x); };
            INFO(label(c));
            CHECK(std::any_of(got.v.begin(), got.v.end(), is_nan));
            CHECK(std::any_of(got.log_decay.begin(), got.log_decay.end(), is_nan));
        }
    }
}

}  // namespace fenwick
