// The HTTP pages: metrics that Prometheus reads, health, and the JSON behind the status page.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "support.h"

namespace fenwick::testing {
namespace {

TEST_CASE("pages: metrics are in Prometheus' text form, each family once, and name no job") {
    LocalCoordinator coordinator;
    ApiClient client(coordinator.api_port());
    idl::Job job;
    client->submitJob(job, text_job("text"), "");
    const HttpAnswer metrics = http_get(coordinator.http_port(), "/metrics");
    REQUIRE(metrics.status == 200);
    // The exposition format's own grammar for lines (names, labels, a value).
    const std::regex sample(R"re([a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.eE]+(Inf|NaN)?)re");
    std::istringstream lines(metrics.body);
    std::set<std::string> families;
    std::string line;
    while (std::getline(lines, line)) {
        INFO(line);
        if (line.rfind("# TYPE ", 0) == 0) CHECK(families.insert(line.substr(7, line.find(' ', 7) - 7)).second);
        if (!line.empty() && line[0] != '#') CHECK(std::regex_match(line, sample));
    }
    for (const char* name : {"fenwick_jobs", "fenwick_documents", "fenwick_gangs", "fenwick_ranks", "fenwick_ready",
                             "fenwick_rpc_calls_total", "fenwick_rpc_call_seconds", "fenwick_connections_open",
                             "process_resident_memory_bytes", "process_open_fds"}) {
        CHECK(families.count(name) == 1);
    }
    CHECK(metrics.body.find("fenwick_rpc_calls_total{method=\"submitJob\",outcome=\"ok\"} 1") != std::string::npos);
    CHECK(metrics.body.find(job.id) == std::string::npos);
    // What dashboard and alerts look for is there.
    const std::regex name("(fenwick|process)_[a-z_]+");
    for (const char* file : {"ops/grafana/fenwick.json", "ops/prometheus/fenwick-rules.yml"}) {
        const std::string text =
            std::regex_replace(read_file(FENWICK_SOURCE + std::string(file)), std::regex("_bucket"), "");
        std::int64_t found = 0;
        for (std::sregex_iterator match(text.begin(), text.end(), name), end; match != end; ++match, ++found) {
            INFO(file << ": " << match->str());
            CHECK(families.count(match->str()) == 1);
        }
        CHECK(found > 4);
    }
}

TEST_CASE("pages: the status page needs nothing from elsewhere") {
    LocalCoordinator coordinator;
    const HttpAnswer page = http_get(coordinator.http_port(), "/");
    CHECK(page.status == 200);
    CHECK(page.body.find("<title>Fenwick</title>") != std::string::npos);
    // The one address in it is the name space of SVG, which is no address to fetch.
    std::string rest = page.body;
    const std::string name_space = "http://www.w3.org/2000/svg";
    const std::size_t at = rest.find(name_space);
    REQUIRE(at != std::string::npos);
    rest.erase(at, name_space.size());
    CHECK(rest.find("://") == std::string::npos);
    CHECK(rest.find("src=") == std::string::npos);
    CHECK(http_get(coordinator.http_port(), "/no-such-page").status == 404);
}

TEST_CASE("pages: jobs and documents as JSON, for those who may see them") {
    LocalCoordinator coordinator([](ServeConfig& config) {
        config.tokens = {{"alice", "alices-token", false}, {"bob", "bobs-token", false}};
    });
    ApiClient alice(coordinator.api_port(), "alices-token");
    idl::Job job;
    idl::JobSpec spec = text_job("some text");
    spec.__set_name("</script><b>name");
    alice->submitJob(job, spec, "");
    while (job.state == idl::JobState::VALIDATING) alice->waitJob(job, job.id, job.version, 10'000);
    const std::uint16_t port = coordinator.http_port();
    CHECK(http_get(port, "/api/status").status == 401);
    CHECK(http_get(port, "/api/status", "wrong").status == 401);
    const auto status = nlohmann::json::parse(http_get(port, "/api/status", "alices-token").body);
    REQUIRE(status["jobs"].size() == 1);
    CHECK(status["jobs"][0]["id"] == job.id);
    CHECK(status["jobs"][0]["name"] == "</script><b>name");
    CHECK(status["jobs"][0]["state"] == "in_progress");
    CHECK(status["health"]["queued_documents"] == 1);
    CHECK(nlohmann::json::parse(http_get(port, "/api/status", "bobs-token").body)["jobs"].empty());

    const HttpAnswer shown = http_get(port, "/api/job?id=" + job.id, "alices-token");
    REQUIRE(shown.status == 200);
    const auto page = nlohmann::json::parse(shown.body);
    REQUIRE(page["documents"].size() == 1);
    CHECK(page["documents"][0]["custom_id"] == "a");
    CHECK(page["documents"][0]["state"] == "queued");
    CHECK(http_get(port, "/api/job?id=" + job.id, "bobs-token").status == 404);
    CHECK(http_get(port, "/api/job?id=%00%zz&page=7&x", "alices-token").status == 404);
    CHECK(http_get(port, "/api/job?id=" + job.id + "&page=nonsense", "alices-token").status == 400);
}

}  // namespace
}  // namespace fenwick::testing
