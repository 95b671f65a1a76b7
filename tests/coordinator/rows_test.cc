#include "coordinator/rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

using namespace fenwick;

namespace {

ScoredDocument example() {
    return {.custom_id = "a",
            .tokens = 101,
            .scored_tokens = 100,
            .nll_sum = 200,
            .scored_bytes = 100,
            .levels_extended = false,
            .nll_file = "nll/a.npy",
            .seconds = 2,
            .ranks = 3,
            .device = "cpu",
            .dtype = "fp32",
            .model_hash = "m",
            .input_hash = "i"};
}

class FixedText final : public TokenReader {
public:
    explicit FixedText(std::int64_t bytes) : bytes_(bytes) {}
    [[nodiscard]] std::int64_t size() const override { return 1; }
    [[nodiscard]] std::int64_t text_bytes() const override { return bytes_; }
    void read(std::int64_t /*first*/, std::span<std::int32_t> out) const override {
        for (std::int32_t& id : out) id = 0;
    }

private:
    std::int64_t bytes_;
};

}  // namespace

TEST_CASE("a completed row has every field in order") {
    const Row row = completed_row(example());
    std::string names;
    for (const auto& [name, value] : row.items()) names.append(name).append(1, ' ');
    CHECK(names ==
          "custom_id status tokens scored_tokens nll_sum nll_mean perplexity bits_per_byte levels_extended nll_file "
          "seconds tokens_per_second ranks device dtype model_hash input_hash ");
    CHECK(row.at("status") == "completed");
    CHECK(row.at("nll_mean") == 2.0);
    CHECK(row.at("perplexity").get<double>() == Approx(std::exp(2.0)).epsilon(1e-15));
    CHECK(row.at("bits_per_byte").get<double>() == Approx(2.0 / std::log(2.0)).epsilon(1e-15));
    CHECK(row.at("tokens_per_second") == 50.5);
    CHECK(is_completed_row(row));
}

TEST_CASE("means of nothing are null") {
    ScoredDocument document = example();
    document.tokens = 1;
    document.scored_tokens = 0;
    document.nll_sum = 0;
    document.scored_bytes = 0;
    document.seconds = 0;
    const Row row = completed_row(document);
    for (const char* field : {"nll_mean", "perplexity", "bits_per_byte", "tokens_per_second"}) {
        INFO(field);
        CHECK(row.at(field).is_null());
    }
    CHECK(row.at("nll_sum") == 0.0);
    CHECK(is_completed_row(row));
}

TEST_CASE("bits per byte are null where the bytes are not known") {
    ScoredDocument document = example();
    document.scored_bytes = -1;
    const Row row = completed_row(document);
    CHECK(row.at("bits_per_byte").is_null());
    CHECK(row.at("nll_mean") == 2.0);
}

TEST_CASE("a perplexity beyond the range of double is null") {
    ScoredDocument document = example();
    document.nll_sum = 1e6;
    CHECK(completed_row(document).at("perplexity").is_null());
}

TEST_CASE("bytes behind the scored tokens") {
    CHECK(scored_bytes(FixedText(-1), TokenizerKind::kBytes, false) == -1);
    CHECK(scored_bytes(FixedText(0), TokenizerKind::kBytes, false) == 0);
    CHECK(scored_bytes(FixedText(10), TokenizerKind::kBytes, false) == 9);
    CHECK(scored_bytes(FixedText(10), TokenizerKind::kBytes, true) == 10);
    CHECK(scored_bytes(FixedText(10), TokenizerKind::kSentencePiece, false) == 10);
}

TEST_CASE("a failed row says where and why") {
    DocumentRef document;
    document.custom_id = std::string("x");
    document.source = "in.jsonl";
    document.line = 4;
    const Row row = failed_row(document, DocumentFailure("CORRUPT_DATA", "bad \xff byte"), "");
    CHECK(row.at("status") == "failed");
    CHECK(row.at("source") == "in.jsonl");
    CHECK(row.at("line") == 4);
    CHECK(row.at("code") == "CORRUPT_DATA");
    CHECK(row.at("input_hash").is_null());
    CHECK_FALSE(is_completed_row(row));
    // A byte that is no UTF-8 does not keep the row from being written.
    CHECK(nlohmann::json::parse(to_line(row)).at("message") == "bad \xef\xbf\xbd byte");
    document.line = 0;
    CHECK(failed_row(document, DocumentFailure("NUMERIC_ERROR", "m"), "h").at("line").is_null());
}

TEST_CASE("rows that lack what a resume needs are not trusted") {
    const Row good = completed_row(example());
    for (const char* field : {"custom_id", "status", "tokens", "scored_tokens", "nll_sum", "levels_extended",
                              "nll_file", "dtype", "model_hash", "input_hash"}) {
        Row bad = good;
        bad.erase(field);
        INFO(field);
        CHECK_FALSE(is_completed_row(bad));
        bad[field] = nullptr;
        CHECK_FALSE(is_completed_row(bad));
    }
    Row negative = good;
    negative["scored_tokens"] = -1;
    CHECK_FALSE(is_completed_row(negative));
    CHECK_FALSE(is_completed_row(Row::array()));
}
