// The real program as the ranks of an MPI world.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/coordinator/mpi_launch.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

bool has_save_point(const fs::path& out) {
    std::error_code error;
    for (fs::directory_iterator it(out / "work", error); !error && it != fs::directory_iterator();
         it.increment(error)) {
        if (it->path().extension() == ".json") return true;
    }
    return false;
}

}  // namespace

TEST_CASE("processes give the bytes of one rank") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "in.jsonl",
               "{\"custom_id\":\"empty\",\"text\":\"\"}\n{\"custom_id\":\"short\",\"text\":\"hello\"}\n{\"custom_id\":"
               "\"bad\"}\n");
    write_file(folder / "long.txt", text_of(40000, 9));
    const auto arguments = [&](const std::string& out) {
        return Arguments{"score",
                         "--model",
                         model.string(),
                         "--output",
                         (folder / out).string(),
                         (folder / "in.jsonl").string(),
                         (folder / "long.txt").string(),
                         "--json"};
    };
    REQUIRE(run_program(arguments("alone")).code == 3);
    for (const int ranks : {1, 3}) {
        const std::string out = "mpi" + std::to_string(ranks);
        const Finished run = mpirun(ranks, arguments(out));
        INFO(ranks << " processes: " << run.err);
        REQUIRE(run.code == 3);
        CHECK(read_jsonl(folder / out / "results.jsonl").at(0).at("ranks") == ranks);
        require_same_output(folder / "alone", folder / out);
    }
}

TEST_CASE("errors of an MPI world end it with their code and one message") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", "hello");
    const auto fails = [&](const Arguments& more, const fs::path& from, int code, const std::string& names) {
        Arguments all = {
            "score", "--model", from.string(), "--output", (folder / "out").string(), (folder / "a.txt").string()};
        all.insert(all.end(), more.begin(), more.end());
        const Finished run = mpirun(2, all);
        INFO(run.err);
        CHECK(run.code == code);
        const std::size_t first = run.err.find("fenwick: error: ");
        REQUIRE(first != std::string::npos);
        CHECK(run.err.find(names, first) != std::string::npos);
        CHECK(run.err.find("fenwick: error: ", first + 1) == std::string::npos);
        CHECK_FALSE(fs::exists(folder / "out"));
    };
    fails({"--ranks", "3"}, model, 2, "--ranks 3");
    fails({}, folder / "absent", 65, "absent");
    fails({"--pass-tokens", "1"}, model, 2, "4096");
    write_file(folder / "out", "a file");
    const Finished run = mpirun(
        2, {"score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "a.txt").string()});
    CHECK(run.code == 2);
}

// What Slurm's --signal=USR2 does: mpirun hands the signal on to all ranks.
TEST_CASE("a signalled MPI world saves and threads go on") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(300000, 6));
    const fs::path out = folder / "out";
    const Arguments arguments = {"score",    "--model",    model.string(),
                                 "--output", out.string(), (folder / "a.txt").string()};
    Arguments first = arguments;
    first.insert(first.end(), {"--pass-tokens", "4096"});
    Child child(launch(2, first), std::nullopt, "mpirun");
    wait_for_losses(out / "nll/a.npy.part");
    child.send(SIGUSR2);
    const Finished stopped = child.wait();
    INFO(stopped.err);
    REQUIRE(stopped.code == 75);
    Arguments second = arguments;
    second.insert(second.end(), {"--resume", "--ranks", "3"});
    const Finished resumed = run_program(second);
    INFO(resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(resumed.err.find("continues at token") != std::string::npos);
    Arguments whole = arguments;
    whole[4] = (folder / "whole").string();
    REQUIRE(run_program(whole).code == 0);
    require_same_output(folder / "whole", out);
}

TEST_CASE("a rank that is killed or stopped ends the world in time, with its name, and --resume gives the same bytes") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(600000, 6));
    const auto arguments = [&](const std::string& out) {
        return Arguments{
            "score", "--model", model.string(), "--output", (folder / out).string(), (folder / "a.txt").string()};
    };
    REQUIRE(run_program(arguments("whole")).code == 0);
    struct Fault {
        int signal;
        int rank;
    };
    for (const Fault& fault : {Fault{SIGSTOP, 1}, Fault{SIGSTOP, 0}, Fault{SIGKILL, 2}, Fault{SIGKILL, 0}}) {
        const std::string name = "s" + std::to_string(fault.signal) + "r" + std::to_string(fault.rank);
        Arguments first = arguments(name);
        first.insert(first.end(), {"--pass-tokens", "12288", "--save-seconds", "0", "--comm-timeout", "6"});
        Child world(launch(3, first), std::nullopt, "mpirun");
        wait_for([&] { return has_save_point(folder / name); });
        const pid_t victim = process_of_rank(world.pid(), fault.rank);
        REQUIRE(victim > 0);
        REQUIRE(kill(victim, fault.signal) == 0);
        const auto begun = std::chrono::steady_clock::now();
        const Finished ended = world.wait();
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        INFO("signal " << fault.signal << " to rank " << fault.rank << ", " << seconds << " s: " << ended.err);
        CHECK(seconds < 6 + 5);  // the deadline, and what a busy machine takes to start and end processes
        // mpirun sees by itself that a process was killed, and returns that signal; the other ranks end with 75.
        CHECK(ended.code == (fault.signal == SIGKILL ? 128 + SIGKILL : 75));
        CHECK(ended.err.find("rank " + std::to_string(fault.rank) + " (process " + std::to_string(victim)) !=
              std::string::npos);
        CHECK(ended.err.find("its last word was from") != std::string::npos);
        CHECK(ended.err.find("progress is saved") != std::string::npos);
        wait_for([&] { return is_gone(victim); });
        Arguments second = arguments(name);
        second.insert(second.end(), {"--resume"});
        const Finished resumed = run_program(second);
        INFO(resumed.err);
        REQUIRE(resumed.code == 0);
        CHECK(resumed.err.find("continues at token") != std::string::npos);
        require_same_output(folder / "whole", folder / name);
    }
}

TEST_CASE("a rank that never comes ends the start of the world, and is named") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", text_of(5000, 6));
    // A shell that stops itself before it becomes rank 1.
    const std::string script = "[ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && kill -STOP $$; exec \"$0\" \"$@\"";
    Arguments all = {"--allow-run-as-root", "--oversubscribe", "-np", "2", "sh", "-c", script, FENWICK_PROGRAM};
    for (const std::string& each :
         {std::string("score"), std::string("--model"), model.string(), std::string("--output"),
          (folder / "out").string(), (folder / "a.txt").string(), std::string("--comm-timeout"), std::string("3")}) {
        all.push_back(each);
    }
    const Finished run = Child(all, std::nullopt, "mpirun").wait();
    INFO(run.err);
    CHECK(run.code == 69);
    CHECK(run.err.find("MPI did not start within 3 s") != std::string::npos);
    CHECK(run.err.find("rank 1 (process") != std::string::npos);
    CHECK(run.err.find("is stopped") != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "out"));
}
