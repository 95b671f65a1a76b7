// The ids must be those of the library for the whole text (CASES E2), wherever the text is cut on the way.
#include "core/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <array>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "temporary_folder.h"
#include "token_test.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using namespace fenwick::testing;
using Ids = std::vector<std::int32_t>;

namespace {

const std::filesystem::path model_folder = std::filesystem::path(FENWICK_TEST_DATA) / "sentencepiece";
// Models that allow cuts: nmt_nfkc unigram, unigram and BPE with byte fallback and every space kept.
const std::array<std::string, 3> cut_models = {"unigram.model", "unigram_bytes.model", "bpe.model"};

Ids encode_whole(const std::string& model, const std::string& text) {
    sentencepiece::SentencePieceProcessor processor;
    REQUIRE(processor.Load((model_folder / model).string()).ok());
    Ids ids;
    REQUIRE(processor.Encode(text, &ids).ok());
    return ids;
}

SentencePieceTokenizer tokenizer_with_parts(const std::string& model, std::size_t part_bytes) {
    return SentencePieceTokenizer(model_folder / model, {part_bytes, std::size_t{16} << 20});
}

/// Words, runs of spaces and newlines, symbols that stand for spaces, characters that the normaliser changes or that no
/// piece covers, a user-defined symbol: what could make a cut visible.
std::string random_text(std::mt19937& random, std::size_t bytes) {
    const std::array<const char*, 40> parts = {"the",
                                               " license ",
                                               " of",
                                               "software",
                                               "ing",
                                               " ",
                                               "  ",
                                               "\n",
                                               " \n",
                                               "\n ",
                                               "\n\n",
                                               "\t",
                                               ".",
                                               ", ",
                                               "A",
                                               "7",
                                               "2024 ",
                                               "\xC3\xA9",
                                               "e\xCC\x81",
                                               "\xE2\x96\x81",
                                               " \xE2\x96\x81 ",
                                               "\xE2\x82\xAC",
                                               "\xE4\xB8\xAD\xE6\x96\x87",
                                               "\xE3\x80\x80",
                                               "\xE3\x80\x82",
                                               "\xE3\x82\xAB\xE3\x82\x99",
                                               "\xEF\xBC\xA1",
                                               "\xC2\xA0",
                                               "\xE2\x80\x8B",
                                               "\xEF\xBB\xBF",
                                               "\r\n",
                                               "\x01",
                                               "<sep>",
                                               "<",
                                               "x <sep> y",
                                               "\xF0\x9F\x98\x80",
                                               "\xF0\x9F\x98\x80 \xF0\x9F\x98\x81",
                                               "\xEF\xB7\xBA",
                                               "\xC2\xA8",
                                               "a b"};
    std::uniform_int_distribution<std::size_t> pick(0, parts.size() - 1);
    std::string text;
    while (text.size() < bytes) text += parts[pick(random)];
    return text;
}

/// Words of common letters, which can be put together from pieces in many ways.
std::string ambiguous_text(std::mt19937& random, std::size_t bytes) {
    constexpr std::string_view kLetters = "etaoinshrdlu    ";
    std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
    std::string text;
    while (text.size() < bytes) text += kLetters[pick(random)];
    return text;
}

std::int64_t count_ids(const Tokenizer& tokenizer, const std::string& text) {
    std::int64_t count = 0;
    tokenizer.encode(text, "text", [&](std::span<const std::int32_t> ids) { count += std::ssize(ids); });
    return count;
}

std::string repeated(std::string_view unit, std::size_t bytes) {
    std::string text;
    text.reserve(bytes + unit.size());
    while (text.size() < bytes) text += unit;
    text.resize(bytes);
    return text;
}

}  // namespace

TEST_CASE("SentencePiece: the test models allow the cuts they should") {
    CHECK(tokenizer_with_parts("unigram.model", 100).cut_rules().space);
    CHECK(tokenizer_with_parts("unigram.model", 100).cut_rules().newline_as_space);
    CHECK_FALSE(tokenizer_with_parts("unigram.model", 100).cut_rules().newline_as_symbol);
    for (const std::string model : {"unigram_bytes.model", "bpe.model"}) {
        CHECK(tokenizer_with_parts(model, 100).cut_rules().space);
        CHECK_FALSE(tokenizer_with_parts(model, 100).cut_rules().newline_as_space);
        CHECK(tokenizer_with_parts(model, 100).cut_rules().newline_as_symbol);
    }
    CHECK_FALSE(tokenizer_with_parts("bpe_crossing.model", 100).cut_rules().space);
    CHECK_THAT(tokenizer_with_parts("bpe_crossing.model", 100).cut_rules().reason, Contains("over a space"));
}

TEST_CASE("SentencePiece: random texts in parts of several sizes equal the whole text") {
    std::mt19937 random(20240601);
    for (const std::string model : {"unigram.model", "unigram_bytes.model", "bpe.model", "bpe_crossing.model"}) {
        for (int round = 0; round < 40; ++round) {
            const std::string text = random_text(random, 1500);
            const Ids expected = encode_whole(model, text);
            // 1: a cut wherever one is allowed; 7 and 64: inside and beyond words; 1000: one cut; 4096: none.
            for (const std::size_t part_bytes : {1, 7, 64, 1000, 4096}) {
                INFO(model << ", round " << round << ", parts of " << part_bytes);
                CHECK(encode(tokenizer_with_parts(model, part_bytes), text) == expected);
            }
        }
    }
}

TEST_CASE("SentencePiece: a long unigram text equals the whole text although its path score is rounded") {
    // 400,000 letters: path scores reach about -7e5, where fp32 steps are 1/16 and decide between paths.
    std::mt19937 random(7);
    const std::string text = ambiguous_text(random, 400'000);
    for (const std::string model : {"unigram.model", "unigram_bytes.model"}) {
        const Ids expected = encode_whole(model, text);
        CHECK(encode(tokenizer_with_parts(model, 10'000), text) == expected);
        // The end of the text, encoded as if a text began there, is something else: the test can tell.
        const std::size_t cut = text.find("a t", 300'000) + 1;
        const Ids tail = encode_whole(model, text.substr(cut + 1));
        REQUIRE(tail.size() > 1000);
        REQUIRE(tail.size() < expected.size());
        CHECK_FALSE(std::equal(tail.rbegin(), tail.rend(), expected.rbegin()));
    }
}

TEST_CASE("SentencePiece: one huge line equals the library for every part size") {
    const std::string no_space = std::string(65'535, 'a') + "\xE2\x82\xAC" + "b";
    REQUIRE(no_space.size() == 65'539);
    const std::string words = repeated("hello world ", 1'200'000);
    for (const auto& model : cut_models) {
        const Ids expected_no_space = encode_whole(model, no_space);
        const Ids expected_words = encode_whole(model, words);
        for (const std::size_t part_bytes : {std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{8} << 20}) {
            const auto tokenizer = tokenizer_with_parts(model, part_bytes);
            CHECK(encode(tokenizer, no_space) == expected_no_space);
            CHECK(encode(tokenizer, words) == expected_words);
        }
    }
}

// That the time grows no faster either is measured by tests/bench/bench_tokenize.
TEST_CASE("SentencePiece: memory does not grow with the text") {
    for (const auto& model : cut_models) {
        const auto tokenizer = make_sentencepiece_tokenizer(model_folder / model);
        reset_peak_memory();
        const std::int64_t before = peak_memory();
        const std::int64_t one = count_ids(*tokenizer, repeated("ab ", 2'000'000));
        const std::int64_t two = count_ids(*tokenizer, repeated("ab ", 4'000'000));
        CHECK(two > 2 * one - 3);
        // Parts of 256 KiB cost about 150 bytes a byte (40 MB); the texts are 6 MB.
        CHECK(peak_memory() - before < std::int64_t{128} << 20);
        CHECK(count_ids(*tokenizer, std::string(1'000'000, 'a')) > 0);
    }
}

TEST_CASE("SentencePiece: invalid UTF-8 is refused with its byte, and UTF-16 gets a hint") {
    for (const auto& model : cut_models) {
        const auto tokenizer = make_sentencepiece_tokenizer(model_folder / model);
        CHECK_THAT(message_of<DataError>([&] { (void)encode(*tokenizer, odd_bytes); }),
                   Contains("byte 7:") && Contains("0xFF"));
        CHECK_THAT(message_of<DataError>([&] { (void)encode(*tokenizer, utf16_bytes); }),
                   Contains("byte 0:") && Contains("UTF-16"));
        const std::string odd = odd_bytes.substr(0, 7);
        CHECK(encode(*tokenizer, odd) == encode_whole(model, odd));
        CHECK(encode(*tokenizer, "").empty());
        CHECK(encode(*tokenizer, "a") == encode_whole(model, "a"));
    }
}

TEST_CASE("SentencePiece: a text without a place to cut is refused past the limit") {
    const SentencePieceTokenizer bpe(model_folder / "bpe.model", {100, 1000});
    CHECK(encode(bpe, std::string(1000, 'a')) == encode_whole("bpe.model", std::string(1000, 'a')));
    const std::string text = "some words " + std::string(1001, 'a') + " and more";
    CHECK_THAT(message_of<DataError>([&] { (void)encode(bpe, text); }), Contains("within 1000 bytes"));
    const SentencePieceTokenizer crossing(model_folder / "bpe_crossing.model", {100, 1000});
    CHECK_THAT(message_of<DataError>([&] { (void)encode(crossing, repeated("ab ", 1001)); }),
               Contains("within 1000 bytes") && Contains("go on over"));
}
