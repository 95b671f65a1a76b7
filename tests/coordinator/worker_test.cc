// `fenwick serve` and `fenwick worker` as processes: how they start, stop, and go on.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/coordinator/certificates.h"
#include "tests/coordinator/support.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

/// A coordinator in a folder, on ports of its own choice.
class Coordinator {
public:
    explicit Coordinator(const TemporaryFolder& folder, const std::string& control = "") : folder_(folder) {
        model_ = small_model(folder);
        fs::create_directories(folder / "root");
        write_file(folder / "serve.toml", "data = \"data\"\nroots = [\"" + (folder / "root").string() +
                                              "\"]\n[models]\nsmall = \"" + model_.string() +
                                              "\"\n[api]\nport = 0\n[http]\nport = 0\n[control]\nport = 0\n"
                                              "save_seconds = 0\nstretch_tokens = 16384\n" +
                                              control);
        start();
    }
    void start() {
        child_.emplace(Arguments{"serve", "--config", (folder_ / "serve.toml").string(), "--json"});
        wait_for([&] { return child_->output().find('\n') != std::string::npos; });
        ports_ = nlohmann::json::parse(child_->output());
    }
    [[nodiscard]] Finished stop() {
        child_->send(SIGTERM);
        return child_->wait();
    }
    [[nodiscard]] std::string control() const {
        return "127.0.0.1:" + std::to_string(ports_.at("control_port").get<int>());
    }
    [[nodiscard]] Arguments worker(const Arguments& more = {}) const {
        Arguments all = {"worker", "--coordinator", control(), "--pass-tokens", "4096"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    nlohmann::json ask(Arguments arguments, int code = 0) {
        arguments.insert(arguments.end(),
                         {"--json", "--server", "127.0.0.1:" + std::to_string(ports_.at("api_port").get<int>())});
        const Finished run = run_program(arguments);
        INFO(run.err);
        REQUIRE(run.code == code);
        return run.out.empty() ? nlohmann::json() : nlohmann::json::parse(run.out);
    }
    std::string submit(const std::string& name, std::size_t tokens) {
        write_file(folder_ / ("root/" + name), text_of(tokens, 5));
        return ask({"submit", "--model", "small", "--by-path", (folder_ / ("root/" + name)).string()}).at("id");
    }
    nlohmann::json status(const std::string& job) { return ask({"status", job}); }
    void wait_over(const std::string& job) {
        wait_for([&] { return !status(job).at("finished_at").is_null(); });
    }
    [[nodiscard]] fs::path output(const std::string& job) const { return folder_ / ("data/jobs/" + job + "/output"); }
    /// The losses that embedded mode gives.
    std::string embedded(const std::string& name, const std::string& id) {
        const Finished run =
            run_program({"score", "--model", model_.string(), "--output", (folder_ / "embedded").string(),
                         (folder_ / ("root/" + name)).string(), "--device", "cpu"});
        INFO(run.err);
        REQUIRE(run.code == 0);
        return read_file(folder_ / ("embedded/nll/" + id + ".npy"));
    }
    void wait_progress(const std::string& job) {
        wait_for([&] { return status(job).at("tokens_done").get<std::int64_t>() > 0; });
    }

private:
    const TemporaryFolder& folder_;
    fs::path model_;
    std::optional<Child> child_;
    nlohmann::json ports_;
};

}  // namespace

TEST_CASE("worker: a signal saves and exits 75, another gang of another size goes on, the bytes are embedded mode's") {
    const TemporaryFolder folder;
    Coordinator coordinator(folder);
    const std::string job = coordinator.submit("book.txt", 600000);
    Child first(coordinator.worker());
    coordinator.wait_progress(job);
    first.send(SIGUSR2);
    const Finished ended = first.wait();
    INFO(ended.err);
    CHECK(ended.code == 75);
    const auto between = coordinator.status(job);
    CHECK(between.at("request_counts").at("queued") == 1);
    CHECK(between.at("tokens_done").get<std::int64_t>() > 0);

    Arguments two = {"--allow-run-as-root", "--oversubscribe", "-np", "2", FENWICK_PROGRAM};
    for (const std::string& word : coordinator.worker({"--exit-when-idle", "1"})) two.push_back(word);
    Child second(two, std::nullopt, "mpirun");
    coordinator.wait_over(job);
    CHECK(second.wait().code == 0);
    CHECK(read_file(coordinator.output(job) / "nll/book.npy") == coordinator.embedded("book.txt", "book"));
    const auto usage = coordinator.status(job).at("usage");
    CHECK(usage.at("computed_tokens") ==
          usage.at("scored_tokens"));  // nothing twice: it was saved when it was told to end
    CHECK(coordinator.stop().code == 0);
}

TEST_CASE("worker: states in a folder of the gangs, drained by the coordinator, which itself drains") {
    const TemporaryFolder folder;
    Coordinator coordinator(folder);
    fs::create_directories(folder / "states");
    const Arguments options = {"--state-folder", (folder / "states").string(), "--name", "one"};
    const std::string job = coordinator.submit("book.txt", 600000);
    Child first(coordinator.worker(options));
    coordinator.wait_progress(job);
    const auto workers = coordinator.ask({"workers"});
    REQUIRE(workers.size() == 1);
    CHECK(workers[0].at("name") == "one");
    (void)coordinator.ask({"drain", workers[0].at("id").get<std::string>()});
    CHECK(first.wait().code == 0);
    CHECK_FALSE(fs::is_empty(folder / "states"));

    // The coordinator is told to stop in the middle: the gang saves, stays, and works on for the next coordinator.
    Child second(coordinator.worker(options));
    const auto before = coordinator.status(job).at("tokens_done").get<std::int64_t>();
    wait_for([&] { return coordinator.status(job).at("tokens_done").get<std::int64_t>() > before; });
    CHECK(coordinator.stop().code == 75);
    second.send(SIGTERM);
    CHECK(second.wait().code == 75);
    coordinator.start();
    Child third(coordinator.worker(options));
    coordinator.wait_over(job);
    CHECK(read_file(coordinator.output(job) / "nll/book.npy") == coordinator.embedded("book.txt", "book"));
    wait_for([&] { return fs::is_empty(folder / "states"); });
}

TEST_CASE("worker: what it cannot do has a message and a code") {
    const TemporaryFolder folder;
    Coordinator coordinator(folder, "token = \"0123456789abcdef\"\n");
    const auto fails = [&](const Arguments& arguments, int code, const std::string& says) {
        const Finished run = run_program(arguments);
        INFO(run.err);
        CHECK(run.code == code);
        CHECK_THAT(run.err, Catch::Contains(says));
    };
    fails(coordinator.worker(), 69, "token");
    fails(coordinator.worker({"--token", "wrong"}), 69, "token");
    fails({"worker", "--coordinator", "nowhere"}, 2, "HOST:PORT");
    fails({"worker", "--coordinator", "127.0.0.1:1", "--reconnect-seconds", "0"}, 69, "no coordinator at 127.0.0.1:1");
    fails(coordinator.worker({"--token", "0123456789abcdef", "--model", (folder / "no").string()}), 65, "no");
    write_file(folder / "token", "0123456789abcdef\n");
    CHECK(
        run_program(coordinator.worker({"--token-file", (folder / "token").string(), "--exit-when-idle", "0"})).code ==
        0);
    fails({"serve", "--config", (folder / "serve.toml").string()}, 69, "another coordinator uses this store");
    fails({"serve", "--config", (folder / "no.toml").string()}, 78, "no.toml");
}

TEST_CASE("worker: the control plane over TLS asks both sides for certificates") {
    const TemporaryFolder folder;
    fs::create_directories(folder / "pki");
    const Certificates pki(folder / "pki");
    Coordinator coordinator(folder, "[control.tls]\ncertificate = \"" + pki.certificate("server") + "\"\nkey = \"" +
                                        pki.key("server") + "\"\nclient_ca = \"" + pki.certificate("ca") + "\"\n");
    const auto worker = [&](const std::string& authority, const std::string& name) {
        Arguments options = {"--exit-when-idle",        "1", "--reconnect-seconds", "1", "--tls-ca",
                             pki.certificate(authority)};
        if (!name.empty()) {
            options.insert(options.end(), {"--tls-certificate", pki.certificate(name), "--tls-key", pki.key(name)});
        }
        return run_program(coordinator.worker(options));
    };
    const std::string job = coordinator.submit("book.txt", 5000);
    CHECK(worker("ca", "alice").code == 0);
    coordinator.wait_over(job);
    CHECK(worker("other", "alice").code == 69);  // the coordinator's certificate is of another authority
    CHECK(worker("ca", "mallory").code == 69);   // the worker's is
    CHECK(worker("ca", "").code == 69);
    const Finished plain = run_program(coordinator.worker({"--reconnect-seconds", "1"}));
    CHECK(plain.code == 69);
    CHECK(coordinator.stop().code == 0);
}
