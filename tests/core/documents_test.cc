#include "core/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/hash.h"
#include "temporary_folder.h"
#include "token_test.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using namespace fenwick::testing;
using Ids = std::vector<std::int32_t>;

namespace {

const std::filesystem::path model_folder = std::filesystem::path(FENWICK_TEST_DATA) / "sentencepiece";

std::vector<DocumentRef> list(const std::vector<std::filesystem::path>& inputs) {
    return list_documents(inputs);
}

DocumentOptions byte_options() {
    static const auto tokenizer = make_byte_tokenizer();
    DocumentOptions options;
    options.tokenizer = tokenizer.get();
    options.vocab_size = 256;
    return options;
}

std::unique_ptr<TokenReader> open_one(const std::filesystem::path& path, const DocumentOptions& options) {
    const auto documents = list({path});
    REQUIRE(documents.size() == 1);
    return open_document(documents[0], options);
}

std::string error_of(const std::filesystem::path& path, const DocumentOptions& options) {
    return message_of<DataError>([&] { (void)open_one(path, options); });
}

template <class T>
std::string raw(std::vector<T> values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A version 1.0 file as NumPy writes it: the header padded to 64 bytes.
std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
    std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
    header += std::string(64 - (10 + header.size() + 1) % 64, ' ') + "\n";
    const auto length = static_cast<std::uint16_t>(header.size());
    return std::string("\x93NUMPY\x01\x00", 8) + raw(std::vector<std::uint16_t>{length}) + header + data;
}

}  // namespace

TEST_CASE("Documents: bytes of text files are kept exactly") {
    const TemporaryFolder folder;
    put(folder / "odd.txt", odd_bytes);
    put(folder / "utf16.TXT", utf16_bytes);
    put(folder / "empty.md", "");
    put(folder / "one.text", "x");
    put(folder / "gcide.dict", "word");
    const auto documents = list(
        {folder / "odd.txt", folder / "utf16.TXT", folder / "empty.md", folder / "one.text", folder / "gcide.dict"});
    REQUIRE(documents.size() == 5);
    const std::vector<std::string> ids = {"odd", "utf16", "empty", "one", "gcide"};
    const std::vector<Ids> tokens = {{239, 187, 191, 97, 13, 10, 0, 255, 226, 130, 98, 10},
                                     {255, 254, 97, 0, 98, 0, 10, 0},
                                     {},
                                     {120},
                                     {119, 111, 114, 100}};
    for (std::size_t i = 0; i < documents.size(); ++i) {
        CHECK(documents[i].custom_id == ids[i]);
        CHECK(documents[i].error.empty());
        CHECK(documents[i].line == 0);
        const auto reader = open_document(documents[i], byte_options());
        CHECK(read_all(*reader) == tokens[i]);
        CHECK(reader->text_bytes() == std::ssize(tokens[i]));
    }
    const auto reader = open_document(documents[0], byte_options());
    CHECK(read_range(*reader, 5, 3) == Ids{10, 0, 255});
    CHECK(read_range(*reader, 12, 0).empty());
    Ids out(3);
    CHECK_THROWS_AS(reader->read(10, out), InternalError);
    CHECK_THROWS_AS(reader->read(-1, out), InternalError);
}

TEST_CASE("Documents: token arrays of every integer type") {
    const TemporaryFolder folder;
    DocumentOptions options = byte_options();
    options.vocab_size = 50'000;
    const Ids small = {0, 1, 127};
    const Ids large = {0, 49'999, 300};
    put(folder / "i1.npy", npy("|i1", "(3,)", raw<std::int8_t>({0, 1, 127})));
    put(folder / "u1.npy", npy("|u1", "(3,)", raw<std::uint8_t>({0, 1, 127})));
    put(folder / "i2.npy", npy("<i2", "(3,)", raw<std::int16_t>({0, 1, 127})));
    put(folder / "u2.npy", npy("<u2", "(3,)", raw<std::uint16_t>({0, 49'999, 300})));
    put(folder / "i4.npy", npy("<i4", "(3,)", raw<std::int32_t>({0, 49'999, 300})));
    put(folder / "u4.npy", npy("<u4", "(3,)", raw<std::uint32_t>({0, 49'999, 300})));
    put(folder / "i8.npy", npy("<i8", "(3,)", raw<std::int64_t>({0, 49'999, 300})));
    put(folder / "u8.npy", npy("<u8", "(3,)", raw<std::uint64_t>({0, 49'999, 300})));
    put(folder / "b2.npy", npy(">u2", "(3,)", std::string("\x00\x00\xC3\x4F\x01\x2C", 6)));
    put(folder / "b8.npy", npy(">i8", "(1,)", std::string("\x00\x00\x00\x00\x00\x00\x01\x2C", 8)));
    put(folder / "row.npy", npy("<i4", "(1, 3)", raw<std::int32_t>({0, 49'999, 300})));
    put(folder / "none.npy", npy("<i4", "(0,)", ""));
    for (const std::string name : {"i1", "u1", "i2"})
        CHECK(read_all(*open_one(folder / (name + ".npy"), options)) == small);
    for (const std::string name : {"u2", "i4", "u4", "i8", "u8", "b2", "row"}) {
        INFO(name);
        CHECK(read_all(*open_one(folder / (name + ".npy"), options)) == large);
    }
    CHECK(read_all(*open_one(folder / "b8.npy", options)) == Ids{300});
    CHECK(open_one(folder / "none.npy", options)->size() == 0);
    CHECK(open_one(folder / "u2.npy", options)->text_bytes() == -1);

    put(folder / "a.u8.bin", raw<std::uint8_t>({0, 1, 127}));
    put(folder / "a.u16.bin", raw<std::uint16_t>({0, 49'999, 300}));
    put(folder / "a.u32.bin", raw<std::uint32_t>({0, 49'999, 300}));
    put(folder / "a.i32.bin", raw<std::int32_t>({0, 49'999, 300}));
    put(folder / "a.bin", raw<std::int32_t>({0, 49'999, 300}));
    put(folder / "empty.bin", "");
    CHECK(read_all(*open_one(folder / "a.u8.bin", options)) == small);
    for (const std::string name : {"a.u16.bin", "a.u32.bin", "a.i32.bin", "a.bin"}) {
        CHECK(read_all(*open_one(folder / name, options)) == large);
        CHECK(list({folder / name})[0].custom_id == "a");
    }
    CHECK(open_one(folder / "empty.bin", options)->size() == 0);
    put(folder / "cut.bin", "1234567");
    CHECK_THAT(error_of(folder / "cut.bin", options), Contains("cut.bin") && Contains("7 bytes") && Contains("4-byte"));
    put(folder / "float.npy", npy("<f4", "(1,)", raw<float>({1.0F})));
    CHECK_THAT(error_of(folder / "float.npy", options), Contains("float.npy") && Contains("f4"));
}

TEST_CASE("Documents: an id outside the vocabulary names file, position and value") {
    const TemporaryFolder folder;
    DocumentOptions options = byte_options();
    options.vocab_size = 100;
    put(folder / "high.u16.bin", raw<std::uint16_t>({0, 99, 100, 101}));
    CHECK_THAT(error_of(folder / "high.u16.bin", options),
               Contains("high.u16.bin: token 2 is 100, outside the vocabulary of 100"));
    put(folder / "low.bin", raw<std::int32_t>({5, -1}));
    CHECK_THAT(error_of(folder / "low.bin", options), Contains("low.bin: token 1 is -1,"));
    put(folder / "i1.npy", npy("|i1", "(2,)", raw<std::int8_t>({5, -128})));
    CHECK_THAT(error_of(folder / "i1.npy", options), Contains("i1.npy: token 1 is -128,"));
    // Negative ids whose bits, read without a sign, would be inside the vocabulary.
    options.vocab_size = 100'000;
    CHECK_THAT(error_of(folder / "i1.npy", options), Contains("i1.npy: token 1 is -128,"));
    put(folder / "i2.npy", npy("<i2", "(2,)", raw<std::int16_t>({32'767, -2})));
    CHECK_THAT(error_of(folder / "i2.npy", options), Contains("i2.npy: token 1 is -2,"));
    options.vocab_size = 100;
    // Values whose low 32 bits are a good id.
    put(folder / "i8.npy", npy("<i8", "(1,)", raw<std::int64_t>({(std::int64_t{1} << 32) + 5})));
    CHECK_THAT(error_of(folder / "i8.npy", options), Contains("token 0 is 4294967301,"));
    put(folder / "u8.npy", npy("<u8", "(1,)", raw<std::uint64_t>({18446744073709551615U})));
    CHECK_THAT(error_of(folder / "u8.npy", options), Contains("token 0 is 18446744073709551615,"));
    // Past the first stretch of the scan (1,048,576 tokens).
    std::vector<std::uint16_t> many(1'500'000, 7);
    many[1'400'000] = 4711;
    put(folder / "many.u16.bin", raw(many));
    CHECK_THAT(error_of(folder / "many.u16.bin", options), Contains("token 1400000 is 4711,"));

    options.check_ids = false;
    const auto reader = open_one(folder / "many.u16.bin", options);
    CHECK(read_range(*reader, 1'399'999, 1) == Ids{7});
    CHECK_THAT(message_of<DataError>([&] { (void)read_range(*reader, 1'399'990, 20); }),
               Contains("token 1400000 is 4711,"));

    put(folder / "text.txt", "ab");
    const auto bytes = open_one(folder / "text.txt", {options.tokenizer, 98, false, -1, {}, true});
    CHECK(read_range(*bytes, 0, 1) == Ids{97});
    CHECK_THAT(message_of<DataError>([&] { (void)read_all(*bytes); }), Contains("text.txt: token 1 is 98,"));

    put(folder / "rows.jsonl", "{\"custom_id\":\"r\",\"tokens\":[1,2,100]}\n");
    options.vocab_size = 100;
    CHECK_THAT(error_of(folder / "rows.jsonl", options),
               Contains("rows.jsonl line 1 (custom_id \"r\"): token 2 is 100, outside the vocabulary of 100"));
}

TEST_CASE("Documents: the begin-of-text token comes first") {
    const TemporaryFolder folder;
    put(folder / "a.txt", "abc");
    put(folder / "b.bin", raw<std::int32_t>({7, 8}));
    DocumentOptions options = byte_options();
    options.vocab_size = 300;
    options.prepend_bos = true;
    CHECK_THAT(message_of<UsageError>([&] { (void)open_one(folder / "a.txt", options); }), Contains("--bos"));
    options.bos_id = 300;
    CHECK_THAT(message_of<UsageError>([&] { (void)open_one(folder / "a.txt", options); }), Contains("300"));
    options.bos_id = 299;
    const auto text = open_one(folder / "a.txt", options);
    CHECK(text->size() == 4);
    CHECK(text->text_bytes() == 3);
    CHECK(read_all(*text) == Ids{299, 97, 98, 99});
    CHECK(read_range(*text, 1, 2) == Ids{97, 98});
    CHECK(read_range(*text, 0, 2) == Ids{299, 97});
    CHECK(read_range(*text, 4, 0).empty());
    const auto ids = open_one(folder / "b.bin", options);
    CHECK(ids->text_bytes() == -1);
    CHECK(read_all(*ids) == Ids{299, 7, 8});
}

TEST_CASE("Documents: SentencePiece ids lie in a file that goes away with the reader") {
    const TemporaryFolder folder;
    const TemporaryFolder work;
    const std::string text = "This License applies to any program or other work.\n\nThe \"Program\" refers to it.";
    put(folder / "a.txt", text);
    put(folder / "rows.jsonl",
        "{\"custom_id\":\"r\",\"text\":\"This License\\u0020applies\"}\n{\"custom_id\":\"t\",\"tokens\":[3,4]}\n");
    put(folder / "bad.txt", odd_bytes);
    const auto tokenizer = make_sentencepiece_tokenizer(model_folder / "unigram.model");
    DocumentOptions options{tokenizer.get(), 800, false, -1, work.path(), true};
    {
        const auto reader = open_one(folder / "a.txt", options);
        CHECK(read_all(*reader) == encode(*tokenizer, text));
        CHECK(reader->text_bytes() == std::ssize(text));
        const auto rows = list({folder / "rows.jsonl"});
        REQUIRE(rows.size() == 2);
        const auto row = open_document(rows[0], options);
        CHECK(read_all(*row) == encode(*tokenizer, "This License applies"));
        CHECK(row->text_bytes() == 20);
        CHECK(read_all(*open_document(rows[1], options)) == Ids{3, 4});
        CHECK_THAT(error_of(folder / "bad.txt", options), Contains("bad.txt") && Contains("byte 7"));
    }
    CHECK(work.entries() == 0);
    options.vocab_size = 20;
    CHECK_THAT(error_of(folder / "a.txt", options),
               Contains("a.txt: token") && Contains("outside the vocabulary of 20"));
    CHECK(work.entries() == 0);
    options.work_folder = work / "absent";
    options.vocab_size = 800;
    CHECK_THROWS_AS(open_one(folder / "a.txt", options), UnavailableError);
}

TEST_CASE("Documents: duplicates, blank lines and bad rows keep their places") {
    const TemporaryFolder folder;
    put(folder / "rows.jsonl",
        "{\"custom_id\":\"a\",\"text\":\"1\"}\n{\"custom_id\":\"b\",\"text\":\"22\"}\n{\"custom_id\":\"a\",\"text\":"
        "\"333\"}\n"
        "{\"id\":\"x\", \"text\":\n\n{\"custom_id\":\"c\",\"text\":\"4444\"}\n\n\n");
    const auto documents = list({folder / "rows.jsonl"});
    REQUIRE(documents.size() == 5);
    const std::vector<std::string> ids = {"a", "b", "a", "line-4", "c"};
    const std::vector<std::int64_t> lines = {1, 2, 3, 4, 6};
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(documents[i].custom_id == ids[i]);
        CHECK(documents[i].line == lines[i]);
        CHECK(documents[i].error.empty() == (i != 2 && i != 3));
    }
    CHECK_THAT(documents[2].error, Contains("rows.jsonl line 3: duplicate of line 1"));
    CHECK_THAT(documents[3].error, Contains("rows.jsonl line 4: byte ") && Contains("malformed JSON"));
    CHECK_THROWS_AS(open_document(documents[2], byte_options()), DataError);
    CHECK(read_all(*open_document(documents[4], byte_options())) == Ids(4, '4'));
    CHECK(open_document(documents[4], byte_options())->text_bytes() == 4);

    put(folder / "more.jsonl",
        "{\"text\":\"1\"}\n{\"custom_id\":12,\"text\":\"1\",\"note\":0}\n{\"custom_id\":\"b\",\"text\":\"\"}\n");
    put(folder / "c.txt", "c");
    put(folder / "d.txt", "d");
    put(folder / "d.md", "d");
    const auto more =
        list({folder / "rows.jsonl", folder / "more.jsonl", folder / "c.txt", folder / "d.txt", folder / "d.md"});
    REQUIRE(more.size() == 11);
    CHECK(more[5].custom_id == "line-1");
    CHECK_THAT(more[5].error, Contains("more.jsonl line 1: field \"custom_id\" is missing"));
    CHECK(more[6].custom_id == "12");
    CHECK(more[6].error.empty());
    CHECK_THAT(more[7].error, Contains("more.jsonl line 3: duplicate of ") && Contains("rows.jsonl line 2"));
    CHECK_THAT(more[8].error, Contains("c.txt: duplicate of ") && Contains("rows.jsonl line 6"));
    CHECK(more[9].error.empty());
    CHECK_THAT(more[10].error, Contains("d.md: duplicate of ") && Contains("d.txt"));
}

TEST_CASE("Documents: a thousand rows of mixed length stay in order") {
    const TemporaryFolder folder;
    std::string content;
    for (int i = 0; i < 1000; ++i) {
        content += fmt::format("{{\"custom_id\":{},\"text\":\"{}\"}}\n", i,
                               std::string(static_cast<std::size_t>(i * 37 % 1001), 'a'));
    }
    put(folder / "rows.jsonl", content);
    const auto documents = list({folder / "rows.jsonl"});
    REQUIRE(documents.size() == 1000);
    for (int i = 0; i < 1000; ++i) {
        const auto& document = documents[static_cast<std::size_t>(i)];
        CHECK(document.custom_id == std::to_string(i));
        CHECK(open_document(document, byte_options())->size() == i * 37 % 1001);
    }
}

TEST_CASE("Documents: rows may name files beside them") {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "sub");
    put(folder / "sub/a.txt", "abc");
    put(folder / "sub/b.u16.bin", raw<std::uint16_t>({5, 6}));
    put(folder / "sub/rows.jsonl",
        "{\"custom_id\":\"a\",\"path\":\"a.txt\"}\n{\"custom_id\":\"b\",\"path\":\"b.u16.bin\"}\n{\"custom_id\":\"c\","
        "\"path\":\"no.txt\"}\n"
        "{\"custom_id\":\"d\",\"path\":\".\"}\n{\"custom_id\":\"e\",\"path\":\"rows.jsonl\"}\n");
    put(folder / "sub/f.xyz", "");
    const auto documents = list({folder / "sub/rows.jsonl"});
    REQUIRE(documents.size() == 5);
    CHECK(read_all(*open_document(documents[0], byte_options())) == Ids{97, 98, 99});
    CHECK(open_document(documents[0], byte_options())->text_bytes() == 3);
    CHECK(read_all(*open_document(documents[1], byte_options())) == Ids{5, 6});
    CHECK_THAT(documents[2].error, Contains("line 3: field \"path\"") && Contains("no.txt: there is no such file"));
    CHECK_THAT(documents[3].error, Contains("is a directory"));
    CHECK_THAT(documents[4].error, Contains("not a kind of file that a row may name"));
    std::filesystem::remove(folder / "sub/a.txt");
    CHECK_THAT(message_of<DataError>([&] { (void)open_document(documents[0], byte_options()); }), Contains("a.txt"));
    put(folder / "sub/rows.jsonl", "{}");
    put(folder / "sub/a.txt", "abc");
    CHECK(open_document(documents[0], byte_options())->size() == 3);
}

TEST_CASE("Documents: a row that changed after the listing is noticed") {
    const TemporaryFolder folder;
    put(folder / "rows.jsonl", "{\"custom_id\":\"a\",\"text\":\"1\"}\n");
    const auto documents = list({folder / "rows.jsonl"});
    for (const std::string changed :
         {"{}", "{\"custom_id\":\"z\",\"text\":\"1\"}\n", "   \"custom_id\":\"a\",\"text\":\"1\"}\n"}) {
        put(folder / "rows.jsonl", changed);
        CHECK_THAT(message_of<DataError>([&] { (void)open_document(documents[0], byte_options()); }),
                   Contains("was changed"));
    }
}

TEST_CASE("Documents: inputs that cannot be documents") {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "folder.txt");
    put(folder / "good.txt", "x");
    put(folder / "what.xyz", "x");
    put(folder / "empty.jsonl", "\n");
    const auto documents = list({folder / "folder.txt", folder / "absent.npy", folder.path(), folder / "absent.jsonl",
                                 folder / "empty.jsonl", folder / "good.txt"});
    REQUIRE(documents.size() == 5);
    CHECK_THAT(documents[0].error, Contains("folder.txt: is a directory"));
    CHECK(documents[0].custom_id == "folder");
    CHECK_THAT(documents[1].error, Contains("absent.npy: there is no such file"));
    CHECK_THAT(documents[2].error, Contains("is a directory"));
    CHECK_THAT(documents[3].error, Contains("absent.jsonl: there is no such file"));
    CHECK(documents[4].error.empty());
    CHECK_THAT(message_of<UsageError>([&] {
                   (void)list({folder / "good.txt", folder / "what.xyz"});
               }),
               Contains("what.xyz") && Contains(".jsonl") && Contains(".u16.bin"));
    put(folder / "noending", "x");
    CHECK_THROWS_AS(list({folder / "noending"}), UsageError);
    CHECK(list({}).empty());
}

TEST_CASE("Documents: the hash is that of the ids as int32") {
    const TemporaryFolder folder;
    // More than one stretch of the reading (65,536).
    std::vector<std::uint16_t> ids(150'001);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i % 251);
    std::vector<std::uint8_t> bytes(ids.begin(), ids.end());
    std::vector<std::int32_t> wide(ids.begin(), ids.end());
    put(folder / "a.u16.bin", raw(ids));
    put(folder / "a.txt", raw(bytes));
    Hasher hasher;
    hasher.update(raw(wide));
    CHECK(document_hash(*open_one(folder / "a.u16.bin", byte_options())) == hasher.hex());
    CHECK(document_hash(*open_one(folder / "a.txt", byte_options())) == hasher.hex());
    put(folder / "b.txt", raw(bytes).substr(1));
    CHECK(document_hash(*open_one(folder / "b.txt", byte_options())) != hasher.hex());
    put(folder / "none.txt", "");
    CHECK(document_hash(*open_one(folder / "none.txt", byte_options())) == Hasher().hex());
}
