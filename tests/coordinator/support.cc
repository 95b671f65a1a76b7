#include "tests/coordinator/support.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <thread>

namespace fenwick::testing {

namespace fs = std::filesystem;

void write_file(const fs::path& file, const std::string& text) {
    std::ofstream stream(file, std::ios::binary);
    stream << text;
    if (!stream.flush()) throw std::runtime_error("cannot write " + file.string());
}

std::string read_file(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) throw std::runtime_error("cannot read " + file.string());
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::vector<nlohmann::json> read_jsonl(const fs::path& file) {
    const std::string text = read_file(file);
    std::vector<nlohmann::json> rows;
    for (std::size_t first = 0; first < text.size();) {
        const std::size_t end = text.find('\n', first);
        REQUIRE(end != std::string::npos);  // each line is whole
        rows.push_back(nlohmann::json::parse(text.substr(first, end - first)));
        first = end + 1;
    }
    return rows;
}

std::string text_of(std::size_t bytes, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::string text(bytes, ' ');
    for (char& c : text) c = static_cast<char>(' ' + random() % 95);
    return text;
}

Child::Child(const Arguments& arguments, std::optional<std::uint64_t> file_size_limit, const std::string& program) {
    const std::string out = (outputs_ / "out").string();
    const std::string err = (outputs_ / "err").string();
    std::vector<std::string> words = {program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
    if (pid_ > 0) return;
    // The child: only calls that are safe after fork.
    constexpr int kFailed = 127;
    const int out_fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err_fd = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (dup2(out_fd, STDOUT_FILENO) < 0 || dup2(err_fd, STDERR_FILENO) < 0) _exit(kFailed);
    if (file_size_limit) {
        const rlimit limit = {*file_size_limit, *file_size_limit};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(kFailed);
    }
    execvp(argv[0], argv.data());
    _exit(kFailed);
}

Child::~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
}

void Child::send(int signal) const {
    REQUIRE(kill(pid_, signal) == 0);
}

Finished Child::wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) {
        if (errno != EINTR) throw std::runtime_error("waitpid: " + std::string(std::strerror(errno)));
    }
    pid_ = -1;
    Finished finished;
    if (WIFEXITED(status)) finished.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
    finished.out = read_file(outputs_ / "out");
    finished.err = read_file(outputs_ / "err");
    return finished;
}

std::string Child::output() const {
    std::error_code error;
    return fs::exists(outputs_ / "out", error) ? read_file(outputs_ / "out") : "";
}

Finished run_program(const Arguments& arguments) {
    return Child(arguments).wait();
}

fs::path small_model(const TemporaryFolder& folder, const std::string& family) {
    fs::path path = folder / family;
    const Finished made =
        run_program({"init", "--family", family, "--output", path.string(), "--hidden", "16", "--layers", "1",
                     "--heads", "2", "--head-dim", "8", "--state", "8", "--seed", "7"});
    INFO(made.err);
    REQUIRE(made.code == 0);
    return path;
}

void wait_for(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!condition()) {
        REQUIRE(std::chrono::steady_clock::now() < deadline);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

void wait_for_losses(const fs::path& file) {
    constexpr std::uintmax_t kHeaderBytes = 128;
    wait_for([&] {
        std::error_code error;
        const auto size = fs::file_size(file, error);
        return !error && size > kHeaderBytes;
    });
}

std::vector<nlohmann::json> without_timing(std::vector<nlohmann::json> rows) {
    for (nlohmann::json& row : rows) {
        row.erase("seconds");
        row.erase("tokens_per_second");
    }
    return rows;
}

std::vector<float> read_nll(const fs::path& file) {
    const std::string bytes = read_file(file);
    REQUIRE(bytes.size() >= 128);
    REQUIRE(bytes.substr(1, 5) == "NUMPY");
    std::vector<float> values((bytes.size() - 128) / sizeof(float));
    REQUIRE(bytes.size() == 128 + values.size() * sizeof(float));
    REQUIRE(bytes.substr(0, 128).find("'shape': (" + std::to_string(values.size()) + ",)") != std::string::npos);
    REQUIRE(bytes.substr(0, 128).find("'descr': '<f4'") != std::string::npos);
    std::memcpy(values.data(), bytes.data() + 128, values.size() * sizeof(float));
    return values;
}

void require_same_output(const fs::path& a, const fs::path& b) {
    auto rows_a = without_timing(read_jsonl(a / "results.jsonl"));
    auto rows_b = without_timing(read_jsonl(b / "results.jsonl"));
    for (auto* rows : {&rows_a, &rows_b}) {
        for (nlohmann::json& row : *rows) row.erase("ranks");
    }
    REQUIRE(rows_a == rows_b);
    REQUIRE(read_file(a / "errors.jsonl") == read_file(b / "errors.jsonl"));
    for (const nlohmann::json& row : rows_a) {
        const auto name = row.at("nll_file").get<std::string>();
        INFO(name);
        const bool same = read_file(a / name) == read_file(b / name);
        REQUIRE(same);
    }
    REQUIRE(fs::exists(a / "manifest.json"));
    REQUIRE(fs::exists(b / "manifest.json"));
    REQUIRE_FALSE(fs::exists(a / "work"));
    REQUIRE_FALSE(fs::exists(b / "work"));
}

}  // namespace fenwick::testing
