#include "kernels/cross_entropy.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/errors.h"
#include "kernels/embedding.h"
#include "kernels/reference/matmul.h"
#include "tests/kernels/matrices.h"

using namespace fenwick;
using namespace fenwick::test;

namespace {

constexpr std::int64_t kHidden = 45;

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab, std::uint32_t seed) {
    std::mt19937 engine(seed);
    std::uniform_int_distribution<std::int32_t> distribution(0, static_cast<std::int32_t>(vocab - 1));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (std::int32_t& id : ids) id = distribution(engine);
    ids.front() = static_cast<std::int32_t>(vocab - 1);  // the last column of the last panel
    return ids;
}

/// Losses [rows] with a poisoned output and workspace, and a guard element after the last.
TestMatrix losses(const TestMatrix& h, std::int64_t rows, const TestMatrix& lm_head,
                  const std::vector<std::int32_t>& targets, int threads) {
    std::vector<float> workspace(static_cast<std::size_t>(cross_entropy_workspace_floats(h.view().cols, threads)),
                                 std::numeric_limits<float>::quiet_NaN());
    TestMatrix nll(1, rows);
    cross_entropy(h.view().row_range(0, rows), lm_head.view(), targets.data(), nll.view().data, threads,
                  workspace.data());
    nll.require_guards();
    return nll;
}

}  // namespace

TEST_CASE("cross_entropy equals the double reference") {
    // Bytes; three quarters of a panel; one column more than a common vocabulary; two tiny ones.
    const std::int64_t vocab = GENERATE(1, 2, 256, 384, 32001);
    const TestMatrix lm_head = TestMatrix::normal(vocab, kHidden, 1, 0.5F);
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{65}, std::int64_t{257}}) {
        const TestMatrix h = TestMatrix::normal(rows, kHidden, static_cast<std::uint32_t>(rows));
        const std::vector<std::int32_t> targets = random_ids(rows, vocab, 5);
        const TestMatrix nll = losses(h, rows, lm_head, targets, 2);
        const std::vector<double> expected =
            reference::cross_entropy(DoubleMatrix(h).view, DoubleMatrix(lm_head).view, targets.data());
        // A logit errs by at most k eps / 2 * sum |terms| (below k * 0.5 here) and enters once as target and once,
        // averaged, in the sum; the sum itself errs by about (512 / 16 + 4 + 1.1) eps relative.
        const double tolerance = kHidden * kEps * kHidden * 0.5 + 38 * kEps;
        require_close(nll.view(), expected, tolerance, kEps);
    }
}

TEST_CASE("cross_entropy says where the target is the most likely") {
    const std::int64_t vocab = GENERATE(1, 7, 1030);
    const std::int64_t rows = 259;
    const TestMatrix lm_head = TestMatrix::normal(vocab, kHidden, 1, 0.5F);
    const TestMatrix h = TestMatrix::normal(rows, kHidden, 3);
    // Every second target is the row's largest logit.
    std::vector<std::int32_t> targets = random_ids(rows, vocab, 5);
    const std::vector<double> logits = reference::matmul(DoubleMatrix(h).view, DoubleMatrix(lm_head).view, {});
    std::vector<std::uint8_t> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
        const auto row = logits.begin() + r * vocab;
        const auto best = static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
        auto& target = targets[static_cast<std::size_t>(r)];
        if (r % 2 == 0) target = best;
        expected.push_back(target == best ? 1 : 0);
    }
    std::vector<std::uint8_t> most_likely(static_cast<std::size_t>(rows), 9);
    std::vector<float> nll(static_cast<std::size_t>(rows));
    std::vector<float> workspace(static_cast<std::size_t>(cross_entropy_workspace_floats(kHidden, 2)));
    cross_entropy(h.view(), lm_head.view(), targets.data(), nll.data(), 2, workspace.data(), most_likely.data());
    CHECK(most_likely == expected);
}

TEST_CASE("A head of zeros gives the logarithm of the vocabulary") {
    for (const std::int64_t vocab : {256, 384, 32001}) {
        const TestMatrix lm_head = TestMatrix::normal(vocab, kHidden, 1, 0.0F);
        const TestMatrix h = TestMatrix::normal(300, kHidden, 2);
        const TestMatrix nll = losses(h, 300, lm_head, random_ids(300, vocab, 3), 2);
        for (std::int64_t t = 0; t < 300; ++t) {
            REQUIRE(std::abs(nll.at(0, t) - std::log(static_cast<double>(vocab))) <= 1e-6);
        }
        if (vocab == 256) CHECK(std::abs(static_cast<double>(nll.at(0, 0)) - 5.545177444479562) <= 1e-6);
    }
}

TEST_CASE("Logits of ten thousand neither overflow nor vanish") {
    TestMatrix lm_head = TestMatrix::normal(384, 1, 1, 0.0F);
    lm_head.view().row(5)[0] = 1e4F;
    lm_head.view().row(383)[0] = -1e4F;
    TestMatrix h(3, 1);
    for (std::int64_t r = 0; r < 3; ++r) h.view().row(r)[0] = 1.0F;
    const TestMatrix nll = losses(h, 3, lm_head, {5, 0, 383}, 1);
    CHECK(nll.at(0, 0) == 0.0F);
    CHECK(nll.at(0, 1) == 1e4F);
    CHECK(nll.at(0, 2) == 2e4F);
}

TEST_CASE("A row of cross_entropy does not depend on rows or threads") {
    constexpr std::int64_t kVocab = 1500;  // three panels
    const TestMatrix lm_head = TestMatrix::normal(kVocab, kHidden, 1);
    const TestMatrix h = TestMatrix::normal(600, kHidden, 2);
    const std::vector<std::int32_t> targets = random_ids(600, kVocab, 3);
    const TestMatrix whole = losses(h, 600, lm_head, targets, 1);
    for (const std::int64_t rows : {1, 2, 63, 64, 65, 255, 256, 257, 300, 512, 600}) {
        for (const int threads : {1, 2, 3}) {
            const TestMatrix part = losses(h, rows, lm_head, targets, threads);
            REQUIRE(std::memcmp(part.view().data, whole.view().data, static_cast<std::size_t>(rows) * 4) == 0);
        }
    }
}

TEST_CASE("A NaN or an infinity anywhere shows in the loss of its row alone") {
    const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity());
    TestMatrix lm_head = TestMatrix::normal(700, kHidden, 1);
    TestMatrix h = TestMatrix::normal(65, kHidden, 2);
    const std::vector<std::int32_t> targets(65, 7);
    h.view().row(64)[3] = bad;
    const TestMatrix one_row = losses(h, 65, lm_head, targets, 1);
    CHECK(std::isnan(one_row.at(0, 64)));
    CHECK(std::isfinite(one_row.at(0, 63)));
    // One weight of a column that is nobody's target meets every row.
    h.view().row(64)[3] = 1.0F;
    lm_head.view().row(699)[0] = bad;
    const TestMatrix every_row = losses(h, 65, lm_head, targets, 1);
    for (std::int64_t t = 0; t < 65; ++t) REQUIRE(std::isnan(every_row.at(0, t)));
}

TEST_CASE("logits_rows are the logits of the chosen rows") {
    constexpr std::int64_t kVocab = 384;
    const TestMatrix lm_head = TestMatrix::normal(kVocab, kHidden, 1);
    const TestMatrix h = TestMatrix::normal(300, kHidden, 2);
    const std::vector<std::int64_t> rows = {299, 0, 17, 17};
    TestMatrix logits(4, kVocab);
    std::vector<float> workspace(static_cast<std::size_t>(logits_workspace_floats(kHidden, kVocab)));
    logits_rows(h.view(), lm_head.view(), rows.data(), 4, logits.view(), 2, workspace.data());
    const DoubleMatrix doubles(h);
    std::vector<double> expected;
    for (const std::int64_t row : rows) {
        const std::vector<double> one =
            reference::matmul(doubles.view.row_range(row, 1), DoubleMatrix(lm_head).view, {});
        expected.insert(expected.end(), one.begin(), one.end());
    }
    require_close(logits.view(), expected, kHidden * kEps / 2 * 2 * kHidden, 0);
    logits.require_guards();
    const std::int64_t outside = 300;
    CHECK_THROWS_WITH(
        logits_rows(h.view(), lm_head.view(), &outside, 1, logits.view().row_range(0, 1), 1, workspace.data()),
        Catch::Contains("row 300"));
}

TEST_CASE("embed_rows copies rows and names an id outside the table") {
    const TestMatrix table = TestMatrix::normal(384, kHidden, 1);
    for (const std::int64_t rows : kRowCounts) {
        const std::vector<std::int32_t> ids = random_ids(rows, 384, static_cast<std::uint32_t>(rows));
        TestMatrix out(rows, kHidden);
        embed_rows(table.view(), ids.data(), out.view(), 2);
        require_close(out.view(), reference::embed_rows(DoubleMatrix(table).view, ids), 0, 0);
        out.require_guards();
    }
    TestMatrix out(3, kHidden);
    const std::vector<std::int32_t> beyond = {0, 1, 384};
    CHECK_THROWS_WITH(embed_rows(table.view(), beyond.data(), out.view(), 1), Catch::Contains("384 at row 2"));
    const std::vector<std::int32_t> negative = {-1, 0, 0};
    CHECK_THROWS_AS(embed_rows(table.view(), negative.data(), out.view(), 1), InternalError);
    std::vector<float> workspace(1);
    CHECK_THROWS_AS(cross_entropy(out.view(), table.view(), beyond.data(), workspace.data(), 1, workspace.data()),
                    InternalError);
}
