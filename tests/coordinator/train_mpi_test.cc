// Training runs of the real program as the ranks of an MPI world: the same steps as threads, stopped and lost ranks.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/coordinator/mpi_launch.h"
#include "tests/coordinator/training_folder.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

/// So many that a run is not over before a signal reaches one of its ranks.
constexpr int kManySteps = 120;

struct Lost {
    Finished run;
    pid_t victim = -1;
    double seconds = 0.0;  ///< from the signal to the end of the world
};

/// Sends `signal` to `rank` of a world of three once the run `name` has taken some steps.
Lost lose_rank(const TrainingFolder& folder, const std::string& name, int save_steps, int signal, int rank) {
    Child world(launch(3, train(folder.config(name, "", kManySteps, save_steps), {"--comm-timeout", "6"})),
                std::nullopt, "mpirun");
    // A checkpoint is not ahead of its rows.
    wait_for([&] { return has_rows(folder.run(name), 9); });
    Lost lost;
    lost.victim = process_of_rank(world.pid(), rank);
    REQUIRE(lost.victim > 0);
    REQUIRE(kill(lost.victim, signal) == 0);
    const auto begun = std::chrono::steady_clock::now();
    lost.run = world.wait();
    lost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return lost;
}

}  // namespace

TEST_CASE("train: processes and threads take the same steps, and another world goes on") {
    const TrainingFolder folder;
    REQUIRE(run_program(train(folder.config("threads"), {"--ranks", "2"})).code == 0);
    const Finished mpi = mpirun(2, train(folder.config("mpi")));
    INFO(mpi.err);
    REQUIRE(mpi.code == 0);
    require_same_run(folder.run("mpi"), folder.run("threads"));

    // Threads that spin for each other would make this long on a busy machine.
    Arguments alone = {"OMP_NUM_THREADS=1", FENWICK_PROGRAM};
    for (const std::string& each : train(folder.config("one"))) alone.push_back(each);
    REQUIRE(Child(alone, std::nullopt, "env").wait().code == 0);
    const std::vector<nlohmann::json> one = rows_of(folder.run("one"));
    const std::vector<nlohmann::json> two = rows_of(folder.run("threads"));
    for (std::size_t i = 0; i < one.size(); ++i) {
        INFO("step " << i + 1);
        CHECK(two[i].at("item") == one[i].at("item"));
        CHECK(two[i].at("loss").get<double>() == Approx(one[i].at("loss").get<double>()).epsilon(1e-5));
    }
}

TEST_CASE("train: a signalled MPI world saves, and threads go on") {
    const TrainingFolder folder;
    const fs::path config = folder.config("a");
    Child child(launch(2, train(config)), std::nullopt, "mpirun");
    wait_for([&] { return has_rows(folder.run("a"), 2); });
    child.send(SIGUSR2);
    const Finished stopped = child.wait();
    INFO(stopped.err);
    REQUIRE((stopped.code == 75 || stopped.code == 0));
    const std::int64_t saved = newest_step(folder.run("a"));
    CHECK(saved >= 2);
    const Finished resumed = run_program(train(config, {"--ranks", "3", "--resume"}));
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(resumed.err.find("goes on after step " + std::to_string(saved)) != std::string::npos);
    CHECK(rows_of(folder.run("a")).size() == kTrainingSteps);
}

TEST_CASE("train: a rank that is killed or stopped ends the world in time, with its name, and --resume has every bit") {
    const TrainingFolder folder;
    REQUIRE(run_program(train(folder.config("whole", "", kManySteps), {"--ranks", "3"})).code == 0);
    struct Fault {
        int signal;
        int rank;
    };
    for (const Fault& fault : {Fault{SIGSTOP, 0}, Fault{SIGKILL, 2}}) {
        const std::string name = "s" + std::to_string(fault.signal) + "r" + std::to_string(fault.rank);
        const Lost lost = lose_rank(folder, name, 4, fault.signal, fault.rank);
        INFO("signal " << fault.signal << " to rank " << fault.rank << ", " << lost.seconds << " s: " << lost.run.err);
        CHECK(lost.seconds < 6 + 5);  // the deadline, and what a busy machine takes to start and end processes
        // mpirun sees by itself that a process was killed, and returns that signal; the other ranks end with 75.
        CHECK(lost.run.code == (fault.signal == SIGKILL ? 128 + SIGKILL : 75));
        CHECK(lost.run.err.find("rank " + std::to_string(fault.rank) + " (process " + std::to_string(lost.victim)) !=
              std::string::npos);
        const std::size_t last_word = lost.run.err.find("its last word was from ");
        REQUIRE(last_word != std::string::npos);
        CHECK(lost.run.err.find("training step ", last_word) != std::string::npos);
        CHECK(lost.run.err.find("progress is saved") != std::string::npos);
        wait_for([&] { return is_gone(lost.victim); });
        // No more than the steps since the last save is lost.
        const std::int64_t saved = newest_step(folder.run(name));
        CHECK(saved >= 8);
        CHECK(saved < kManySteps);
        CHECK_FALSE(has_rows(folder.run(name), static_cast<std::size_t>(saved) + 5));
        const Finished resumed = run_program(train(folder.run(name + ".toml"), {"--ranks", "3", "--resume"}));
        INFO(resumed.err);
        REQUIRE(resumed.code == 0);
        CHECK(resumed.err.find("goes on after step " + std::to_string(saved) + " of ") != std::string::npos);
        require_same_run(folder.run(name), folder.run("whole"), kManySteps);
    }
}

TEST_CASE("train: a rank lost before the first checkpoint does not end the world as one that is saved") {
    const TrainingFolder folder;
    const Lost lost = lose_rank(folder, "a", kManySteps, SIGSTOP, 1);
    INFO(lost.seconds << " s: " << lost.run.err);
    CHECK(lost.seconds < 6 + 5);
    CHECK(lost.run.code == 69);
    CHECK(lost.run.err.find("rank 1 (process " + std::to_string(lost.victim)) != std::string::npos);
    CHECK(lost.run.err.find("progress is saved") == std::string::npos);
    wait_for([&] { return is_gone(lost.victim); });
    REQUIRE(newest_step(folder.run("a")) == 0);
    // As a batch system would start it again: from step 1, without the lost run's rows.
    const Finished again = run_program(train(folder.run("a.toml"), {"--ranks", "3", "--resume"}));
    INFO(again.err);
    REQUIRE(again.code == 0);
    CHECK(again.err.find("no checkpoint yet: starts with step 1") != std::string::npos);
    REQUIRE(run_program(train(folder.config("whole", "", kManySteps), {"--ranks", "3"})).code == 0);
    require_same_run(folder.run("a"), folder.run("whole"), kManySteps);
}
