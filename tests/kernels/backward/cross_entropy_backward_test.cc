#include "core/errors.h"
#include "kernels/backward/cross_entropy.h"
#include "kernels/backward/embedding.h"
#include "kernels/cross_entropy.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/rowwise_backward.h"
#include "tests/kernels/backward/gradients.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kHidden = 29;

/// Every fifth row is not scored; the last column of the last panel is a target.
std::vector<std::int32_t> random_targets(std::int64_t count, std::int64_t vocab, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::uniform_int_distribution<std::int32_t> distribution(0, static_cast<std::int32_t>(vocab - 1));
    std::vector<std::int32_t> targets(static_cast<std::size_t>(count));
    for (std::size_t t = 0; t < targets.size(); ++t) targets[t] = t % 5 == 4 ? kNoTarget : distribution(engine);
    if (count > 0) targets.front() = static_cast<std::int32_t>(vocab - 1);
    return targets;
}

struct Result {
    TestMatrix nll, d_h, d_lm_head;
};

Result run(const TestMatrix& h, const TestMatrix& lm_head, const std::vector<std::int32_t>& targets,
           const CrossEntropyOptions& options, const TestMatrix& before, int threads) {
    const std::int64_t rows = h.view().rows;
    Result result{TestMatrix(1, rows), TestMatrix(rows, h.view().cols), before};
    std::vector<float> workspace =
        poisoned(cross_entropy_backward_workspace_floats(rows, h.view().cols, lm_head.view().rows, threads));
    cross_entropy_with_gradient(h.view(), lm_head.view(), targets.data(), options, result.nll.view().data,
                                result.d_h.view(), result.d_lm_head.view(), threads, workspace.data());
    for (const TestMatrix* matrix : {&result.nll, &result.d_h, &result.d_lm_head}) matrix->require_guards();
    return result;
}

}  // namespace

TEST_CASE("Gradients of the loss: the reference against central differences") {
    const double z_loss = GENERATE(0.0, 0.3);
    OwnMatrix h(6, 5, 1);
    OwnMatrix lm_head(7, 5, 2);
    const std::vector<std::int32_t> targets = random_targets(6, 7, 3);
    const auto objective = [&] {
        double sum = 0;
        for (std::int64_t t = 0; t < 6; ++t) {
            if (targets[t] == kNoTarget) continue;
            const std::int32_t first = 0;
            const double to_first = reference::cross_entropy(h.view().row_range(t, 1), lm_head.view(), &first)[0];
            const double logit = reference::matmul(h.view().row_range(t, 1), lm_head.view(), {})[0];
            const double log_sum = to_first + logit;
            sum += reference::cross_entropy(h.view().row_range(t, 1), lm_head.view(), &targets[t])[0] +
                   z_loss * log_sum * log_sum;
        }
        return 0.7 * sum;
    };
    const reference::CrossEntropyGradients gradients =
        reference::cross_entropy_backward(h.view(), lm_head.view(), targets.data(), 0.7, z_loss);
    require_gradient(h.values, gradients.h, objective);
    require_gradient(lm_head.values, gradients.lm_head, objective);
}

TEST_CASE("Loss and gradients equal the double reference and the loss of scoring") {
    // One panel, three quarters of it, three panels; one column.
    const std::int64_t vocab = GENERATE(1, 256, 384, 1500);
    const TestMatrix lm_head = TestMatrix::normal(vocab, kHidden, 1, 0.5F);
    const TestMatrix before = TestMatrix::normal(vocab, kHidden, 2, 0.01F);
    const CrossEntropyOptions options{1.0F / 300, vocab == 384 ? 0.01F : 0.0F};
    for (const std::int64_t rows : {0, 1, 65, 257}) {
        const TestMatrix h = TestMatrix::normal(rows, kHidden, 10 + static_cast<std::uint32_t>(rows));
        const std::vector<std::int32_t> targets = random_targets(rows, vocab, 5);
        const Result result = run(h, lm_head, targets, options, before, 1);
        const reference::CrossEntropyGradients expected =
            reference::cross_entropy_backward(DoubleMatrix(h).view, DoubleMatrix(lm_head).view, targets.data(),
                                              static_cast<double>(options.scale), static_cast<double>(options.z_loss));
        // A logit errs by k eps / 2 * sum |terms| (below k * 0.5 here); a probability by twice that, relative; the sums
        // over the vocabulary have weights that sum to at most 2, times |w| below 3, and those over rows |h| below 5.
        const double logit = kHidden * kEps * kHidden * 0.25 + 38 * kEps;
        const double scale = static_cast<double>(options.scale);
        require_close(result.nll.view(), expected.nll, 2 * logit, kEps);
        require_close(result.d_h.view(), expected.h, scale * 3 * 2 * (2 * logit + 512 * kEps / 2), 0);
        require_close(result.d_lm_head.view(), added(before, expected.lm_head),
                      scale * static_cast<double>(rows + 1) * 5 * (2 * logit + 256 * kEps / 2) + 0.05 * kEps, 0);
        // The losses of scoring, bit for bit.
        std::vector<float> workspace = poisoned(cross_entropy_workspace_floats(kHidden, 1));
        std::vector<std::int32_t> all = targets;
        for (std::int32_t& target : all) target = std::max(target, 0);
        std::vector<float> nll(static_cast<std::size_t>(rows));
        cross_entropy(h.view(), lm_head.view(), all.data(), nll.data(), 1, workspace.data());
        for (std::int64_t t = 0; t < rows; ++t) {
            REQUIRE(result.nll.at(0, t) == (targets[t] == kNoTarget ? 0.0F : nll[t]));
        }
        for (const int threads : {2, 3}) {
            const Result again = run(h, lm_head, targets, options, before, threads);
            require_equal(again.nll, result.nll);
            require_equal(again.d_h, result.d_h);
            require_equal(again.d_lm_head, result.d_lm_head);
        }
    }
}

TEST_CASE("More rows than are held at a time") {
    constexpr std::int64_t kRows = 2048 + 257;
    constexpr std::int64_t kVocab = 600;
    const TestMatrix lm_head = TestMatrix::normal(kVocab, 7, 1);
    const TestMatrix before = TestMatrix::normal(kVocab, 7, 2, 0.0F);
    const TestMatrix h = TestMatrix::normal(kRows, 7, 3);
    const std::vector<std::int32_t> targets = random_targets(kRows, kVocab, 4);
    const Result one = run(h, lm_head, targets, {}, before, 1);
    const reference::CrossEntropyGradients expected =
        reference::cross_entropy_backward(DoubleMatrix(h).view, DoubleMatrix(lm_head).view, targets.data(), 1, 0);
    // As above with logits of 7 terms below 25; a row's gradients sum to at most 2 over the vocabulary, so that a
    // column meets kRows * 2 / kVocab of them and a few more.
    const double logit = 7 * kEps / 2 * 7 * 2 + 38 * kEps;
    require_close(one.d_h.view(), expected.h, 5 * 2 * (2 * logit + 512 * kEps / 2), 0);
    require_close(one.d_lm_head.view(), expected.lm_head, 100 * 5 * (2 * logit + 264 * kEps / 2), 0);
    require_equal(run(h, lm_head, targets, {}, before, 3).d_lm_head, one.d_lm_head);
}

TEST_CASE("Rows without a target have no part in any gradient") {
    const TestMatrix lm_head = TestMatrix::normal(384, kHidden, 1);
    const TestMatrix before = TestMatrix::normal(384, kHidden, 2);
    const TestMatrix h = TestMatrix::normal(65, kHidden, 3);
    const Result none = run(h, lm_head, std::vector<std::int32_t>(65, kNoTarget), {1.0F, 0.1F}, before, 2);
    require_equal(none.d_lm_head, before);
    for (std::int64_t t = 0; t < 65; ++t) {
        REQUIRE(none.nll.at(0, t) == 0.0F);
        for (std::int64_t c = 0; c < kHidden; ++c) REQUIRE(none.d_h.at(t, c) == 0.0F);
    }
}

TEST_CASE("A bad target is named and a NaN shows in the gradients of its row") {
    const TestMatrix lm_head = TestMatrix::normal(384, kHidden, 1);
    const TestMatrix before = TestMatrix::normal(384, kHidden, 2);
    TestMatrix h = TestMatrix::normal(3, kHidden, 3);
    CHECK_THROWS_WITH(run(h, lm_head, {0, 384, 1}, {}, before, 1), Catch::Contains("target 384 at row 1"));
    CHECK_THROWS_AS(run(h, lm_head, {0, -2, 1}, {}, before, 1), InternalError);
    CHECK_THROWS_AS(run(h, TestMatrix(384, kHidden + 1), {0, 1, 1}, {}, before, 1), InternalError);
    h.view().row(1)[4] = std::numeric_limits<float>::quiet_NaN();
    const Result result = run(h, lm_head, {0, 1, 2}, {}, before, 1);
    CHECK(std::isnan(result.nll.at(0, 1)));
    CHECK(std::isnan(result.d_h.at(1, 0)));
    CHECK(std::isnan(result.d_lm_head.at(0, 0)));
    CHECK(std::isfinite(result.d_h.at(0, 0)));
}

TEST_CASE("The gradient of the embedding equals the double reference") {
    constexpr std::int64_t kWide = 131;  // two column blocks
    const TestMatrix before = TestMatrix::normal(40, kWide, 1);
    for (const std::int64_t rows : {0, 1, 17, 300, 4097}) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
        for (std::size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>(t * t * 7 % 39);
        const TestMatrix dy = TestMatrix::normal(rows, kWide, 10 + static_cast<std::uint32_t>(rows));
        const std::vector<double> expected =
            added(before, reference::embed_rows_backward(40, ids.data(), DoubleMatrix(dy).view));
        TestMatrix first = before;
        embed_rows_backward(first.view(), ids.data(), dy.view(), 1);
        // Sums of a run are formed in double: one rounding for each run, of a sum that stays below 200.
        require_close(first.view(), expected, 200 * kEps / 2, kEps);
        first.require_guards();
        for (const int threads : {2, 3}) {
            TestMatrix again = before;
            embed_rows_backward(again.view(), ids.data(), dy.view(), threads);
            require_equal(again, first);
        }
    }
    TestMatrix table = before;
    const TestMatrix dy = TestMatrix::normal(2, kWide, 1);
    const std::vector<std::int32_t> beyond = {0, 40};
    CHECK_THROWS_WITH(embed_rows_backward(table.view(), beyond.data(), dy.view(), 1),
                      Catch::Contains("token id 40 at row 1"));
    require_equal(table, before);
}
