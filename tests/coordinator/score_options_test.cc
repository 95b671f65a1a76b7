#include "coordinator/score_options.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <optional>
#include <string>

#include "core/errors.h"
#include "worker/gpu.h"

using namespace fenwick;
using Catch::Matchers::Contains;

TEST_CASE("pass-tokens accepts multiples of a block") {
    CHECK(parse_pass_tokens("4096", 1) == 4096);
    CHECK(parse_pass_tokens("65536", 3) == 65536);
    CHECK(parse_pass_tokens("unlimited", 2) == kUnlimitedPass);
    CHECK(parse_pass_tokens("", 1) == 16384);
    CHECK(parse_pass_tokens("", 5) == 81920);
}

TEST_CASE("pass-tokens names the nearest multiples") {
    CHECK_THROWS_WITH(parse_pass_tokens("5000", 1), Contains("4096") && Contains("8192"));
    CHECK_THROWS_WITH(parse_pass_tokens("0", 1), Contains("nearest is 4096"));
    CHECK_THROWS_WITH(parse_pass_tokens("-4096", 1), Contains("nearest is 4096"));
    CHECK_THROWS_WITH(parse_pass_tokens("9223372036854775807", 1), Contains("9223372036854771712"));
    for (const char* bad : {"many", "4096x", "4096 ", "99999999999999999999", "4e3"}) {
        INFO(bad);
        CHECK_THROWS_AS(parse_pass_tokens(bad, 1), UsageError);
    }
}

TEST_CASE("ranks must be positive and agree with the world") {
    CHECK(resolve_ranks(std::nullopt, 0) == 1);
    CHECK(resolve_ranks(4, 0) == 4);
    CHECK(resolve_ranks(std::nullopt, 3) == 3);
    CHECK(resolve_ranks(3, 3) == 3);
    CHECK_THROWS_AS(resolve_ranks(0, 0), UsageError);
    CHECK_THROWS_AS(resolve_ranks(-2, 0), UsageError);
    CHECK_THROWS_WITH(resolve_ranks(2, 3), Contains("--ranks 2") && Contains("3 ranks"));
}

TEST_CASE("devices and dtypes resolve to what this machine can run") {
    CHECK(resolve_execution("cpu", "fp32").dtype == "fp32");
    CHECK(resolve_execution("cpu", "auto").device == "cpu");
    CHECK_THROWS_WITH(resolve_execution("cpu", "bf16"), Contains("--device cuda"));
    CHECK_THROWS_AS(resolve_execution("gpu", "auto"), UsageError);
    // Several ranks share documents on the CPU alone.
    CHECK(resolve_execution("auto", "auto", 2).device == "cpu");
    CHECK_THROWS_AS(resolve_execution("cuda", "auto", 2), UnavailableError);
    // CASES J2: Slurm's number of the task chooses among several GPUs; nonsense is refused where there is one to
    // choose.
    const auto slurm = [](const char* id) {
        return [id](const std::string& name) -> std::optional<std::string> {
            return name == "SLURM_LOCALID" ? std::optional<std::string>(id) : std::nullopt;
        };
    };
    CHECK_THROWS_AS(resolve_execution("auto", "auto", 1, slurm("x")), UnavailableError);
    CHECK(resolve_execution("cpu", "auto", 1, slurm("x")).device == "cpu");
    if (gpu_status(false).usable) {
        CHECK(resolve_execution("auto", "auto").device == "cuda");
        CHECK(resolve_execution("auto", "auto").dtype == "bf16");
        CHECK(resolve_execution("cuda", "fp32").dtype == "fp32");
    } else {
        CHECK(resolve_execution("auto", "auto").device == "cpu");
        CHECK_THROWS_AS(resolve_execution("cuda", "auto"), UnavailableError);
        CHECK_THROWS_AS(resolve_execution("auto", "bf16"), UsageError);
    }
}

TEST_CASE("threads of a rank follow OMP_NUM_THREADS and are never none") {
    REQUIRE(setenv("OMP_NUM_THREADS", "3", 1) == 0);
    CHECK(threads_per_rank(8, false) == 3);
    REQUIRE(setenv("OMP_NUM_THREADS", "2,4", 1) == 0);
    CHECK(threads_per_rank(8, true) == 2);
    REQUIRE(setenv("OMP_NUM_THREADS", "none", 1) == 0);
    CHECK(threads_per_rank(100000, false) == 1);
    REQUIRE(unsetenv("OMP_NUM_THREADS") == 0);
    CHECK(threads_per_rank(100000, true) == 1);
    CHECK(threads_per_rank(1, false) >= 1);
}
