// The client verbs of the command line and the Python client against a coordinator: output, --json, exit codes.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support.h"

namespace fenwick::testing {
namespace {

using Json = nlohmann::json;

/// Runs a verb against the coordinator.
class Verbs {
public:
    explicit Verbs(std::uint16_t port) : server_("127.0.0.1:" + std::to_string(port)) {}
    [[nodiscard]] Finished run(Arguments arguments) const {
        arguments.insert(arguments.end(), {"--server", server_, "--retry-seconds", "0"});
        return run_program(arguments);
    }
    /// With --json; checks the exit code.
    [[nodiscard]] Json json(Arguments arguments, int code = 0) const {
        arguments.emplace_back("--json");
        const Finished finished = run(arguments);
        INFO(finished.err);
        CHECK(finished.code == code);
        return Json::parse(finished.out);
    }
    [[nodiscard]] const std::string& server() const { return server_; }

private:
    std::string server_;
};

/// Rows that need no gang: each is bad in its way.
constexpr const char* kRows =
    "{\"custom_id\": \"number\", \"text\": 7}\n"
    "{\"custom_id\": \"nothing\"}\n"
    "no JSON\n";

TEST_CASE("verbs: a job from its submission to its results") {
    LocalCoordinator coordinator;
    const Verbs verbs(coordinator.api_port());
    const auto rows = coordinator.folder() / "rows.jsonl";
    write_file(rows, kRows);

    const Json plan = verbs.json({"submit", "--model", "small", "--plan", rows.string()});
    CHECK(plan["documents"] == 3);
    CHECK(plan["bad_documents"] == 3);
    const Json job = verbs.json({"submit", "--model", "small", "--name", "a name", "--wait", rows.string()}, 3);
    CHECK(job["state"] == "completed");
    CHECK(job["name"] == "a name");
    CHECK(job["request_counts"]["failed"] == 3);
    const std::string id = job["id"];

    const Json status = verbs.json({"status", id, "--documents"});
    REQUIRE(status["documents"].size() == 3);
    CHECK(status["documents"][0]["state"] == "failed");
    CHECK(status["documents"][0]["error_message"].get<std::string>().find("text") != std::string::npos);
    CHECK(verbs.run({"status", id, "--documents"}).out.find("nothing") != std::string::npos);
    CHECK(verbs.json({"watch", id}, 3)["id"] == id);
    CHECK(verbs.run({"watch", id}).code == 3);
    const Finished logs = verbs.run({"logs", id, "--follow"});
    CHECK(logs.code == 0);
    CHECK(logs.out.find("submitted by local") != std::string::npos);
    const std::string log_rows = verbs.run({"logs", id, "--json"}).out;
    CHECK(Json::parse(log_rows.substr(0, log_rows.find('\n')))["level"] == "info");

    const auto output = coordinator.folder() / "output";
    const Json results = verbs.json({"results", id, "--output", output.string()}, 3);
    CHECK(results["files_kept"] == 0);
    CHECK(read_jsonl(output / "results.jsonl").empty());
    CHECK(read_jsonl(output / "errors.jsonl").size() == 3);
    const Json manifest = Json::parse(read_file(output / "manifest.json"));
    CHECK(manifest["counts"]["documents"] == 3);
    // Again: nothing is fetched but what was damaged.
    write_file(output / "errors.jsonl", "damaged");
    const Json again = verbs.json({"results", id, "--output", output.string()}, 3);
    CHECK(again["files_kept"].get<int>() == again["files"].get<int>() - 1);
    CHECK(read_jsonl(output / "errors.jsonl").size() == 3);

    CHECK(verbs.json({"list"}).size() == 1);
    CHECK(verbs.json({"list", "--state", "failed"}).empty());
    CHECK(verbs.run({"list"}).out.find(id) != std::string::npos);
    CHECK(verbs.json({"workers"}).empty());
    const Json retried = verbs.json({"retry", id});
    CHECK(retried["state"] != "completed");
    CHECK(verbs.json({"watch", id}, 3)["request_counts"]["failed"] == 3);
}

TEST_CASE("verbs: what the coordinator refuses comes back as message and exit code") {
    LocalCoordinator coordinator;
    const Verbs verbs(coordinator.api_port());
    const auto book = coordinator.folder() / "book.txt";
    write_file(book, text_of(5000, 1));
    const auto check = [](const Finished& finished, int code, const std::string& text) {
        INFO(finished.err);
        CHECK(finished.code == code);
        CHECK(finished.err.find(text) != std::string::npos);
    };
    check(verbs.run({"status", "no-such-job"}), 2, "NOT_FOUND: job 'no-such-job'");
    check(verbs.run({"submit", "--model", "large", book.string()}), 2, "NOT_FOUND");
    check(verbs.run({"submit", "--model", "small", "--by-path", book.string()}), 69, "PERMISSION_DENIED");
    check(verbs.run({"submit", "--model", "small", "/no/such/file.txt"}), 65, "/no/such/file.txt");
    check(verbs.run({"drain", "no-such-gang"}), 2, "NOT_FOUND");
    check(verbs.run({"list", "--state", "nonsense"}), 2, "--state");
    const Json error = verbs.json({"status", "no-such-job"}, 2);
    CHECK(error["status"] == "error");

    // A job that waits for a gang: results are not there yet; cancelled, it is over and its documents did not get done.
    const Finished submitted = verbs.run({"submit", "--model", "small", "--key", "k", book.string()});
    REQUIRE(submitted.code == 0);
    const std::string id = submitted.out.substr(0, submitted.out.find('\n'));
    check(verbs.run({"results", id, "--output", (coordinator.folder() / "none").string()}), 2, "NOT_FOUND");
    CHECK_FALSE(std::filesystem::exists(coordinator.folder() / "none"));
    check(verbs.run({"retry", id}), 2, "CONFLICT");
    CHECK(verbs.run({"cancel", id}).code == 0);
    const Json over = verbs.json({"watch", id}, 3);
    CHECK(over["state"] == "cancelled");
    CHECK(over["request_counts"]["cancelled"] == 1);
}

TEST_CASE("verbs: tokens, servers that are not there, options that cannot be used") {
    LocalCoordinator coordinator([](ServeConfig& config) { config.tokens = {{"alice", "alices-token", false}}; });
    const Verbs verbs(coordinator.api_port());
    write_file(coordinator.folder() / "token", "alices-token\nsecond line\n");
    write_file(coordinator.folder() / "wrong", "another\n");
    write_file(coordinator.folder() / "empty", "\n");
    const auto token = [&](const char* name) { return (coordinator.folder() / name).string(); };
    CHECK(verbs.run({"list", "--token-file", token("token")}).code == 0);
    const Finished wrong = verbs.run({"list", "--token-file", token("wrong")});
    CHECK(wrong.code == 69);
    CHECK(wrong.err.find("UNAUTHENTICATED") != std::string::npos);
    CHECK(verbs.run({"list"}).code == 69);
    CHECK(verbs.run({"list", "--token-file", token("empty")}).code == 2);
    CHECK(verbs.run({"list", "--tls-certificate", token("token")}).code == 2);
    const Finished absent = run_program({"list", "--server", "127.0.0.1:1", "--retry-seconds", "0"});
    CHECK(absent.code == 69);
    CHECK(absent.err.find("127.0.0.1:1") != std::string::npos);
    CHECK(absent.err.find("fenwick serve") != std::string::npos);
    CHECK(run_program({"list", "--server", "nowhere"}).code == 2);
    // TLS spoken to a port without it.
    const Finished tls =
        run_program({"list", "--server", verbs.server(), "--retry-seconds", "0", "--tls-ca", "/etc/hosts"});
    CHECK(tls.code == 69);
}

TEST_CASE("verbs: a call is tried again while the coordinator is away") {
    const std::string away = "127.0.0.1:" + std::to_string(free_port());
    Child waiting({"list", "--server", away, "--retry-seconds", "20"});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    LocalCoordinator late([&](ServeConfig& config) {
        config.api.port = static_cast<std::uint16_t>(std::stoi(away.substr(away.rfind(':') + 1)));
    });
    const Finished finished = waiting.wait();
    CHECK(finished.code == 0);
    CHECK(finished.err.find("trying again") != std::string::npos);
}

TEST_CASE("python: the example pipeline submits, waits and reads") {
    LocalCoordinator coordinator;
    const auto rows = coordinator.folder() / "rows.jsonl";
    write_file(rows, kRows);
    REQUIRE(::setenv("PYTHONPATH", FENWICK_PYTHON_PACKAGE, 1) == 0);
    const auto output = coordinator.folder() / "output";
    const Arguments arguments = {FENWICK_PIPELINE,
                                 "--server",
                                 "127.0.0.1:" + std::to_string(coordinator.api_port()),
                                 "--model",
                                 "small",
                                 "--key",
                                 "one",
                                 "--output",
                                 output.string(),
                                 rows.string()};
    Child pipeline(arguments, std::nullopt, FENWICK_PYTHON);
    const Finished finished = pipeline.wait();
    INFO(finished.err);
    CHECK(finished.code == 3);
    CHECK(finished.out.find("number\tfailed: ") != std::string::npos);
    CHECK(read_jsonl(output / "errors.jsonl").size() == 3);
    CHECK(std::filesystem::exists(output / "manifest.json"));
    Child absent({FENWICK_PIPELINE, "--server", "127.0.0.1:" + std::to_string(coordinator.api_port()), "--model",
                  "large", rows.string()},
                 std::nullopt, FENWICK_PYTHON);
    const Finished refused = absent.wait();
    CHECK(refused.code == 1);
    CHECK(refused.err.find("large") != std::string::npos);
}

}  // namespace
}  // namespace fenwick::testing
