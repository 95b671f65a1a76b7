#include "core/token_file.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/errors.h"
#include "tests/core/temporary_folder.h"

using namespace fenwick;
using fenwick::testing::get;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;

namespace {

using Documents = std::vector<std::vector<std::int32_t>>;

// Lengths around what the format aligns to; empty documents first, in the middle and last.
Documents random_documents(std::int64_t vocab) {
    std::mt19937_64 random(11);
    std::uniform_int_distribution<std::int64_t> draw(0, vocab - 1);
    Documents documents;
    for (const std::size_t size : {0U, 1U, 7U, 0U, 0U, 8U, 9U, 1000U, 3U, 0U}) {
        std::vector<std::int32_t> ids(size);
        for (std::int32_t& id : ids) id = static_cast<std::int32_t>(draw(random));
        documents.push_back(ids);
    }
    documents[1] = {static_cast<std::int32_t>(vocab - 1)};
    return documents;
}

// In pieces of 5 tokens: only their sequence counts.
std::string write_documents(const std::filesystem::path& path, const Documents& documents, std::int64_t vocab,
                            std::size_t piece = 5) {
    TokenFileWriter writer(path, {.vocab_size = vocab, .tokenizer = "bytes"});
    for (const auto& ids : documents) {
        for (std::size_t i = 0; i < ids.size(); i += piece) {
            writer.append(std::span(ids).subspan(i, std::min(piece, ids.size() - i)));
        }
        writer.end_document(static_cast<std::int64_t>(ids.size()) * 2);
    }
    return writer.commit();
}

template <class T>
std::string with(std::string bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return bytes;
}

constexpr std::size_t kVersionAt = 8, kIdBytesAt = 12, kVocabAt = 16, kDocumentsAt = 24, kTokensAt = 32, kMaskAt = 48,
                      kTableAt = 56, kFileBytesAt = 64;

}  // namespace

TEST_CASE("token files give back documents of every id width") {
    const TemporaryFolder folder;
    const std::pair<std::int64_t, int> widths[] = {{1, 1},     {255, 1},   {256, 1},       {257, 2},
                                                   {65536, 2}, {65537, 4}, {2147483647, 4}};
    for (const auto& [vocab, id_bytes] : widths) {
        INFO("vocabulary " << vocab);
        const Documents documents = random_documents(vocab);
        const std::filesystem::path path = folder / "a.tokens";
        const std::string hash = write_documents(path, documents, vocab);
        const TokenFile file = TokenFile::open(path);
        CHECK(file.id_bytes() == id_bytes);
        CHECK(file.vocab_size() == vocab);
        CHECK(file.tokenizer() == "bytes");
        CHECK(file.hash() == hash);
        CHECK_FALSE(file.has_mask());
        CHECK(file.is_target(0));
        CHECK(file.tokens() == 1028);
        CHECK(file.text_bytes() == 2056);
        REQUIRE(file.documents() == static_cast<std::int64_t>(documents.size()));
        for (std::size_t i = 0; i < documents.size(); ++i) {
            const auto index = static_cast<std::int64_t>(i);
            std::vector<std::int32_t> ids(
                static_cast<std::size_t>(file.first_token(index + 1) - file.first_token(index)));
            file.read(file.first_token(index), ids);
            CHECK(ids == documents[i]);
        }
        CHECK_NOTHROW(file.verify());
        std::vector<std::int32_t> past(9);
        CHECK_THROWS_AS(file.read(1020, past), InternalError);
    }
    CHECK(folder.entries() == 1);
}

TEST_CASE("token files depend on the tokens, not on how they came") {
    const TemporaryFolder folder;
    const Documents documents = random_documents(300);
    CHECK(write_documents(folder / "a", documents, 300, 1) == write_documents(folder / "b", documents, 300, 4096));
    CHECK(get(folder / "a") == get(folder / "b"));
    // The same tokens cut elsewhere are other documents.
    Documents moved = documents;
    moved[0] = moved[1];
    moved[1].clear();
    CHECK(write_documents(folder / "c", moved, 300) != TokenFile::open(folder / "a").hash());
    // Nothing at all is a file too.
    write_documents(folder / "d", {}, 300);
    CHECK(TokenFile::open(folder / "d").documents() == 0);
    CHECK(TokenFile::open(folder / "d").tokens() == 0);
}

TEST_CASE("token files carry a bit a token where asked") {
    const TemporaryFolder folder;
    std::mt19937_64 random(5);
    std::vector<std::int32_t> ids(77);
    std::vector<bool> targets(77);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>(random() % 100);
        targets[i] = random() % 3 == 0;
    }
    {
        TokenFileWriter writer(folder / "m", {.vocab_size = 100, .tokenizer = "", .with_mask = true});
        CHECK_THROWS_AS(writer.append(ids), InternalError);
        writer.append(std::span(ids).first(13), {targets.begin(), targets.begin() + 13});
        writer.append(std::span(ids).subspan(13), {targets.begin() + 13, targets.end()});
        writer.end_document();
        writer.commit();
    }
    const TokenFile file = TokenFile::open(folder / "m");
    CHECK(file.has_mask());
    CHECK(file.text_bytes() == -1);
    for (std::size_t i = 0; i < ids.size(); ++i) CHECK(file.is_target(static_cast<std::int64_t>(i)) == targets[i]);
    file.verify();
}

TEST_CASE("token files that are not committed leave nothing, bad ids are refused") {
    const TemporaryFolder folder;
    {
        TokenFileWriter writer(folder / "a", {.vocab_size = 10, .tokenizer = ""});
        writer.append(std::vector<std::int32_t>{1, 2, 9});
        writer.end_document();
        const std::string message = message_of<DataError>([&] { writer.append(std::vector<std::int32_t>{3, 10}); });
        CHECK(message.find("token 1 of document 1: expected an id in [0, 10), found 10") != std::string::npos);
        CHECK_THROWS_AS(writer.append(std::vector<std::int32_t>{-1}), DataError);
    }
    CHECK(folder.entries() == 0);
    CHECK_THROWS_AS(TokenFileWriter(folder / "a", {.vocab_size = 0, .tokenizer = ""}), UsageError);
    CHECK_THROWS_AS(TokenFileWriter(folder / "no" / "a", {.vocab_size = 1, .tokenizer = ""}), UnavailableError);
}

// In the manner of CASES C1 and E4: nothing in the file is believed before it is checked.
TEST_CASE("damaged token files are refused by field") {
    const TemporaryFolder folder;
    write_documents(folder / "good", random_documents(300), 300);
    const std::string good = get(folder / "good");
    std::int64_t table = 0;
    std::memcpy(&table, good.data() + kTableAt, sizeof(table));
    const auto table_at = static_cast<std::size_t>(table);
    constexpr std::int64_t kHuge = std::int64_t{1} << 62;
    struct Damage {
        const char* name;
        std::string bytes;
        const char* message;
    };
    const Damage damages[] = {
        {"empty", "", "empty"},
        {"short", good.substr(0, 191), "expected a header of 192 bytes, found 191"},
        {"other format", with(good, 0, 'X'), "is no token file"},
        {"version", with(good, kVersionAt, 2U), "field \"version\": expected 1, found 2"},
        {"width", with(good, kIdBytesAt, 3U), "field \"id_bytes\": expected 1, 2 or 4, found 3"},
        {"vocabulary", with(good, kVocabAt, std::int64_t{0}), "field \"vocab_size\""},
        {"vocabulary", with(good, kVocabAt, kHuge), "field \"vocab_size\""},
        {"cut by a byte", good.substr(0, good.size() - 1), "the file was cut"},
        {"cut to the header", good.substr(0, 192), "the file was cut"},
        {"trailing bytes", good + "trailing", "field \"file_bytes\""},
        {"tokens", with(good, kTokensAt, std::int64_t{-1}), "field \"tokens\""},
        {"tokens", with(good, kTokensAt, kHuge), "field \"tokens\""},
        {"tokens", with(good, kTokensAt, std::int64_t{1027}), "field \"table"},
        {"documents", with(good, kDocumentsAt, std::int64_t{-1}), "field \"documents\""},
        {"documents", with(good, kDocumentsAt, kHuge), "field \"documents\""},
        {"documents", with(good, kDocumentsAt, std::int64_t{9}), "field \"file_bytes\""},
        {"mask", with(good, kMaskAt, std::int64_t{8}), "field \"mask_offset\""},
        {"mask", with(good, kMaskAt, table), "field \"table_offset\""},
        {"table", with(good, kTableAt, kHuge), "field \"table_offset\""},
        {"file_bytes", with(good, kFileBytesAt, kHuge), "field \"file_bytes\""},
        {"table starts late", with(good, table_at, std::int64_t{1}), "field \"table[0]\": expected 0, found 1"},
        {"table descends", with(good, table_at + 8 * 7, std::int64_t{3}), "field \"table[7]\""},
        {"table leaves the file", with(good, table_at + 8 * 8, kHuge), "field \"table[8]\""},
        {"table negative", with(good, table_at + 8 * 2, std::int64_t{-1}), "field \"table[2]\""},
        {"table ends early", with(good, table_at + 8 * 10, std::int64_t{1027}), "field \"table[10]\""},
    };
    for (const Damage& damage : damages) {
        INFO(damage.name);
        put(folder / "bad", damage.bytes);
        const std::string message = message_of<DataError>([&] { (void)TokenFile::open(folder / "bad"); });
        INFO(message);
        CHECK(message.find((folder / "bad").string()) != std::string::npos);
        CHECK(message.find(damage.message) != std::string::npos);
    }
    CHECK_THROWS_AS(TokenFile::open(folder / "absent"), DataError);
    CHECK_THROWS_AS(TokenFile::open(folder.path()), DataError);
}

// CASES E4: a sparse file of 5 * 2^30 tokens; offsets past 2^32 are exact.
TEST_CASE("token files past 4 GiB have exact offsets") {
    const TemporaryFolder folder;
    write_documents(folder / "a", {{}}, 256);
    constexpr std::int64_t kTokens = std::int64_t{5} << 30;
    constexpr std::int64_t kTable = 192 + kTokens;
    std::string header = get(folder / "a").substr(0, 192);
    header = with(header, kTokensAt, kTokens);
    header = with(header, kTableAt, kTable);
    header = with(header, kFileBytesAt, kTable + 16);
    put(folder / "a", header);
    std::filesystem::resize_file(folder / "a", static_cast<std::uintmax_t>(kTable + 16));
    {
        std::fstream file(folder / "a", std::ios::binary | std::ios::in | std::ios::out);
        file.seekp(kTable - 3).write("xyz", 3);
        file.seekp(kTable + 8).write(reinterpret_cast<const char*>(&kTokens), sizeof(kTokens));
        REQUIRE(file.good());
    }
    const TokenFile file = TokenFile::open(folder / "a");
    CHECK(file.tokens() == 5368709120);
    CHECK(file.first_token(1) == kTokens);
    std::vector<std::int32_t> ids(4);
    file.read(kTokens - 4, ids);
    CHECK(ids == std::vector<std::int32_t>{0, 'x', 'y', 'z'});
}

TEST_CASE("token files: ids past the vocabulary and flipped bits") {
    const TemporaryFolder folder;
    write_documents(folder / "good", random_documents(300), 300);
    const std::string good = get(folder / "good");
    put(folder / "bad", with(good, 192 + 2 * 20, std::uint16_t{300}));  // token 20
    const TokenFile bad = TokenFile::open(folder / "bad");
    std::vector<std::int32_t> ids(10);
    CHECK_NOTHROW(bad.read(10, ids));
    const std::string message = message_of<DataError>([&] { bad.read(15, ids); });
    CHECK(message.find("token 20: expected an id in [0, 300), found 300") != std::string::npos);
    // Every byte that counts is under the hash: of header, ids, table.
    for (const std::size_t at :
         {std::size_t{40}, std::size_t{80}, std::size_t{150}, std::size_t{170}, std::size_t{200}, good.size() - 30}) {
        INFO("byte " << at);
        std::string flipped = good;
        flipped[at] = static_cast<char>(flipped[at] ^ 1);
        put(folder / "flipped", flipped);
        try {
            TokenFile::open(folder / "flipped").verify();
            FAIL("not noticed");
        } catch (const DataError& error) {
            INFO(error.what());
            CHECK(std::string(error.what()).find("expected") != std::string::npos);
        }
    }
}
