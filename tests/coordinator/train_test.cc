// The real program's training runs: what they write, how they end, and what --resume makes of that. CASES H3, H4.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/coordinator/training_folder.h"
#include "worker/training/training_checkpoint.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

TEST_CASE("train: what a run writes, and that it is not written over") {
    const TrainingFolder folder;
    const fs::path config = folder.config(
        "a", "every_steps = 5\n[validation]\nfiles = [\"t.tokens\"]\nevery_steps = 12\nby_position = true\n");
    const Finished run = run_program(train(config, {"--ranks", "2"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    CHECK(run.out.find("step 5 of 24: loss ") != std::string::npos);
    CHECK(run.out.find("validation loss") != std::string::npos);
    CHECK(run.out.find("24 steps done") != std::string::npos);
    CHECK(run.err.find("--peak-tflops 0.1") != std::string::npos);
    const std::vector<nlohmann::json> rows = read_jsonl(folder.run("a") / "log/metrics.jsonl");
    REQUIRE(rows.size() == 6);  // 5, 10, 12, 15, 20, 24
    CHECK(rows[2].at("step") == 12);
    CHECK(rows[2].at("validation").at("by_position").size() == 7);
    CHECK(rows[5].at("loss").get<double>() < rows[0].at("loss").get<double>());
    CHECK(rows[5].at("learning_rate").get<double>() == Approx(1e-4));
    CHECK(rows[5].at("mfu").get<double>() > 0);
    CHECK(fenwick::list_checkpoints(folder.run("a") / "checkpoints").size() == 3);
    CHECK(newest_step(folder.run("a")) == kTrainingSteps);

    const Finished again = run_program(train(config));
    CHECK(again.code == 2);
    CHECK(again.err.find("step-00000024") != std::string::npos);
    CHECK(again.err.find("--resume") != std::string::npos);
    const Finished done = run_program(train(config, {"--resume", "--json"}));
    INFO(done.err);
    CHECK(done.code == 0);
    CHECK(nlohmann::json::parse(done.out).at("step") == kTrainingSteps);
    CHECK(read_jsonl(folder.run("a") / "log/metrics.jsonl").size() == 6);
}

TEST_CASE("train: the exported model has the losses that validation saw") {
    const TrainingFolder folder;
    const Finished run = run_program(
        train(folder.config("a",
                            "[validation]\nfiles = [\"t.tokens\"]\nevery_steps = 100\nsequence_tokens = 512\n"
                            "batches = 10\n"),
              {"--ranks", "2"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    const nlohmann::json validation = read_jsonl(folder.run("a") / "log/metrics.jsonl").back().at("validation");
    const fs::path model = folder.run("exported");
    const Finished exported =
        run_program({"checkpoint", "export", (folder.run("a") / "checkpoints").string(), "--output", model.string()});
    INFO(exported.err);
    REQUIRE(exported.code == 0);
    Arguments score = {"score", "--model", model.string(), "--output", folder.run("scores").string(), "--json"};
    for (const std::size_t bytes : kTrainingDocumentBytes) {
        score.push_back((folder.path() / ("d" + std::to_string(bytes) + ".txt")).string());
    }
    const Finished scored = run_program(score);
    INFO(scored.err);
    REQUIRE(scored.code == 0);
    const nlohmann::json report = nlohmann::json::parse(scored.out);
    CHECK(report.at("scored_tokens") == validation.at("labels"));
    // The same losses, summed in double in another order.
    CHECK(report.at("nll_mean").get<double>() == Approx(validation.at("loss").get<double>()).epsilon(1e-12));
}

TEST_CASE("train: mistakes have the codes of their kind") {
    const TrainingFolder folder;
    const auto fails = [&](const fs::path& config, const Arguments& more, int code, const std::string& says) {
        const Finished run = run_program(train(config, more));
        INFO(run.err);
        CHECK(run.code == code);
        CHECK(run.err.find(says) != std::string::npos);
    };
    fails(folder.path() / "absent.toml", {}, 78, "absent.toml");
    fails(folder.config("a", "seed = 1\n"), {}, 78, "log.seed: no such key");
    fails(folder.config("b"), {"--ranks", "0"}, 2, "--ranks 0");
    fails(folder.config("c", "[parallel]\nsequence = 2\n"), {"--ranks", "3"}, 2, "parallel.sequence is 2");
    fails(folder.config("d", "[validation]\nfiles = [\"absent\"]\nevery_steps = 1\n"), {}, 65, "absent");
    CHECK_FALSE(fs::exists(folder.run("d") / "log"));
}

TEST_CASE("train: a signal saves and ends with 75, and --resume has the bits of a run that was left alone") {
    const TrainingFolder folder;
    REQUIRE(run_program(train(folder.config("whole"), {"--ranks", "2"})).code == 0);
    const fs::path config = folder.config("stopped");
    Child child(train(config, {"--ranks", "2", "--resume"}));  // nothing there yet: starts
    wait_for([&] { return has_rows(folder.run("stopped"), 3); });
    child.send(SIGUSR2);
    const Finished stopped = child.wait();
    INFO(stopped.err);
    if (stopped.code != 0) {  // 0: it was quicker than the signal
        REQUIRE(stopped.code == 75);
        CHECK(stopped.err.find("stopped by SIGUSR2 after step ") != std::string::npos);
    }
    const Finished resumed = run_program(train(config, {"--ranks", "2", "--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    require_same_run(folder.run("stopped"), folder.run("whole"));
}

TEST_CASE("train: twenty kills at random moments lose at most one save interval and no bit, CASES H4") {
    const TrainingFolder folder;
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(run_program(train(folder.config("whole"), {"--ranks", "2"})).code == 0);
    const double whole_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    const fs::path config = folder.config("killed");
    const fs::path run = folder.run("killed");
    const Arguments arguments = train(config, {"--ranks", "2", "--resume"});
    std::mt19937 random(7);
    std::uniform_real_distribution<double> delay(0.05 * whole_ms, 0.5 * whole_ms);
    int killed = 0;
    int whole = 0;
    for (int attempt = 0; killed < 20 && attempt < 200; ++attempt) {
        const std::int64_t before = newest_step(run);
        Child child(arguments);
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(delay(random)));
        child.send(SIGKILL);
        const Finished ended = child.wait();
        if (ended.signal != SIGKILL) {  // it was quicker: that run is checked, and another begins
            INFO(ended.err);
            REQUIRE(ended.code == 0);
            require_same_run(run, folder.run("whole"));
            fs::remove_all(run);
            ++whole;
            continue;
        }
        ++killed;
        const std::int64_t saved = newest_step(run);
        CHECK(saved >= before);
        CHECK(saved % 4 == 0);
        // No step is lost but those since the last multiple of 4 that was whole on the disk.
        if (has_rows(run, 1)) {
            const std::string text = read_file(run / "log/metrics.jsonl");
            CHECK(std::count(text.begin(), text.end(), '\n') <= saved + 4);
        }
    }
    CHECK(killed == 20);
    const Finished last = run_program(arguments);
    INFO(whole << " whole runs between; " << last.err);
    REQUIRE(last.code == 0);
    require_same_run(run, folder.run("whole"));
}

TEST_CASE("train: a disk that is full during a save ends the run, and the last checkpoint stays, CASES H4") {
    const TrainingFolder folder;
    REQUIRE(run_program(train(folder.config("whole"), {"--ranks", "2"})).code == 0);
    const fs::path config = folder.config("full");
    {
        Child child(train(config, {"--ranks", "2"}));
        wait_for([&] { return newest_step(folder.run("full")) >= 4; });
        child.send(SIGKILL);
        (void)child.wait();
    }
    const std::int64_t saved = newest_step(folder.run("full"));
    if (saved < kTrainingSteps) {
        // Enough for the log, not for a checkpoint.
        const Finished full = Child(train(config, {"--ranks", "2", "--resume"}), 20000).wait();
        INFO(full.err);
        CHECK(full.code == 69);
        CHECK(full.err.find("step-") != std::string::npos);
        CHECK(newest_step(folder.run("full")) == saved);
    }
    const Finished resumed = run_program(train(config, {"--ranks", "2", "--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    require_same_run(folder.run("full"), folder.run("whole"));
}

TEST_CASE("train: a model with an infinite weight stops the run by name") {
    const TrainingFolder folder;
    // The last tensor of the file: its last number becomes infinite.
    const fs::path file = folder.run("log_linear_mamba2") / "model.safetensors";
    std::string bytes = read_file(file);
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() + bytes.size() - sizeof(float), &infinity, sizeof(float));
    write_file(file, bytes);
    for (const std::string& ranks : {std::string("1"), std::string("2")}) {
        const Finished run = run_program(train(folder.config("a" + ranks), {"--ranks", ranks, "--json"}));
        INFO(run.err);
        CHECK(run.code == 65);
        CHECK(run.err.find("step 1: rank 0: the loss is not finite") != std::string::npos);
        CHECK(run.err.find("nothing was updated") != std::string::npos);
        CHECK(nlohmann::json::parse(run.out).at("status") == "error");
        CHECK(fenwick::list_checkpoints(folder.run("a" + ranks) / "checkpoints").empty());
    }
}
