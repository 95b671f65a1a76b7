// Journal, save points, job.json: what a killed run leaves and the next one reads.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/job_identity.h"
#include "coordinator/row_journal.h"
#include "coordinator/save_point.h"
#include "core/errors.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using namespace fenwick::testing;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> ids(const std::filesystem::path& file) {
    std::vector<std::string> found;
    read_rows(file, [&](const Row& row) { found.push_back(row.value("custom_id", "")); });
    return found;
}

Row row(const std::string& id) {
    Row made;
    made["custom_id"] = id;
    return made;
}

}  // namespace

TEST_CASE("a torn last journal line is dropped and the next row stays whole") {
    const TemporaryFolder folder;
    const auto file = folder / "rows.jsonl";
    CHECK(ids(file).empty());
    {
        RowJournal journal(file);
        journal.append(row("a"));
        journal.append(row("b"));
    }
    const std::string whole = read_file(file);
    for (std::size_t cut = whole.find('\n') + 1; cut < whole.size(); ++cut) {
        write_file(file, whole.substr(0, cut));
        RowJournal(file).append(row("c"));
        INFO(cut);
        CHECK(ids(file) == std::vector<std::string>{"a", "c"});
    }
}

TEST_CASE("a journal torn in its first line starts empty") {
    const TemporaryFolder folder;
    const auto file = folder / "rows.jsonl";
    // Longer than the piece in which the journal is searched from its end.
    write_file(file, std::string(200000, 'x'));
    CHECK(ids(file).empty());
    RowJournal(file).append(row("a"));
    CHECK(ids(file) == std::vector<std::string>{"a"});
}

TEST_CASE("lines that are no JSON objects are left out of the rows") {
    const TemporaryFolder folder;
    const auto file = folder / "rows.jsonl";
    write_file(file, "{\"custom_id\":\"a\"}\n\n[1]\n{\"custom_id\":\n{\"custom_id\":\"b\"}\n{\"custom_id\":\"c\"}");
    // The last line has no newline, yet it is a whole object: a row that is there is used.
    CHECK(ids(file) == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("job.json names the field that disagrees") {
    const TemporaryFolder folder;
    const auto file = folder / "job.json";
    const JobIdentity job{"0123", "bytes", false, "cpu", "fp32", "extend"};
    write_job(file, job);
    CHECK_NOTHROW(check_job(file, job));
    const auto differs = [&](auto change, const char* field) {
        JobIdentity other = job;
        change(other);
        CHECK_THROWS_AS(check_job(file, other), UsageError);
        CHECK_THROWS_WITH(check_job(file, other), Contains(field) && Contains("--overwrite"));
    };
    differs([](JobIdentity& j) { j.model_hash = "4567"; }, "model_hash");
    differs([](JobIdentity& j) { j.tokenizer = "sentencepiece:1"; }, "tokenizer");
    differs([](JobIdentity& j) { j.bos = true; }, "bos");
    differs([](JobIdentity& j) { j.device = "cuda"; }, "device");
    differs([](JobIdentity& j) { j.dtype = "bf16"; }, "dtype");
    differs([](JobIdentity& j) { j.levels = "strict"; }, "levels");
    write_file(file, "{\"format_version\": 1");
    CHECK_THROWS_AS(check_job(file, job), DataError);
    write_file(file, "{\"format_version\": 1}");
    CHECK_THROWS_WITH(check_job(file, job), Contains("model_hash is missing"));
}

TEST_CASE("a save point reads back as it was written") {
    const TemporaryFolder folder;
    const auto file = folder / "save.json";
    CHECK_FALSE(read_save_point(file).has_value());
    const SavePoint point{"abc", 70001, 8192, 45391.123456789012, 1.0 / 3.0};
    write_save_point(file, point);
    const auto read = read_save_point(file);
    REQUIRE(read.has_value());
    CHECK(read->input_hash == point.input_hash);
    CHECK(read->tokens == point.tokens);
    CHECK(read->position == point.position);
    CHECK(read->nll_total == point.nll_total);  // the same bits
    CHECK(read->seconds == point.seconds);
}

TEST_CASE("a damaged save point counts as none") {
    const TemporaryFolder folder;
    const auto file = folder / "save.json";
    const SavePoint point{"abc", 70001, 8192, 1.5, 2.5};
    write_save_point(file, point);
    const std::string whole = read_file(file);
    for (std::size_t cut = 0; cut + 2 < whole.size(); cut += 7) {
        write_file(file, whole.substr(0, cut));
        INFO(cut);
        CHECK_FALSE(read_save_point(file).has_value());
    }
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{-4096}, std::int64_t{100}, std::int64_t{73728}}) {
        SavePoint bad = point;
        bad.position = position;
        write_save_point(file, bad);
        INFO(position);
        CHECK_FALSE(read_save_point(file).has_value());
    }
}

TEST_CASE("save points wait for a cheaper position but not for long") {
    constexpr std::int64_t kBlock = 4096;
    CHECK_FALSE(save_is_due(3 * kBlock, 4 * kBlock, 10, 20));  // too early
    CHECK_FALSE(save_is_due(3 * kBlock, 4 * kBlock, 25, 20));  // the next position has one bit instead of two
    CHECK(save_is_due(4 * kBlock, 5 * kBlock, 25, 20));
    CHECK(save_is_due(3 * kBlock, 4 * kBlock, 40, 20));  // waited long enough
    CHECK(save_is_due(3 * kBlock, 4 * kBlock, 0, 0));
}
