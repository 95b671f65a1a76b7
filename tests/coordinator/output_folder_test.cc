#include "coordinator/output_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/errors.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using namespace fenwick::testing;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// What a finished run leaves, and one that was killed.
void make_outputs(const fs::path& folder) {
    fs::create_directories(folder / "nll");
    fs::create_directories(folder / "work" / "tokens");
    for (const char* name : {"results.jsonl", "errors.jsonl", "manifest.json", "job.json", ".fenwick-12-3.tmp",
                             "nll/a.npy", "nll/b.npy.part", "work/lock", "work/rows.jsonl", "work/b.json",
                             "work/b.4096.safetensors", "work/tokens/x"}) {
        write_file(folder / name, "x");
    }
}

}  // namespace

TEST_CASE("an absent output folder is made and one without results is removed again") {
    const TemporaryFolder folder;
    const fs::path path = folder / "a/b/out";
    {
        const OutputFolder output(path, OpenMode::kFresh);
        CHECK(fs::is_directory(path / "nll"));
    }
    CHECK_FALSE(fs::exists(path));
    for (const OpenMode mode : {OpenMode::kResume, OpenMode::kOverwrite}) {
        const OutputFolder output(path, mode);
        CHECK(fs::is_directory(path / "work"));
    }
}

TEST_CASE("an output folder that holds anything needs a word") {
    const TemporaryFolder folder;
    write_file(folder / "notes.txt", "mine");
    CHECK_THROWS_AS(OutputFolder(folder.path(), OpenMode::kFresh), UsageError);
    CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kFresh), Contains("--resume") && Contains("--overwrite"));
    CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kOverwrite), Contains("notes.txt"));
    CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kResume), Contains("notes.txt"));
    CHECK(read_file(folder / "notes.txt") == "mine");
    CHECK_THROWS_WITH(OutputFolder(folder / "notes.txt", OpenMode::kFresh), Contains("expected a folder"));
}

TEST_CASE("an empty output folder is as good as none") {
    const TemporaryFolder folder;
    for (const OpenMode mode : {OpenMode::kFresh, OpenMode::kResume, OpenMode::kOverwrite}) {
        CHECK_NOTHROW(OutputFolder(folder.path(), mode));
        CHECK(fs::is_empty(folder.path()));
    }
}

TEST_CASE("overwrite removes what fenwick wrote and nothing else") {
    const TemporaryFolder folder;
    make_outputs(folder.path());
    CHECK(foreign_files(folder.path(), 10).empty());
    SECTION("only own files") {
        const OutputFolder output(folder.path(), OpenMode::kOverwrite);
        CHECK_FALSE(fs::exists(folder / "results.jsonl"));
        CHECK_FALSE(fs::exists(folder / "manifest.json"));
        CHECK(fs::is_empty(folder / "nll"));
        CHECK(fs::exists(folder / "work/lock"));
        CHECK_FALSE(fs::exists(folder / "work/rows.jsonl"));
    }
    SECTION("foreign files") {
        for (const char* name : {"thesis.tex", "nll/plot.png"}) {
            write_file(folder / name, "mine");
            CHECK(foreign_files(folder.path(), 10) == std::vector<std::string>{name});
            CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kOverwrite), Contains(name));
            CHECK(read_file(folder / name) == "mine");
            CHECK(fs::exists(folder / "results.jsonl"));
            fs::remove(folder / name);
        }
    }
    SECTION("a folder called work that is somebody else's") {
        fs::remove(folder / "work/lock");
        CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kOverwrite), Contains("work/"));
        CHECK(fs::exists(folder / "work/rows.jsonl"));
    }
    SECTION("a link to a folder elsewhere") {
        const TemporaryFolder elsewhere;
        write_file(elsewhere / "a.npy", "mine");
        fs::remove_all(folder / "nll");
        fs::create_directory_symlink(elsewhere.path(), folder / "nll");
        CHECK_THROWS_WITH(OutputFolder(folder.path(), OpenMode::kOverwrite), Contains("nll"));
        CHECK(read_file(elsewhere / "a.npy") == "mine");
    }
}

TEST_CASE("resume keeps what is there and clears temporary files") {
    const TemporaryFolder folder;
    make_outputs(folder.path());
    const OutputFolder output(folder.path(), OpenMode::kResume);
    CHECK(fs::exists(folder / "results.jsonl"));
    CHECK(fs::exists(folder / "nll/b.npy.part"));
    CHECK(fs::exists(folder / "work/rows.jsonl"));
    CHECK_FALSE(fs::exists(folder / ".fenwick-12-3.tmp"));
}

TEST_CASE("two runs cannot write in one output folder") {
    const TemporaryFolder folder;
    const fs::path path = folder / "out";
    auto first = std::make_unique<OutputFolder>(path, OpenMode::kFresh);
    write_file(first->job(), "{}");
    CHECK_THROWS_AS(OutputFolder(path, OpenMode::kResume), UnavailableError);
    CHECK_THROWS_WITH(OutputFolder(path, OpenMode::kResume), Contains("another run"));
    first->remove_work();
    CHECK_FALSE(fs::exists(path / "work"));
    CHECK_NOTHROW(OutputFolder(path, OpenMode::kResume));
}

TEST_CASE("an output folder that cannot be made is unavailable") {
    CHECK_THROWS_AS(OutputFolder("/proc/fenwick/out", OpenMode::kFresh), UnavailableError);
    CHECK_THROWS_WITH(OutputFolder("/proc/fenwick/out", OpenMode::kFresh), Contains("/proc/fenwick/out"));
}
