#include "kernels/adamw.h"

#include "core/errors.h"
#include "kernels/reference/adamw.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

struct Vectors {
    explicit Vectors(std::int64_t size) : values(size), first(size), second(size) {}
    [[nodiscard]] AdamWRun run(std::int64_t begin, std::int64_t count, const float* gradient, bool decayed) {
        return {count, gradient + begin, values.data() + begin, first.data() + begin, second.data() + begin, decayed};
    }
    std::vector<float> values, first, second;
};

}  // namespace

TEST_CASE("AdamW reaches the value of CASES H3 after four steps") {
    Vectors one(1);
    const AdamW hyper{0.1, 0.9, 0.95, 1e-8, 0.0};
    std::int64_t step = 0;
    for (const float gradient : {1.0F, -2.0F, 0.5F, 3.0F}) {
        adamw_step(hyper, ++step, 1.0F, one.run(0, 1, &gradient, true), 1);
    }
    CHECK(one.values[0] == Approx(-0.0886554).margin(1e-7));
}

TEST_CASE("AdamW equals the double reference over steps") {
    constexpr std::int64_t kSize = 40001;  // three tasks and an odd rest
    const AdamW hyper{3e-3, 0.9, 0.95, 1e-8, 0.1};
    const bool decayed = GENERATE(false, true);
    Vectors vectors(kSize);
    std::vector<reference::AdamWState> states(kSize);
    const TestMatrix start = TestMatrix::normal(1, kSize, 1);
    for (std::int64_t i = 0; i < kSize; ++i) {
        vectors.values[i] = start.at(0, i);
        states[i].value = start.at(0, i);
    }
    for (std::int64_t step = 1; step <= 20; ++step) {
        const TestMatrix gradient = TestMatrix::normal(1, kSize, 100 + static_cast<std::uint32_t>(step), 1e-3F);
        adamw_step(hyper, step, 0.25F, vectors.run(0, kSize, gradient.view().data, decayed), 2);
        for (std::int64_t i = 0; i < kSize; ++i) {
            states[i] = reference::adamw_step(hyper, step, 0.25 * gradient.at(0, i), decayed, states[i]);
        }
    }
    for (std::int64_t i = 0; i < kSize; ++i) {
        // A step moves by at most about learning_rate, with an error of 8 roundings of its own, in which the moments'
        // (20 steps' roundings of terms below 4e-3) count by their share; the value rounds at every step.
        const double allowed = 20 * (hyper.learning_rate * 40 * kEps + 5 * kEps / 2);
        CAPTURE(i);
        REQUIRE(std::abs(static_cast<double>(vectors.values[i]) - states[i].value) <= allowed);
        REQUIRE(std::abs(static_cast<double>(vectors.second[i]) - states[i].v) <= 40 * kEps * states[i].v);
    }
}

TEST_CASE("AdamW steps have the same bits with any threads and any cut into runs") {
    constexpr std::int64_t kSize = 50000;
    const AdamW hyper{1e-2, 0.9, 0.95, 1e-8, 0.1};
    const TestMatrix gradient = TestMatrix::normal(1, kSize, 1);
    Vectors whole(kSize);
    for (std::int64_t step = 1; step <= 3; ++step) {
        adamw_step(hyper, step, 1.0F, whole.run(0, kSize, gradient.view().data, true), 1);
    }
    for (const std::int64_t cut : {1, 7, 16384, 33333}) {
        Vectors parts(kSize);
        for (std::int64_t step = 1; step <= 3; ++step) {
            adamw_step(hyper, step, 1.0F, parts.run(0, cut, gradient.view().data, true), 2);
            adamw_step(hyper, step, 1.0F, parts.run(cut, kSize - cut, gradient.view().data, true), 3);
        }
        REQUIRE(parts.values == whole.values);
        REQUIRE(parts.first == whole.first);
        REQUIRE(parts.second == whole.second);
    }
}

TEST_CASE("Gradients of zero move nothing but by the decay") {
    Vectors vectors(3);
    vectors.values = {1.0F, -2.0F, 0.5F};
    const std::vector<float> zeros(3, 0.0F);
    const std::vector<float> before = vectors.values;
    adamw_step({0.1, 0.9, 0.95, 1e-8, 0.1}, 1, 1.0F, vectors.run(0, 3, zeros.data(), false), 1);
    CHECK(vectors.values == before);
    adamw_step({0.1, 0.9, 0.95, 1e-8, 0.1}, 2, 1.0F, vectors.run(0, 3, zeros.data(), true), 1);
    for (std::size_t i = 0; i < 3; ++i) CHECK(vectors.values[i] == Approx(before[i] * 0.99).epsilon(1e-6));
    CHECK_THROWS_AS(adamw_step({}, 0, 1.0F, vectors.run(0, 3, zeros.data(), true), 1), InternalError);
}

TEST_CASE("squared_norm equals a sum in long double and does not depend on threads") {
    for (const std::int64_t size : {0, 1, 7, 8, 9, 16383, 16385, 100003}) {
        const TestMatrix values = TestMatrix::normal(1, size, 1 + static_cast<std::uint32_t>(size), 100.0F);
        long double exact = 0;
        for (std::int64_t i = 0; i < size; ++i) {
            exact += static_cast<long double>(values.at(0, i)) * static_cast<long double>(values.at(0, i));
        }
        const double one = squared_norm(values.view().data, size, 1);
        // Terms are positive: (size / 8 + 256 + 8) roundings of 2^-53 at most.
        const double roundings = static_cast<double>(size) / 8 + 264;
        CHECK(std::abs(one - static_cast<double>(exact)) <= roundings * 0x1p-53 * static_cast<double>(exact));
        CHECK(squared_norm(values.view().data, size, 2) == one);
        CHECK(squared_norm(values.view().data, size, 3) == one);
    }
    const std::vector<float> large = {1e30F, NAN};
    CHECK(squared_norm(large.data(), 1, 1) == Approx(1e60).epsilon(1e-6));
    CHECK(std::isnan(squared_norm(large.data(), 2, 1)));
}
