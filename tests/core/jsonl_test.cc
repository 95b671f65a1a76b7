#include "core/jsonl.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using namespace fenwick::testing;

namespace {

JsonlRow parse(std::string_view row) {
    return parse_jsonl_row(row, true);
}

std::vector<std::pair<std::int64_t, std::string>> lines_of(const std::string& content) {
    const TemporaryFolder folder;
    put(folder / "a.jsonl", content);
    const MappedFile file = MappedFile::open(folder / "a.jsonl", EmptyFile::kAllow);
    std::vector<std::pair<std::int64_t, std::string>> lines;
    for_each_jsonl_line(file, [&](const JsonlLine& line) {
        lines.emplace_back(
            line.number, content.substr(static_cast<std::size_t>(line.offset), static_cast<std::size_t>(line.length)));
    });
    return lines;
}

}  // namespace

TEST_CASE("JSONL lines: blank ones are counted and passed over") {
    using Lines = std::vector<std::pair<std::int64_t, std::string>>;
    CHECK(lines_of("").empty());
    CHECK(lines_of("\n\n \t\r\n").empty());
    CHECK(lines_of("a") == Lines{{1, "a"}});
    CHECK(lines_of("a\n") == Lines{{1, "a"}});
    CHECK(lines_of("a\r\n\r\nb\n\n  \nc") == Lines{{1, "a\r"}, {3, "b"}, {6, "c"}});
    CHECK(lines_of("\na") == Lines{{2, "a"}});
    // Ends at, just before and just after the stretch of 16 MiB that is searched at once.
    for (const std::int64_t extra : {-1, 0, 1}) {
        const std::string longest(static_cast<std::size_t>((std::int64_t{16} << 20) + extra), 'a');
        CHECK(lines_of("x\n" + longest + "\nb\n") == Lines{{1, "x"}, {2, longest}, {3, "b"}});
        CHECK(lines_of(longest) == Lines{{1, longest}});
    }
}

TEST_CASE("JSONL rows: the three kinds of content") {
    auto row = parse(R"({"custom_id": "a\u00e9", "text": "x\n\u0000\ud83d\ude00"})");
    CHECK(row.error.empty());
    CHECK(row.custom_id == "a\xC3\xA9");
    CHECK(row.content == RowContent::kText);
    CHECK(row.value == std::string("x\n\0\xF0\x9F\x98\x80", 7));
    CHECK(parse_jsonl_row(R"({"custom_id":"a","text":"long"})", false).value.empty());

    row = parse("\xEF\xBB\xBF{\"path\":\"sub/b.txt\",\"custom_id\":\"\"}\r");
    CHECK(row.error.empty());
    CHECK(row.has_id);
    CHECK(row.custom_id.empty());
    CHECK(row.content == RowContent::kPath);
    CHECK(row.value == "sub/b.txt");

    std::vector<std::int32_t> ids;
    row = parse_jsonl_row(R"({"tokens": [5, -1, 2147483647, 0], "custom_id": "t"})", true,
                          [&](std::span<const std::int32_t> some) { ids.insert(ids.end(), some.begin(), some.end()); });
    CHECK(row.error.empty());
    CHECK(row.content == RowContent::kTokens);
    CHECK(ids == std::vector<std::int32_t>{5, -1, 2147483647, 0});
    CHECK(parse(R"({"tokens": [], "custom_id": "t"})").error.empty());

    // More than one batch of the parser.
    std::string many = R"({"custom_id": "m", "tokens": [0)";
    for (int i = 1; i < 10'000; ++i) many += fmt::format(",{}", i);
    ids.clear();
    CHECK(parse_jsonl_row(many + "]}", true, [&](std::span<const std::int32_t> some) {
              ids.insert(ids.end(), some.begin(), some.end());
          }).error.empty());
    REQUIRE(ids.size() == 10'000);
    for (int i = 0; i < 10'000; ++i) CHECK(ids[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("JSONL rows: targets are places in tokens") {
    const auto targets = [](const std::string& fields) {
        const auto row = parse(R"({"custom_id": "t", )" + fields + "}");
        INFO(row.error);
        CHECK(row.error.empty());
        return row.targets;
    };
    using Mask = std::vector<bool>;
    CHECK(targets(R"("tokens": [7, 8, 9], "targets": [2, 0])") == Mask{true, false, true});
    CHECK(targets(R"("targets": [1, 1], "tokens": [7, 8, 9])") == Mask{false, true, false});
    CHECK(targets(R"("tokens": [7, 8, 9], "targets": [])") == Mask{false, false, false});
    CHECK(targets(R"("tokens": [], "targets": [])").empty());
    CHECK(targets(R"("tokens": [7])").empty());
    CHECK_FALSE(parse(R"({"custom_id": "t", "tokens": [7]})").has_targets);
    const auto listed = parse_jsonl_row(R"({"custom_id": "t", "tokens": [7], "targets": [0]})", false);
    CHECK(listed.has_targets);
    CHECK(listed.targets.empty());
}

TEST_CASE("JSONL rows: a number as custom_id is taken as it is written") {
    for (const std::string number :
         {"17", "-3", "0", "1.50", "1e3", "18446744073709551615", "123456789012345678901234567890"}) {
        const auto row = parse(fmt::format(R"({{"custom_id": {}, "text": ""}})", number));
        CHECK(row.error.empty());
        CHECK(row.custom_id == number);
    }
}

TEST_CASE("JSONL rows: unknown fields are named once and ignored with all they hold") {
    const auto row = parse(
        R"({"a": {"text": "no", "b": [1, {"tokens": [true]}]}, "custom_id": "x", "text": "yes", "c": null, "a": 2})");
    CHECK(row.error.empty());
    CHECK(row.value == "yes");
    CHECK(row.unknown_fields == std::vector<std::string>{"a", "c"});
}

TEST_CASE("JSONL rows: what is wrong is said") {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {R"({"id":"x", "text":)", "byte 18: malformed JSON"},
        {R"({"custom_id":"x","text":"y"} z)", "byte 29: malformed JSON"},
        {"{\"custom_id\":\"x\",\"text\":\"\xFF\"}", "byte 25: malformed JSON"},
        {R"([1])", "expected an object, found an array"},
        {R"("x")", "expected an object, found a string"},
        {R"(5)", "expected an object, found the number 5"},
        {R"({})", "field \"custom_id\" is missing"},
        {R"({"text":"y"})", "field \"custom_id\" is missing"},
        {R"({"custom_id":"x"})", "expected one of \"text\", \"path\" and \"tokens\", found none"},
        {R"({"custom_id":"x","text":"y","path":"z"})", "found two"},
        {R"({"custom_id":"x","text":"y","tokens":[1]})", "found two"},
        {R"({"custom_id":"x","text":"y","text":"z"})", "found two"},
        {R"({"custom_id":"x","custom_id":"y","text":"z"})", "\"custom_id\" comes twice"},
        {R"({"custom_id":null,"text":"y"})", "field \"custom_id\": expected a string or a number, found null"},
        {R"({"custom_id":{"a":1},"text":"y"})", "field \"custom_id\": expected a string or a number, found an object"},
        {R"({"custom_id":"x","text":5})", "field \"text\": expected a string, found the number 5"},
        {R"({"custom_id":"x","path":[]})", "field \"path\": expected a string, found an array"},
        {R"({"custom_id":"x","tokens":"5"})", "field \"tokens\": expected an array of integers, found a string"},
        {R"({"custom_id":"x","tokens":[1,2.5]})", "field \"tokens\"[1]: expected an integer, found the number 2.5"},
        {R"({"custom_id":"x","tokens":[1,[2]]})", "field \"tokens\"[1]: expected an integer, found an array"},
        {R"({"custom_id":"x","tokens":[{"a":1}]})", "field \"tokens\"[0]: expected an integer, found an object"},
        {R"({"custom_id":"x","tokens":[true]})", "field \"tokens\"[0]: expected an integer, found true or false"},
        {R"({"custom_id":"x","tokens":[2147483648]})", "field \"tokens\"[0]: 2147483648 is no token id"},
        {R"({"custom_id":"x","tokens":[-2147483649]})", "field \"tokens\"[0]: -2147483649 is no token id"},
        {R"({"custom_id":"x","tokens":[18446744073709551615]})", "18446744073709551615 is no token id"},
        {R"({"custom_id":"x","text":"y","targets":[0]})", "field \"targets\": goes with \"tokens\" alone"},
        {R"({"custom_id":"x","tokens":[1],"targets":[1]})", "field \"targets\": expected places below 1"},
        {R"({"custom_id":"x","tokens":[1],"targets":[-1]})", "field \"targets\"[0]: expected the place of a token"},
        {R"({"custom_id":"x","tokens":[1],"targets":[0,1000000000000]})", "field \"targets\"[1]: expected the place"},
        {R"({"custom_id":"x","tokens":[1],"targets":[true]})", "field \"targets\"[0]: expected an integer"},
        {R"({"custom_id":"x","tokens":[1],"targets":0})", "field \"targets\": expected an array of integers"},
        {R"({"custom_id":"x","tokens":[1],"targets":[0],"targets":[0]})", "\"targets\" comes twice"},
    };
    for (const auto& [text, expected] : cases) {
        INFO(text);
        CHECK_THAT(parse(text).error, Contains(expected));
    }
    // The id is known whatever stands before it, and a message never holds a whole text.
    CHECK(parse(R"({"text": 5, "custom_id": "late"})").custom_id == "late");
    CHECK(parse("{\"custom_id\": \"x\", \"text\": \"" + std::string(100'000, 'a')).error.size() < 300);
    CHECK_THAT(parse("{\"custom_id\": \"x\", \"text\": \"" + std::string(17 << 20, 'a')).error,
               Contains("does not end with '}'"));
}
