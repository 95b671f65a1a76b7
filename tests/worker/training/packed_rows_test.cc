// Packed documents: places that keep levels, little padding, and a mixer that cannot tell them from documents alone.
#include "worker/packed_rows.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "core/errors.h"
#include "core/fenwick.h"
#include "core/tensor.h"
#include "kernels/gemm.h"
#include "kernels/mixer.h"

using namespace fenwick;

namespace {

void check_places(const std::vector<std::int64_t>& lengths, bool log_linear) {
    const PackedRows packed = pack_rows(lengths, log_linear);
    REQUIRE(packed.first_rows.size() == lengths.size());
    std::int64_t tokens = 0;
    std::int64_t end = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t first = packed.first_rows[i];
        const auto size = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(lengths[i])));
        if (log_linear) CHECK(first % size == 0);
        taken.emplace_back(first, first + lengths[i]);
        tokens += lengths[i];
        end = std::max(end, first + lengths[i]);
    }
    CHECK(packed.rows == end);
    CHECK(packed.rows <= (log_linear ? 2 * tokens : tokens));
    std::sort(taken.begin(), taken.end());
    CHECK((taken.empty() || taken.front().first == 0));
    for (std::size_t i = 1; i < taken.size(); ++i) CHECK(taken[i - 1].second <= taken[i].first);
    const std::vector<std::int32_t> positions = positions_of(packed, packed.rows);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (std::int64_t t = 0; t < lengths[i]; t += std::max<std::int64_t>(lengths[i] / 3, 1)) {
            CHECK(positions[static_cast<std::size_t>(packed.first_rows[i] + t)] == t);
        }
    }
}

}  // namespace

TEST_CASE("packed documents keep apart, aligned, and within twice their tokens") {
    for (const bool log_linear : {true, false}) {
        check_places({}, log_linear);
        check_places({1}, log_linear);
        check_places({5, 5, 5, 3, 1, 1, 2}, log_linear);
        check_places({1, 1, 4096, 1, 4097, 2}, log_linear);
        check_places({65, 65, 65, 65}, log_linear);
        std::mt19937 random(3);
        for (int round = 0; round < 20; ++round) {
            std::vector<std::int64_t> lengths;
            for (int i = 0; i < 50; ++i) {
                lengths.push_back(1 + static_cast<std::int64_t>(random() % (1U << (random() % 14))));
            }
            check_places(lengths, log_linear);
        }
    }
    // Equal powers of two leave nothing, and holes are filled: 5 of 8 rows leave 1 and 2.
    CHECK(pack_rows(std::vector<std::int64_t>(7, 512), true).rows == 7 * 512);
    CHECK(pack_rows(std::vector<std::int64_t>{5, 2, 1}, true).rows == 8);
    CHECK_THROWS_AS(pack_rows(std::vector<std::int64_t>{3, 0}, true), InternalError);
    CHECK_THROWS_AS(positions_of({{4}, 5}, 6), InternalError);
}

TEST_CASE("a mixer gives packed documents what it gives them alone") {
    initialise_blas();
    const std::vector<std::int64_t> lengths = {70, 3, 1, 64, 130, 33, 5000};
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (const TransitionAlgebra algebra : {TransitionAlgebra::kScalar, TransitionAlgebra::kMatrix}) {
        for (const std::int64_t levels : {0, 15}) {
            const MixerShape shape{algebra, 2, 1, 8, 8, levels};
            const bool matrix = algebra == TransitionAlgebra::kMatrix;
            const PackedRows packed = pack_rows(lengths, shape.log_linear());
            const std::int64_t rows = packed.rows;
            Buffer<float> q(rows * 8);
            Buffer<float> k(rows * 8);
            Buffer<float> v(rows * 16);
            Buffer<float> decay(rows * 2);
            Buffer<float> beta(rows * 2);
            Buffer<float> lambda(rows * 2 * std::max<std::int64_t>(levels, 1));
            for (float& x : q) x = normal(random);
            for (float& x : k) x = 0.3F * normal(random);
            for (float& x : v) x = normal(random);
            for (float& x : decay) x = -0.02F * std::fabs(normal(random));
            for (float& x : beta) x = 0.5F;
            for (float& x : lambda) x = std::fabs(normal(random));
            const auto inputs_of = [&](std::int64_t first, std::int64_t count) {
                MixerInputs inputs;
                inputs.q = q.matrix(rows, 8).row_range(first, count);
                inputs.k = k.matrix(rows, 8).row_range(first, count);
                inputs.v = v.matrix(rows, 16).row_range(first, count);
                inputs.log_decay = decay.matrix(rows, 2).row_range(first, count);
                if (matrix) inputs.beta = beta.matrix(rows, 2).row_range(first, count);
                if (levels > 0) inputs.lambda = lambda.matrix(rows, 2 * levels).row_range(first, count);
                return inputs;
            };
            const auto mix = [&](std::int64_t first, std::int64_t count, Buffer<float>& out) {
                const std::int64_t blocks = (count - 1) / kBlockTokens;
                out = Buffer<float>(count * 16);
                Buffer<float> summaries(std::max<std::int64_t>(blocks * summary_floats(shape), 1));
                Buffer<float> workspace(mixer_workspace_floats(shape, blocks));
                mixer_block_summaries(shape, inputs_of(first, count), blocks, summaries.data(), 1, workspace.data());
                mixer_outputs(shape, inputs_of(first, count), 0, {}, summaries.data(), out.matrix(count, 16), 1,
                              workspace.data());
            };
            std::vector<Buffer<float>> alone(lengths.size());
            for (std::size_t i = 0; i < lengths.size(); ++i) mix(packed.first_rows[i], lengths[i], alone[i]);
            for (const std::int64_t first : packed.first_rows) {
                for (std::int64_t h = 0; h < 2; ++h) {
                    decay.data()[2 * first + h] = -std::numeric_limits<float>::infinity();
                }
            }
            Buffer<float> together;
            mix(0, rows, together);
            for (std::size_t i = 0; i < lengths.size(); ++i) {
                double error = 0.0;
                double size = 0.0;
                for (std::int64_t t = 0; t < lengths[i] * 16; ++t) {
                    const double want = static_cast<double>(alone[i].data()[t]);
                    const double got = static_cast<double>(together.data()[packed.first_rows[i] * 16 + t]);
                    error += (got - want) * (got - want);
                    size += want * want;
                }
                INFO((matrix ? "matrix" : "scalar") << ", " << levels << " levels, " << lengths[i] << " tokens");
                // Two orders of sums of at most 5,000 terms whose roundings are independent: 2^-24 sqrt(5000) at most.
                CHECK(std::sqrt(error / size) <= 5e-6);
            }
        }
    }
}
