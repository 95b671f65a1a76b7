// Load on one coordinator: many clients that poll and submit while 10,000 documents are queued; the median and 99th
// percentile of each call, and the time of a restart after kill -9.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "coordinator/idl/Fenwick.h"
#include "core/scratch_folder.h"

namespace fenwick::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;
namespace fs = std::filesystem;

struct Options {
    fs::path fenwick = fs::read_symlink("/proc/self/exe").parent_path() / "fenwick";
    int clients = 200;
    int documents = 10'000;
    double seconds = 30;
    double interval_ms = 500;
};

/// The program as a child; its stdout is read through a pipe.
class Process {
public:
    explicit Process(const std::vector<std::string>& arguments) {
        std::array<int, 2> pipe = {};
        if (::pipe(pipe.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
        posix_spawn_file_actions_addclose(&actions, pipe[0]);
        std::vector<char*> argv;
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        const int error = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
        posix_spawn_file_actions_destroy(&actions);
        ::close(pipe[1]);
        out_ = pipe[0];
        if (error != 0) throw std::system_error(error, std::generic_category(), arguments[0]);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process() {
        if (pid_ > 0) kill(SIGKILL);
        ::close(out_);
    }
    [[nodiscard]] std::string line() const {
        std::string text;
        char c = 0;
        while (::read(out_, &c, 1) == 1 && c != '\n') text += c;
        return text;
    }
    int kill(int signal) {
        ::kill(pid_, signal);
        return wait();
    }
    int wait() {
        int status = 0;
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
        return status;
    }

private:
    pid_t pid_ = -1;
    int out_ = -1;
};

class Client {
public:
    explicit Client(int port) {
        using namespace apache::thrift;
        const auto framed =
            std::make_shared<transport::TFramedTransport>(std::make_shared<transport::TSocket>("127.0.0.1", port));
        client_ = std::make_unique<idl::FenwickClient>(std::make_shared<protocol::TBinaryProtocol>(framed));
        framed->open();
    }
    idl::FenwickClient* operator->() { return client_.get(); }

private:
    std::unique_ptr<idl::FenwickClient> client_;
};

class Times {
public:
    void add(const std::string& call, double ms) {
        const std::lock_guard lock(mutex_);
        times_[call].push_back(ms);
    }
    void print() {
        fmt::print("{:<16} {:>8} {:>12} {:>12} {:>12}\n", "call", "count", "median ms", "p99 ms", "slowest ms");
        for (auto& [call, times] : times_) {
            std::sort(times.begin(), times.end());
            const auto at = [&times](double share) {
                return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
            };
            fmt::print("{:<16} {:>8} {:>12.2f} {:>12.2f} {:>12.2f}\n", call, times.size(), at(0.5), at(0.99), at(1));
        }
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::vector<double>> times_;
};

idl::JobSpec spec_of(const std::string& text) {
    idl::JobSpec spec;
    spec.model.__set_name("small");
    spec.documents.emplace_back();
    spec.documents[0].__set_customId("a");
    spec.documents[0].source.__set_text(text);
    return spec;
}

/// One client: at random times, `interval_ms` apart on average, one call of those that clients make.
void poll(int port, const std::string& job, const Options& options, Clock::time_point end, std::uint64_t seed,
          Times& times) {
    Client client(port);
    std::mt19937_64 random(seed);
    std::exponential_distribution<double> gap(1 / options.interval_ms);
    std::string own = job;
    idl::Job known;
    client->getJob(known, own);
    for (std::int64_t number = 0;; ++number) {
        const auto next = Clock::now() + std::chrono::duration_cast<Clock::duration>(Milliseconds(gap(random)));
        if (next >= end) return;
        std::this_thread::sleep_until(next);
        const auto timed = [&](const char* name, const std::function<void()>& call) {
            const auto begun = Clock::now();
            call();
            times.add(name, Milliseconds(Clock::now() - begun).count());
        };
        switch (random() % 10) {
            case 0:
                timed("submitJob",
                      [&] { client->submitJob(known, spec_of("a text"), fmt::format("{} {}", seed, number)); });
                own = known.id;
                break;
            case 1:
                timed("waitJob (moved)", [&] { client->waitJob(known, own, 0, 1000); });
                break;
            case 2: {
                idl::DocumentPage page;
                timed("listDocuments",
                      [&] { client->listDocuments(page, job, std::to_string(random() % 9000), 100, {}); });
                break;
            }
            case 3: {
                idl::JobPage page;
                timed("listJobs", [&] { client->listJobs(page, "", 20, {}); });
                break;
            }
            case 4: {
                idl::LogPage page;
                timed("readLogs", [&] { client->readLogs(page, own, 0, 100); });
                break;
            }
            case 5: {
                idl::Health health;
                timed("getHealth", [&] { client->getHealth(health); });
                break;
            }
            default:
                timed("getJob", [&] { client->getJob(known, own); });
        }
    }
}

void write_inputs(const fs::path& folder, const Options& options) {
    std::ofstream rows(folder / "rows.jsonl");
    for (int i = 0; i < options.documents; ++i) {
        rows << fmt::format("{{\"custom_id\": \"document {}\", \"text\": \"the text of document {}\"}}\n", i, i);
    }
    std::ofstream config(folder / "serve.toml");
    config << fmt::format(
        "data = \"{0}/data\"\nroots = [\"{0}\"]\n[models]\nsmall = \"{0}/model\"\n[api]\nport = 0\n"
        "[http]\nport = 0\n[control]\nport = 0\n[log]\nlevel = \"warn\"\n",
        folder.string());
    if (!rows.flush() || !config.flush()) throw std::runtime_error(folder.string() + ": cannot be written");
}

int run(const Options& options) {
    const ScratchFolder folder("fenwick-bench-");
    write_inputs(folder.path(), options);
    const std::string fenwick = options.fenwick.string();
    if (Process({fenwick, "init", "--family", "log_linear_mamba2", "--output", (folder.path() / "model").string(),
                 "--hidden", "16", "--layers", "1", "--heads", "2", "--head-dim", "8", "--state", "8"})
            .wait() != 0) {
        throw std::runtime_error("fenwick init failed");
    }
    const std::vector<std::string> serve = {fenwick, "serve", "--config", (folder.path() / "serve.toml").string(),
                                            "--json"};
    auto coordinator = std::make_unique<Process>(serve);
    const int port = nlohmann::json::parse(coordinator->line()).at("api_port").get<int>();
    Client client(port);
    idl::JobSpec spec = spec_of("");
    spec.documents[0] = {};
    spec.documents[0].source.__set_path((folder.path() / "rows.jsonl").string());
    idl::Job job;
    const auto begun = Clock::now();
    client->submitJob(job, spec, "bench");
    while (job.state == idl::JobState::VALIDATING) client->waitJob(job, job.id, job.version, 10'000);
    fmt::print("{} documents listed, looked through and queued in {:.1f} s\n", job.requestCounts.queued,
               Milliseconds(Clock::now() - begun).count() / 1000);

    Times times;
    std::atomic<int> failed = 0;
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
    std::vector<std::thread> threads;
    for (int i = 0; i < options.clients; ++i) {
        threads.emplace_back([&, i] {
            try {
                poll(port, job.id, options, end, static_cast<std::uint64_t>(i), times);
            } catch (const std::exception& error) {
                ++failed;
                fmt::print(stderr, "client {}: {}\n", i, error.what());
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    fmt::print("{} clients for {:.0f} s, a call every {:.0f} ms each:\n", options.clients, options.seconds,
               options.interval_ms);
    times.print();

    coordinator->kill(SIGKILL);
    const auto killed = Clock::now();
    coordinator = std::make_unique<Process>(serve);
    const auto report = nlohmann::json::parse(coordinator->line());
    Client again(report.at("api_port").get<int>());
    idl::Health health;
    again->getHealth(health);
    fmt::print("restart after kill -9 with {} documents queued: {:.2f} s to the first answer\n", health.queuedDocuments,
               Milliseconds(Clock::now() - killed).count() / 1000);
    return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fenwick::bench

int main(int argc, char** argv) {
    fenwick::bench::Options options;
    CLI::App app("Load on one coordinator", "bench_service");
    app.add_option("--fenwick", options.fenwick, "The program")->capture_default_str();
    app.add_option("--clients", options.clients)->capture_default_str();
    app.add_option("--documents", options.documents)->capture_default_str();
    app.add_option("--seconds", options.seconds)->capture_default_str();
    app.add_option("--interval-ms", options.interval_ms, "Between two calls of a client, on average")
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        return fenwick::bench::run(options);
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_service: {}\n", error.what());
        return 1;
    }
}
