// Runs that end before their end, and what --resume makes of them (CASES F4).
#include <sys/mount.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/coordinator/support.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

Arguments score(const fs::path& model, const fs::path& output, const fs::path& input, const Arguments& more = {}) {
    Arguments all = {"score", "--model", model.string(), "--output", output.string(), input.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

/// Ten documents: short ones, and two of several passes with 4,096 tokens each, so that kills fall inside documents
/// too.
std::string ten_documents() {
    std::string lines;
    for (int i = 0; i < 10; ++i) {
        const std::size_t tokens = i == 3 ? 70001 : i == 7 ? 40960 : 10 + 100 * static_cast<std::size_t>(i);
        std::string text = text_of(tokens, 100 + static_cast<std::uint32_t>(i));
        for (char& c : text) {
            if (c == '"' || c == '\\') c = '_';
        }
        lines += "{\"custom_id\":\"doc " + std::to_string(i) + "\",\"text\":\"" + text + "\"}\n";
    }
    return lines;
}

std::string first_lines(const std::string& text, int count) {
    std::size_t end = 0;
    for (int i = 0; i < count; ++i) end = text.find('\n', end) + 1;
    return text.substr(0, end);
}

bool has_save_point(const fs::path& output) {
    std::error_code error;
    fs::directory_iterator it(output / "work", error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
        if (it->path().extension() == ".json") return true;
    }
    return false;
}

}  // namespace

TEST_CASE("ten kills at random moments change no byte of the result") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder, "h_gated_deltanet");
    write_file(folder / "in.jsonl", ten_documents());
    const auto start = Clock::now();
    REQUIRE(run_program(score(model, folder / "whole", folder / "in.jsonl")).code == 0);
    const double whole_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();

    const Arguments resume = score(model, folder / "killed", folder / "in.jsonl",
                                   {"--resume", "--save-seconds", "0", "--pass-tokens", "4096", "--ranks", "2"});
    std::mt19937 random(5);
    // Less than a tenth of a whole run each on average, so that ten kills are spread over one run. Where the machine
    // was slower for the first run than for these, one may come after the end: that run is checked, and another begins.
    std::uniform_real_distribution<double> delay(0.03 * whole_ms, 0.14 * whole_ms);
    int killed = 0;
    int attempts = 0;
    for (; killed < 10 && attempts < 100; ++attempts) {
        Child child(resume);
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(delay(random)));
        child.send(SIGKILL);
        const Finished ended = child.wait();
        if (ended.signal == SIGKILL) {
            ++killed;
            continue;
        }
        REQUIRE(ended.code == 0);
        require_same_output(folder / "whole", folder / "killed");
        fs::remove_all(folder / "killed");
    }
    CHECK(killed == 10);
    const Finished last = run_program(resume);
    INFO(attempts << " runs; " << last.err);
    REQUIRE(last.code == 0);
    require_same_output(folder / "whole", folder / "killed");
}

TEST_CASE("a run continues inside a document and not from its start") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(300000, 1));
    const Arguments more = {"--resume", "--save-seconds", "0", "--pass-tokens", "4096"};
    {
        Child child(score(model, folder / "out", folder / "a.txt", more));
        wait_for([&] { return has_save_point(folder / "out"); });
        child.send(SIGKILL);
        REQUIRE(child.wait().signal == SIGKILL);
    }
    const Finished run = run_program(score(model, folder / "out", folder / "a.txt", more));
    INFO(run.err);
    REQUIRE(run.code == 0);
    CHECK(run.err.find("a: continues at token ") != std::string::npos);
    REQUIRE(run_program(score(model, folder / "whole", folder / "a.txt")).code == 0);
    require_same_output(folder / "whole", folder / "out");
}

TEST_CASE("signals save and end with 75 and another rank count goes on") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(300000, 2));
    REQUIRE(run_program(score(model, folder / "whole", folder / "a.txt")).code == 0);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR2}) {
        const fs::path out = folder / ("out" + std::to_string(signal));
        Child child(score(model, out, folder / "a.txt", {"--pass-tokens", "4096", "--json"}));
        // Losses beyond the header: at least one pass is over, and no save point was due.
        wait_for_losses(out / "nll/a.npy.part");
        child.send(signal);
        const Finished stopped = child.wait();
        INFO(stopped.err);
        REQUIRE(stopped.code == 75);
        CHECK(stopped.err.find("--resume") != std::string::npos);
        CHECK(nlohmann::json::parse(stopped.out).at("status") == "interrupted");
        CHECK(has_save_point(out));
        CHECK_FALSE(fs::exists(out / "manifest.json"));
        const Finished resumed = run_program(score(model, out, folder / "a.txt", {"--resume", "--ranks", "3"}));
        INFO(resumed.err);
        REQUIRE(resumed.code == 0);
        CHECK(resumed.err.find("continues at token") != std::string::npos);
        require_same_output(folder / "whole", out);
    }
}

TEST_CASE("a half written last row costs that row only") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "in.jsonl", ten_documents());
    REQUIRE(run_program(score(model, folder / "whole", folder / "in.jsonl")).code == 0);
    fs::copy(folder / "whole", folder / "torn", fs::copy_options::recursive);
    const std::string rows = read_file(folder / "whole/results.jsonl");
    const std::string four = first_lines(rows, 4);
    const std::string fifth = first_lines(rows, 5).substr(four.size());
    write_file(folder / "torn/results.jsonl", four + fifth.substr(0, fifth.size() / 2));
    for (const char* name : {"manifest.json", "job.json", "errors.jsonl"}) fs::remove(folder / "torn" / name);
    const Finished run = run_program(score(model, folder / "torn", folder / "in.jsonl", {"--resume", "--json"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    CHECK(nlohmann::json::parse(run.out).at("reused") == 4);
    require_same_output(folder / "whole", folder / "torn");
    // The first four rows have their old times too: they were not computed again.
    CHECK(first_lines(read_file(folder / "torn/results.jsonl"), 4) == four);
}

TEST_CASE("an edited input is computed again and the others are kept") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    const std::string lines = ten_documents();
    write_file(folder / "in.jsonl", lines);
    REQUIRE(run_program(score(model, folder / "out", folder / "in.jsonl")).code == 0);
    const auto before = read_jsonl(folder / "out/results.jsonl");
    std::string edited = lines;
    const std::size_t second = first_lines(lines, 1).size();
    edited[edited.find("\"text\":\"", second) + 8] ^= 1;  // one character of document 1
    write_file(folder / "in.jsonl", edited);
    const Finished run = run_program(score(model, folder / "out", folder / "in.jsonl", {"--resume", "--json"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    CHECK(nlohmann::json::parse(run.out).at("reused") == 9);
    CHECK(run.err.find("doc 1: the input changed") != std::string::npos);
    const auto after = read_jsonl(folder / "out/results.jsonl");
    REQUIRE(after.size() == 10);
    for (std::size_t i = 0; i < 10; ++i) {
        INFO(i);
        CHECK((after[i] == before[i]) == (i != 1));
    }
    CHECK(after[1].at("input_hash") != before[1].at("input_hash"));
    REQUIRE(run_program(score(model, folder / "whole", folder / "in.jsonl")).code == 0);
    require_same_output(folder / "whole", folder / "out");
}

TEST_CASE("rows move with their documents when the input is reordered") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    const std::string lines = ten_documents();
    write_file(folder / "in.jsonl", lines);
    REQUIRE(run_program(score(model, folder / "out", folder / "in.jsonl")).code == 0);
    const std::string first = first_lines(lines, 1);
    write_file(folder / "in.jsonl", lines.substr(first.size()) + first);
    const Finished run = run_program(score(model, folder / "out", folder / "in.jsonl", {"--resume", "--json"}));
    REQUIRE(run.code == 0);
    CHECK(nlohmann::json::parse(run.out).at("reused") == 10);
    const auto rows = read_jsonl(folder / "out/results.jsonl");
    CHECK(rows.front().at("custom_id") == "doc 1");
    CHECK(rows.back().at("custom_id") == "doc 0");
}

TEST_CASE("a lost loss file is computed again") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "in.jsonl",
               "{\"custom_id\":\"a\",\"text\":\"first\"}\n{\"custom_id\":\"b\",\"text\":\"second\"}\n");
    REQUIRE(run_program(score(model, folder / "out", folder / "in.jsonl")).code == 0);
    const std::string losses = read_file(folder / "out/nll/a.npy");
    write_file(folder / "out/nll/a.npy", losses.substr(0, losses.size() - 4));
    const Finished run = run_program(score(model, folder / "out", folder / "in.jsonl", {"--resume", "--json"}));
    REQUIRE(run.code == 0);
    CHECK(nlohmann::json::parse(run.out).at("reused") == 1);
    CHECK(read_file(folder / "out/nll/a.npy") == losses);
}

TEST_CASE("a file-size limit is an unavailable disk and the run goes on after it") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(70001, 4));
    // 128 + 4 * 70,000 bytes of losses: the limit is reached in the third pass.
    Child limited(score(model, folder / "out", folder / "a.txt", {"--pass-tokens", "16384", "--save-seconds", "0"}),
                  150000);
    const Finished failed = limited.wait();
    INFO(failed.err);
    REQUIRE(failed.code == 69);
    CHECK(failed.err.find("a.npy.part") != std::string::npos);
    const Finished resumed = run_program(score(model, folder / "out", folder / "a.txt", {"--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(resumed.err.find("continues at token 32768") != std::string::npos);
    REQUIRE(run_program(score(model, folder / "whole", folder / "a.txt")).code == 0);
    require_same_output(folder / "whole", folder / "out");
}

TEST_CASE("a full disk ends the run and a larger one lets it go on") {
    const TemporaryFolder folder;
    const fs::path disk = folder / "disk";
    fs::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=200k") != 0) {
        WARN("mounting a small file system is not permitted here; the file-size limit's test stands for this one");
        return;
    }
    struct Unmount {
        fs::path path;
        ~Unmount() { umount2(path.c_str(), MNT_DETACH); }
    } const unmount{disk};
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(70001, 4));
    const Finished failed =
        run_program(score(model, disk / "out", folder / "a.txt", {"--pass-tokens", "4096", "--save-seconds", "0"}));
    INFO(failed.err);
    REQUIRE(failed.code == 69);
    CHECK(failed.err.find((disk / "out").string()) != std::string::npos);
    REQUIRE(mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=8m") == 0);
    const Finished resumed = run_program(score(model, disk / "out", folder / "a.txt", {"--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    REQUIRE(run_program(score(model, folder / "whole", folder / "a.txt")).code == 0);
    require_same_output(folder / "whole", disk / "out");
}
