#include "core/hash.h"

#include <catch2/catch.hpp>
#include <string>

#include "core/files.h"
#include "tests/core/temporary_folder.h"

using fenwick::Hasher;

TEST_CASE("the hash of nothing is the published value of XXH3 with 128 bits") {
    CHECK(Hasher().hex() == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("a hash depends on the bytes and not on how they are cut") {
    // Longer than XXH3's internal buffer (256) and stripe block (1024), so that every branch of the streaming code
    // runs.
    std::string text;
    for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i % 23);
    Hasher whole;
    whole.update(text);
    for (const std::size_t piece : {1U, 7U, 256U, 1024U, 4999U}) {
        Hasher cut;
        for (std::size_t at = 0; at < text.size(); at += piece) cut.update(text.substr(at, piece));
        CHECK(cut.hex() == whole.hex());
    }
    text[4000] = '!';
    Hasher other;
    other.update(text);
    CHECK(other.hex() != whole.hex());
}

TEST_CASE("a number is hashed as eight little endian bytes") {
    Hasher number;
    number.update_number(0x0807060504030201U);
    Hasher text;
    text.update("\x01\x02\x03\x04\x05\x06\x07\x08");
    CHECK(number.hex() == text.hex());
}

TEST_CASE("the hash of a file is that of its bytes") {
    const fenwick::testing::TemporaryFolder folder;
    std::string text((std::size_t{16} << 20) + 5, 'a');  // more than a stretch
    text.front() = 'b';
    fenwick::testing::put(folder / "a", text);
    fenwick::testing::put(folder / "empty", "");
    Hasher hasher;
    hasher.update(text);
    CHECK(fenwick::hash_of(fenwick::MappedFile::open(folder / "a")) == hasher.hex());
    CHECK(fenwick::hash_of(fenwick::MappedFile::open(folder / "empty", fenwick::EmptyFile::kAllow)) == Hasher().hex());
}
