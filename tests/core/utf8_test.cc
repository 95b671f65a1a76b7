#include "core/utf8.h"

#include <catch2/catch.hpp>
#include <string>

using namespace fenwick;

TEST_CASE("UTF-8: every boundary of the code space is valid and its neighbours outside are not") {
    // First and last of each length, and the characters beside the surrogates (RFC 3629 section 4).
    for (const std::string good : {"\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                   "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
        CHECK_FALSE(find_invalid_utf8("abc" + good + "abcdefgh"));
        CHECK_FALSE(find_invalid_utf8(good));
    }
    for (const std::string bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                                  "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                                  "\xC2", "\xE2\x82", "\xF0\x9F\x98", "\xC2\x41", "\xE2\x82\x41", "\xF0\x9F\x98\x41"}) {
        // 11 bytes before: one word of the fast path, then single bytes.
        CHECK(find_invalid_utf8("abcdefghijk" + bad) == 11);
        CHECK(find_invalid_utf8(bad) == 0);
    }
    CHECK_FALSE(find_invalid_utf8(""));
    CHECK_FALSE(find_invalid_utf8(std::string("a\0b", 3)));
}
