#include "core/tokenizer.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
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
}

TEST_CASE("Byte tokenizer: ids are the bytes") {
    const auto tokenizer = make_byte_tokenizer();
    CHECK(tokenizer->kind() == TokenizerKind::kBytes);
    CHECK(tokenizer->vocab_size() == 256);
    CHECK(tokenizer->identity() == "bytes");
    CHECK(encode(*tokenizer, odd_bytes) == Ids{239, 187, 191, 97, 13, 10, 0, 255, 226, 130, 98, 10});
    CHECK(encode(*tokenizer, utf16_bytes) == Ids{255, 254, 97, 0, 98, 0, 10, 0});
    CHECK(encode(*tokenizer, "").empty());

    // Longer than one batch of the tokenizer, every byte value in it.
    std::string text(50'001, '\0');
    std::iota(text.begin(), text.end(), '\0');
    const Ids ids = encode(*tokenizer, text);
    REQUIRE(ids.size() == text.size());
    CHECK(std::equal(ids.begin(), ids.end(), text.begin(),
                     [](std::int32_t id, char c) { return id == static_cast<unsigned char>(c); }));
}

TEST_CASE("Tokenizer choice: auto finds the model's own or takes bytes") {
    const TemporaryFolder folder;
    CHECK(resolve_tokenizer("auto", folder.path(), 256)->identity() == "bytes");
    std::filesystem::copy_file(model_folder / "bpe.model", folder / "tokenizer.model");
    const auto own = resolve_tokenizer("auto", folder.path(), 1000);
    CHECK(own->kind() == TokenizerKind::kSentencePiece);
    CHECK(own->identity() == make_sentencepiece_tokenizer(model_folder / "bpe.model")->identity());
    CHECK(own->identity() != make_sentencepiece_tokenizer(model_folder / "unigram.model")->identity());
    CHECK_THAT(own->identity(), Catch::Matchers::Matches("sentencepiece:[0-9a-f]{32}"));
    CHECK(resolve_tokenizer("bytes", folder.path(), 256)->kind() == TokenizerKind::kBytes);
    CHECK(resolve_tokenizer((model_folder / "unigram.model").string(), folder.path(), 32'000)->vocab_size() == 800);
}

TEST_CASE("Tokenizer choice: a vocabulary too small or a bad model is refused") {
    const TemporaryFolder folder;
    CHECK_THAT(message_of<ConfigError>([&] { (void)resolve_tokenizer("bytes", folder.path(), 255); }),
               Contains("256") && Contains("255"));
    const auto model = (model_folder / "bpe.model").string();
    CHECK_THAT(message_of<ConfigError>([&] { (void)resolve_tokenizer(model, folder.path(), 999); }),
               Contains(model) && Contains("1000") && Contains("999"));
    const auto absent = (folder / "no.model").string();
    CHECK_THAT(message_of<DataError>([&] { (void)resolve_tokenizer(absent, folder.path(), 999); }), Contains(absent));

    put(folder / "noise.model", "this is no model");
    CHECK_THAT(message_of<DataError>([&] { (void)make_sentencepiece_tokenizer(folder / "noise.model"); }),
               Contains("noise.model") && Contains("no SentencePiece model"));
    // Cut at lengths from the first field to the last piece: never a crash, never accepted.
    const std::string whole = get(model_folder / "bpe.model");
    for (std::size_t length = 1; length < whole.size() - 100; length += 997) {
        put(folder / "cut.model", whole.substr(0, length));
        CHECK_THROWS_AS(make_sentencepiece_tokenizer(folder / "cut.model"), DataError);
    }
}
