// The mixers against their definition in double, and the properties that follow from it.
//
// Tolerance. Every output is a sum of products; the kernels add it up as dot products over d_k, over the 64 rows of a
// chunk, over the 64 chunks of a block and over the buckets, and each decay is one exp (1.1 ulp) of a sum held in
// double. With n the longest chain of additions, |error| <= n * u * sum of |terms| (u = 2^-24), and n <= d_k + 64 + 64
// + 40. Roundings are of both signs, so what is seen is near sqrt(n); the tests allow sqrt(n) + 4. The matrix algebra's
// triangle is solved against a matrix of norm <= 64 / 2, whose growth is covered by a factor of 4.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "tests/kernels/mixer_inputs.h"

namespace fenwick {
namespace {

using testing::MixerCase;

constexpr TransitionAlgebra kAlgebras[] = {TransitionAlgebra::kScalar, TransitionAlgebra::kDiagonal,
                                           TransitionAlgebra::kMatrix};

double allowed(const MixerShape& shape) {
    const double n = static_cast<double>(shape.key_dim) + 64 + 64 + 40;
    return (std::sqrt(n) + 4) * (shape.algebra == TransitionAlgebra::kMatrix ? 4 : 1);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() <= b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// For documents whose dense evaluation costs tokens^2.
MixerShape one_head(TransitionAlgebra algebra, std::int64_t levels) {
    return {algebra, 1, 1, 16, 8, levels};
}

MixerShape small_shape(TransitionAlgebra algebra, std::int64_t levels) {
    return {algebra, 2, 1, 16, 24, levels};
}

std::string label(const MixerShape& shape, std::int64_t tokens) {
    return "algebra " + std::to_string(static_cast<int>(shape.algebra)) + ", levels " + std::to_string(shape.levels) +
           ", tokens " + std::to_string(tokens);
}

}  // namespace

// Tokens, chunks and blocks each with one less, one more, and none over; 20,000 has five blocks, so entering buckets of
// two levels, and passes the 15 levels' 16,384 tokens. One dense evaluation serves all lengths (causality).
TEST_CASE("mixers agree with the dense definition at every length") {
    constexpr std::int64_t kLongest = 20000;
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerShape shape = one_head(algebra, levels);
            const MixerCase full = testing::random_case(shape, kLongest, 7);
            const std::vector<double> want = reference::mixer_dense(shape, full.widened(), 2);
            const std::vector<double> bound = testing::magnitude(full, 2);
            for (const std::int64_t tokens : {1, 2, 63, 64, 65, 300, 4095, 4096, 4097, 8192, 20000}) {
                INFO(label(shape, tokens));
                const std::vector<float> got = testing::run_mixer(full.first_tokens(tokens), 2);
                CHECK(testing::worst_error(got, want, bound) < allowed(shape));
            }
        }
    }
}

TEST_CASE("dense and recurrent mixer references agree") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 3, 12}) {
            const MixerShape shape{algebra, 4, 2, 8, 6, levels};
            const MixerCase c = testing::random_case(shape, 700, 11);
            const std::vector<double> dense = reference::mixer_dense(shape, c.widened());
            const std::vector<double> recurrent = reference::mixer_recurrent(shape, c.widened());
            const std::vector<double> bound = testing::magnitude(c);
            for (std::size_t i = 0; i < dense.size(); ++i) {
                REQUIRE(std::fabs(dense[i] - recurrent[i]) <= 1e-13 * bound[i]);
            }
        }
    }
}

// Published head shapes, grouped keys, a lambda with fewer levels than the chunk has, and d_v no multiple of the
// vector.
TEST_CASE("mixers take grouped keys and uneven head shapes") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        const std::pair<MixerShape, std::int64_t> cases[] = {{{algebra, 2, 1, 128, 64, 14}, 700},
                                                             {{algebra, 6, 3, 64, 32, 5}, 300},
                                                             {{algebra, 2, 2, 256, 33, 0}, 300},
                                                             {{algebra, 1, 1, 1, 1, 2}, 4170}};
        for (const auto& [shape, tokens] : cases) {
            const MixerCase c = testing::random_case(shape, tokens, 5);
            INFO(label(shape, tokens) << ", d_k " << shape.key_dim << ", d_v " << shape.value_dim);
            const std::vector<double> want = reference::mixer_dense(shape, c.widened(), 2);
            CHECK(testing::worst_error(testing::run_mixer(c, 2), want, testing::magnitude(c, 2)) < allowed(shape));
        }
    }
}

TEST_CASE("lambda of one makes every log-linear mixer the linear one") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        MixerCase c = testing::random_case(small_shape(algebra, 15), 9000, 3);
        std::fill(c.lambda.begin(), c.lambda.end(), 1.0F);
        MixerCase linear = c;
        linear.shape.levels = 0;
        linear.lambda.clear();
        const std::vector<float> line = testing::run_mixer(linear);
        const std::vector<double> want(line.begin(), line.end());
        // Both carry their own rounding.
        CHECK(testing::worst_error(testing::run_mixer(c), want, testing::magnitude(c)) < 2 * allowed(c.shape));
    }
}

TEST_CASE("a mixer's rows have the same bits in every longer document and for any threads") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = testing::random_case(small_shape(algebra, levels), 13000, 9);
            const std::vector<float> full = testing::run_mixer(c, 1);
            CHECK(same_bits(testing::run_mixer(c, 3), full));
            for (const std::int64_t tokens : {1, 63, 65, 4097, 8193}) {
                INFO(label(c.shape, tokens));
                CHECK(same_bits(testing::run_mixer(c.first_tokens(tokens)), full));
            }
        }
    }
}

// A shard in the middle of the document gets its entering nodes as the exchange would give them: formed by combining
// siblings. Its rows must equal those of the whole document bit by bit.
TEST_CASE("a shard's rows have the bits of the whole document") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerCase c = testing::random_case(small_shape(algebra, levels), 8 * kBlockTokens - 100, 21);
            const std::vector<float> full = testing::run_mixer(c);
            const std::int64_t one = summary_floats(c.shape);
            std::vector<float> blocks(static_cast<std::size_t>(7 * one));
            Buffer<float> workspace(mixer_workspace_floats(c.shape, 7));
            mixer_block_summaries(c.shape, c.rows(0, c.tokens), 7, blocks.data(), 1, workspace.data());
            // Block 6 = 110b is entered by node (2, 0) of blocks 0..3 and node (1, 2) of blocks 4 and 5.
            std::vector<std::vector<float>> nodes(4, std::vector<float>(static_cast<std::size_t>(one)));
            const auto block = [&](std::int64_t b) { return blocks.data() + b * one; };
            combine_summaries(c.shape, block(0), block(1), nodes[0].data(), 1);
            combine_summaries(c.shape, block(2), block(3), nodes[1].data(), 1);
            combine_summaries(c.shape, nodes[0].data(), nodes[1].data(), nodes[2].data(), 2);
            combine_summaries(c.shape, block(4), block(5), nodes[3].data(), 1);
            const EnteringNode entering[] = {{2, nodes[2].data()}, {1, nodes[3].data()}};

            const std::int64_t first = 6 * kBlockTokens;
            const std::int64_t columns = c.shape.heads * c.shape.value_dim;
            std::vector<float> part(static_cast<std::size_t>((c.tokens - first) * columns), NAN);
            mixer_outputs(c.shape, c.rows(first, c.tokens - first), 6, entering, block(6),
                          {part.data(), c.tokens - first, columns}, 1, workspace.data());
            INFO(label(c.shape, c.tokens));
            CHECK(std::memcmp(part.data(), full.data() + first * columns, part.size() * sizeof(float)) == 0);
            CHECK_THROWS_AS(mixer_outputs(c.shape, c.rows(first, 64), 5, entering, block(6), {part.data(), 64, columns},
                                          1, workspace.data()),
                            InternalError);
        }
    }
}

TEST_CASE("mixers are causal") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        const MixerCase c = testing::random_case(small_shape(algebra, 15), 4300, 13);
        const std::vector<float> before = testing::run_mixer(c);
        constexpr std::int64_t kChanged = 4201;
        MixerCase changed = c;
        for (std::int64_t i = 0; i < c.shape.key_dim; ++i) changed.k[kChanged * c.shape.key_dim + i] += 1.0F;
        const std::vector<float> after = testing::run_mixer(changed);
        const std::size_t row = static_cast<std::size_t>(c.shape.heads * c.shape.value_dim);
        CHECK(std::memcmp(before.data(), after.data(), kChanged * row * sizeof(float)) == 0);
        CHECK(std::memcmp(before.data() + kChanged * row, after.data() + kChanged * row, row * sizeof(float)) != 0);
    }
}

// CASES A2: 64-token sums of -1280 and 256-token sums of -4096 overflow exp(-G); -inf is a legal log decay.
TEST_CASE("strong and infinite decays stay finite and right") {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            for (const float decay : {-16.0F, -20.0F, -320.0F, -kInfinity}) {
                MixerCase c = testing::random_case(one_head(algebra, levels), 4170, 17);
                std::fill(c.log_decay.begin(), c.log_decay.end(), decay);
                INFO(label(c.shape, c.tokens) << ", log decay " << decay);
                const std::vector<double> want = reference::mixer_dense(c.shape, c.widened(), 2);
                CHECK(testing::worst_error(testing::run_mixer(c), want, testing::magnitude(c, 2)) < allowed(c.shape));
            }
            // A few forgetful tokens among mild ones: differences of large sums must not lose the small decays.
            MixerCase c = testing::random_case(one_head(algebra, levels), 4170, 18);
            for (std::size_t i = 0; i < c.log_decay.size(); i += 37) c.log_decay[i] = i % 2 == 0 ? -kInfinity : -5e5F;
            const std::vector<double> want = reference::mixer_dense(c.shape, c.widened());
            CHECK(testing::worst_error(testing::run_mixer(c), want, testing::magnitude(c)) < allowed(c.shape));
        }
    }
}

// The gate of exactly 1 (log decay 0) and beta of exactly 1 (the key's direction is replaced) are legal and common.
TEST_CASE("no decay and beta of one stay right over blocks") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        for (const std::int64_t levels : {0, 15}) {
            MixerCase c = testing::random_case(one_head(algebra, levels), 9000, 19);
            std::fill(c.log_decay.begin(), c.log_decay.end(), 0.0F);
            std::fill(c.beta.begin(), c.beta.end(), 1.0F);
            INFO(label(c.shape, c.tokens));
            const std::vector<double> want = reference::mixer_dense(c.shape, c.widened(), 2);
            CHECK(testing::worst_error(testing::run_mixer(c, 2), want, testing::magnitude(c, 2)) < allowed(c.shape));
        }
    }
}

// CASES A2's closed forms: k = q = unit vector, v = 1.
TEST_CASE("constant inputs reach the closed forms of strong decay") {
    MixerCase c = testing::random_case({TransitionAlgebra::kMatrix, 1, 1, 1, 1, 0}, 300, 1);
    for (auto* x : {&c.q, &c.k, &c.v}) std::fill(x->begin(), x->end(), 1.0F);
    std::fill(c.beta.begin(), c.beta.end(), 0.5F);
    std::fill(c.log_decay.begin(), c.log_decay.end(), -20.0F);
    CHECK(testing::run_mixer(c).back() == Approx(0.5 / (1 - 0.5 * std::exp(-20.0))).epsilon(1e-6));

    MixerCase s = testing::random_case({TransitionAlgebra::kScalar, 1, 1, 1, 1, 0}, 300, 1);
    for (auto* x : {&s.q, &s.k, &s.v}) std::fill(x->begin(), x->end(), 1.0F);
    std::fill(s.log_decay.begin(), s.log_decay.end(), -16.0F);
    CHECK(testing::run_mixer(s).back() == Approx(1.0 / (1 - std::exp(-16.0))).epsilon(1e-6));
}

TEST_CASE("a NaN in the inputs of a mixer shows in its outputs") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        MixerCase c = testing::random_case(small_shape(algebra, 15), 200, 23);
        c.log_decay[static_cast<std::size_t>(100 * c.decay_columns())] = NAN;
        const std::vector<float> out = testing::run_mixer(c);
        bool seen = false;
        for (const float x : out) seen = seen || std::isnan(x);
        CHECK(seen);
    }
}

// The summary's two parts, each against what it means: A S + S_block is the state after the block.
TEST_CASE("a combined summary equals the state carried through both blocks") {
    for (const TransitionAlgebra algebra : kAlgebras) {
        MixerShape shape = one_head(algebra, 0);
        const MixerCase c = testing::random_case(shape, 3 * kBlockTokens, 29);
        // Read the state after two blocks with a third block's first token, whose own write is zero.
        MixerCase probe = c;
        for (std::int64_t i = 0; i < shape.heads * shape.value_dim; ++i) {
            probe.v[static_cast<std::size_t>(2 * kBlockTokens * shape.heads * shape.value_dim + i)] = 0.0F;
        }
        const std::vector<double> want = reference::mixer_dense(shape, probe.widened(), 2);
        const std::vector<float> got = testing::run_mixer(probe);
        const std::vector<double> bound = testing::magnitude(probe, 2);
        CHECK(testing::worst_error(got, want, bound) < allowed(shape));
    }
}

}  // namespace fenwick
