// The configuration file of `fenwick serve`: what it may say, and what is said of mistakes.
#include "coordinator/service/config.h"

#include <catch2/catch.hpp>

#include "core/errors.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using fenwick::testing::TemporaryFolder;
using fenwick::testing::write_file;

namespace {

ServeConfig read(const std::string& text) {
    const TemporaryFolder folder;
    write_file(folder / "serve.toml", text);
    return read_serve_config(folder / "serve.toml");
}

void refuses(const std::string& text, const std::string& says) {
    INFO(text);
    CHECK_THROWS_AS(read(text), ConfigError);
    CHECK_THROWS_WITH(read(text), Catch::Contains("serve.toml") && Catch::Contains(says));
}

}  // namespace

TEST_CASE("serve.toml: defaults, and every kind of value") {
    const ServeConfig config = read(R"(
data = "/var/lib/fenwick"
roots = ["/srv/a", "/srv/b"]
[models]
small = "/srv/models/small"
near = "models/near"
[api]
port = 0
[[api.clients]]
name = "ann"
token = "0123456789abcdef"
admin = true
[api.limits]
active_jobs = 5
[control]
lost_seconds = 4.5
stretch_tokens = 8192
[log]
level = "debug"
)");
    CHECK(config.data == "/var/lib/fenwick");
    CHECK(config.roots.size() == 2);
    REQUIRE(config.models.size() == 2);
    CHECK(config.models[1].path == "/srv/models/small");
    CHECK(config.models[0].path.is_absolute());  // relative to the file
    CHECK(config.api.port == 0);
    CHECK(config.api.host == "127.0.0.1");
    REQUIRE(config.tokens.size() == 1);
    CHECK(config.tokens[0].admin);
    CHECK(config.limits.active_jobs == 5);
    CHECK(config.lost_seconds == 4.5);
    CHECK(config.stretch_tokens == 8192);
}

TEST_CASE("serve.toml: mistakes are named with their key, what was expected and what was found") {
    refuses("", "data: expected the folder");
    refuses("data = 3", "data: expected a path in quotes, found 3 (line 1)");
    refuses("data = \"d\"\nrots = []", "line 2: rots: no such key; known here:");
    refuses("data = \"d\"\n[api]\nport = 70000", "api.port: expected a whole number from 0 to 65535, found 70000");
    refuses("data = \"d\"\n[control]\nstretch_tokens = 5000", "control.stretch_tokens: expected a multiple of 4096");
    refuses("data = \"d\"\n[control]\nlost_seconds = 1.0", "control.lost_seconds: expected at least 3 heartbeats");
    refuses("data = \"d\"\nroots = [\"relative\"]", "roots: expected a list of absolute paths");
    refuses("data = \"d\"\n[[api.clients]]\nname = \"a\"\ntoken = \"short\"", "token: expected at least 16 characters");
    refuses("data = \"d\"\n[log]\nlevel = \"loud\"", "log.level: expected debug, info, warn or error, found 'loud'");
    refuses("data = \"d", "line 1");
}

TEST_CASE("serve.toml: beyond loopback somebody has to be asked who they are") {
    refuses("data = \"d\"\n[api]\nhost = \"0.0.0.0\"", "api.host: expected a loopback address");
    refuses("data = \"d\"\n[control]\nhost = \"10.0.0.1\"", "control.token: expected a token");
    CHECK(read("data = \"d\"\n[control]\nhost = \"10.0.0.1\"\ntoken = \"0123456789abcdef\"").control.host ==
          "10.0.0.1");
}
