// The real program as the ranks of an MPI world.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/coordinator/support.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

Arguments launch(int ranks, const Arguments& arguments) {
    Arguments all = {"--allow-run-as-root", "--oversubscribe", "-np", std::to_string(ranks), FENWICK_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
}

Finished mpirun(int ranks, const Arguments& arguments) {
    return Child(launch(ranks, arguments), std::nullopt, "mpirun").wait();
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
