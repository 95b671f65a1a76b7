#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/documents.h"

using Catch::Matchers::Matches;
using namespace fenwick;

TEST_CASE("Documents: file names for ids") {
    CHECK(file_name_for_id("Book_1-a.v2") == "Book_1-a.v2");
    CHECK(file_name_for_id("a/b c%\xC3\xA9") == "a%2Fb%20c%25%C3%A9");
    CHECK(file_name_for_id(std::string("\0\n", 2)) == "%00%0A");
    CHECK(file_name_for_id("") == "%-");
    CHECK(file_name_for_id(".") == "%2E");
    CHECK(file_name_for_id("..") == "%2E%2E");
    CHECK(file_name_for_id("...") == "...");
    CHECK(file_name_for_id("../x") == "..%2Fx");

    std::set<std::string> names;
    std::vector<std::string> ids = {"", ".", "..", "%-", "%2E", "a", "A", "/"};
    // Around the limit, with characters of one and of three bytes of name, that differ only at the end.
    for (const std::size_t length : {66U, 67U, 199U, 200U, 201U, 5000U}) {
        for (const char c : {'a', '/'}) {
            ids.push_back(std::string(length, c) + "x");
            ids.push_back(std::string(length, c) + "y");
            ids.push_back(std::string("b").append(length, c) + "y");
            ids.push_back(std::string("bb").append(length, c) + "y");
        }
    }
    for (const auto& id : ids) {
        const std::string name = file_name_for_id(id);
        CHECK(!name.empty());
        CHECK(name.size() <= 200);
        CHECK_THAT(name, Matches("([A-Za-z0-9._-]|%[0-9A-F]{2})*(%-([0-9a-f]{32})?)?"));
        names.insert(name);
    }
    CHECK(names.size() == ids.size());
    CHECK(file_name_for_id(std::string(200, 'a')) == std::string(200, 'a'));
    CHECK(file_name_for_id(std::string(201, 'a')).size() == 200);
}
