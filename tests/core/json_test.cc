#include "core/json.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "temporary_folder.h"

using Catch::Matchers::Contains;
using namespace fenwick;
using fenwick::testing::message_of;
using fenwick::testing::put;
using fenwick::testing::TemporaryFolder;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string parse_failure(const std::string& text) {
    return message_of<DataError>([&] { (void)parse_json(text, "c.json"); });
}

}  // namespace

TEST_CASE("bare Infinity and NaN are numbers outside strings only") {
    const auto json = parse_json(
        R"({"a": [0.0, Infinity], "b": -Infinity, "c":NaN, "d": "Infinity, \" NaN \\", "NaN": "######", "e": -1})",
        "c.json");
    CHECK(json["a"][0] == 0.0);
    CHECK(json["a"][1].get<double>() == kInfinity);
    CHECK(json["b"].get<double>() == -kInfinity);
    CHECK(std::isnan(json["c"].get<double>()));
    CHECK(json["d"] == R"(Infinity, " NaN \)");
    CHECK(json["NaN"] == "######");  // the same text as the stand-in for Infinity stays a string
    CHECK(json["e"] == -1);
    CHECK(parse_json("Infinity", "c.json").get<double>() == kInfinity);
}

TEST_CASE("damaged JSON is refused with the place") {
    CHECK_THAT(parse_failure(R"({"a": Infinity, "b": })"), Contains("c.json") && Contains("byte 22"));
    CHECK_THAT(parse_failure(R"({Infinity: 1})"), Contains("cannot be a key"));
    CHECK_THAT(parse_failure(R"({"a": Infinityx})"), Contains("no valid JSON"));
    CHECK_THAT(parse_failure(R"({"a": 1, "b": {"a": 2}, "a": 3})"), Contains("\"a\" comes twice"));
    CHECK_THAT(parse_failure(""), Contains("no valid JSON"));
    CHECK_THAT(parse_failure(std::string(100000, '[')), Contains("deeper than 64"));
    CHECK_THAT(parse_failure("\"\xff\""), Contains("no valid JSON"));
    CHECK_THAT(parse_failure("[1e999]"), Contains("no valid JSON"));
}

TEST_CASE("names in messages are quoted and cut") {
    CHECK(in_quotes("a\nb\"") == R"("a\nb\"")");
    CHECK(in_quotes("\xff") == R"("\ufffd")");
    CHECK(in_quotes(std::string(1000, 'x')).size() == 125);  // 120 bytes, two quotes, three dots
}

TEST_CASE("a configuration gives typed fields with defaults") {
    const TemporaryFolder folder;
    put(folder / "config.json", R"({"hidden_size": 128, "norm_eps": 1e-05, "dt_limit": [0.0, Infinity], "tie": true,
        "model_type": "mamba2", "nothing": null, "layers": [1, 3], "attn": {"heads": 4, "kind": 7}})");
    const ConfigReader config = ConfigReader::open(folder / "config.json");
    CHECK(config.require_int("hidden_size") == 128);
    CHECK(config.get_int("absent", 7) == 7);
    CHECK(config.get_int("nothing", 8) == 8);
    CHECK(config.get_double("norm_eps", 0) == 1e-5);
    CHECK(config.get_double("hidden_size", 0) == 128.0);
    CHECK(config.get_doubles("dt_limit") == std::vector<double>{0, kInfinity});
    CHECK(config.get_ints("layers") == std::vector<std::int64_t>{1, 3});
    CHECK(config.get_array("nothing").empty());
    CHECK(config.get_bool("tie", false));
    CHECK(config.get_string("model_type", "") == "mamba2");
    CHECK(config.is_null("nothing"));
    CHECK(config.is_null("absent"));
    CHECK(config.has("nothing"));
    CHECK_FALSE(config.has("absent"));
    CHECK_FALSE(config.get_object("absent").has_value());
    CHECK(config.get_object("attn")->require_int("heads") == 4);
}

TEST_CASE("a field of another type names file and field and both types") {
    const ConfigReader config(
        parse_json(R"({"n": "four", "x": 1.5, "big": 18446744073709551615, "o": {"k": []}})", "c"), "c.json");
    const auto failure = [](auto&& call) { return message_of<ConfigError>(call); };
    CHECK(failure([&] { (void)config.require_int("n"); }) == R"(c.json: field "n": expected an integer, found "four")");
    CHECK_THAT(failure([&] { (void)config.get_int("x", 0); }), Contains("an integer") && Contains("1.5"));
    CHECK_THAT(failure([&] { (void)config.get_int("big", 0); }), Contains("63 bits"));
    CHECK_THAT(failure([&] { (void)config.require_int("absent"); }),
               Contains("\"absent\"") && Contains("no such field"));
    CHECK_THAT(failure([&] { (void)config.get_bool("n", true); }), Contains("true or false"));
    CHECK_THAT(failure([&] { (void)config.get_double("n", 1); }), Contains("a number"));
    CHECK_THAT(failure([&] { (void)config.get_string("x", ""); }), Contains("a string"));
    CHECK_THAT(failure([&] { (void)config.get_array("n"); }), Contains("an array"));
    CHECK_THAT(failure([&] { (void)config.get_object("n"); }), Contains("an object"));
    CHECK_THAT(failure([&] { (void)config.get_object("o")->require_int("k"); }), Contains("\"o.k\""));
    CHECK_THAT(failure([&] { const ConfigReader list(parse_json("[1]", "c"), "c.json"); }), Contains("JSON object"));
}
