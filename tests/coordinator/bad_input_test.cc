// What the user gets wrong: each has its exit code, a message that names it, and leaves nothing behind (CASES F1).
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/coordinator/support.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

TEST_CASE("a bad line in the middle is an error row and the rest is scored") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "in.jsonl",
               "{\"custom_id\":\"a\",\"text\":\"first\"}\n"
               "{\"custom_id\":\"b\",\"text\":\"second\"}\n"
               "{\"custom_id\":\"a\",\"text\":\"again\"}\n"
               "{\"custom_id\":\"x\", \"text\":\n"
               "\n"
               "{\"custom_id\":\"c\",\"text\":\"third\"}\n"
               "\n\n");
    const Finished run = run_program(
        {"score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "in.jsonl").string()});
    CHECK(run.code == 3);
    const auto rows = read_jsonl(folder / "out/results.jsonl");
    REQUIRE(rows.size() == 3);
    CHECK(rows[0].at("custom_id") == "a");
    CHECK(rows[0].at("tokens") == 5);
    CHECK(rows[1].at("custom_id") == "b");
    CHECK(rows[2].at("custom_id") == "c");
    const auto errors = read_jsonl(folder / "out/errors.jsonl");
    REQUIRE(errors.size() == 2);
    CHECK(errors[0].at("line") == 3);
    CHECK(errors[0].at("message").get<std::string>().find("duplicate of line 1") != std::string::npos);
    CHECK(errors[1].at("line") == 4);
    CHECK(errors[1].at("status") == "failed");
}

TEST_CASE("a thousand rows keep the order of the input") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    std::string lines;
    std::vector<std::string> ids;
    // Every 25th document has tokens to compute; the others have none or one, for speed.
    const auto length = [](std::size_t i) { return i % 25 == 0 ? 1 + i % 40 : i % 2; };
    for (std::size_t i = 0; i < 1000; ++i) {
        ids.push_back("row/" + std::to_string((i * 7919) % 1000));  // 7919 is prime to 1000: a permutation
        lines += "{\"custom_id\":\"" + ids.back() + "\",\"text\":\"" + std::string(length(i), 'a') + "\"}\n";
    }
    write_file(folder / "in.jsonl", lines);
    const Finished run = run_program(
        {"score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "in.jsonl").string()});
    INFO(run.err);
    REQUIRE(run.code == 0);
    const auto rows = read_jsonl(folder / "out/results.jsonl");
    REQUIRE(rows.size() == ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        REQUIRE(rows[i].at("custom_id") == ids[i]);
        REQUIRE(rows[i].at("tokens") == length(i));
        REQUIRE(fs::exists(folder / "out" / rows[i].at("nll_file").get<std::string>()));
    }
}

TEST_CASE("inputs that cannot be read are error rows") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    fs::create_directory(folder / "folder.txt");
    write_file(folder / "ids.jsonl", "{\"custom_id\":\"ids\",\"tokens\":[1,2,256]}\n");
    write_file(folder / "good.txt", "good");
    const Finished run = run_program({"score", "--model", model.string(), "--output", (folder / "out").string(),
                                      (folder / "folder.txt").string(), (folder / "absent.txt").string(),
                                      (folder / "ids.jsonl").string(), (folder / "good.txt").string()});
    CHECK(run.code == 3);
    const auto errors = read_jsonl(folder / "out/errors.jsonl");
    REQUIRE(errors.size() == 3);
    CHECK(errors[0].at("message").get<std::string>().find("directory") != std::string::npos);
    CHECK(errors[1].at("message").get<std::string>().find("absent.txt") != std::string::npos);
    // The file, the position and the id are named.
    const auto message = errors[2].at("message").get<std::string>();
    CHECK(message.find("ids.jsonl line 1") != std::string::npos);
    CHECK(message.find("token 2 is 256") != std::string::npos);
    CHECK(errors[2].at("code") == "CORRUPT_DATA");
    CHECK(read_jsonl(folder / "out/results.jsonl").size() == 1);
}

TEST_CASE("wrong command lines are refused before anything is written") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", "hello");
    write_file(folder / "a.zip", "PK");
    struct Case {
        Arguments more;
        int code;
        const char* names;
    };
    const std::vector<Case> cases = {
        {{"--ranks", "0"}, 2, "--ranks 0"},
        {{"--ranks", "-3"}, 2, "-3"},
        {{"--ranks", "two"}, 2, "two"},
        {{"--pass-tokens", "5000"}, 2, "8192"},
        {{"--pass-tokens", "0"}, 2, "4096"},
        {{"--dtype", "bf16"}, 2, "--device cuda"},
        {{"--dtype", "fp16"}, 2, "fp16"},
        {{"--device", "cuda"}, 69, "CUDA"},
        {{"--levels", "some"}, 2, "some"},
        {{"--resume", "--overwrite"}, 2, "--overwrite"},
        {{"--save-seconds", "-1"}, 2, "--save-seconds"},
        {{"--no-such-option"}, 2, "--no-such-option"},
        {{(folder / "a.zip").string()}, 2, "a.zip"},
    };
    for (const Case& c : cases) {
        Arguments all = {
            "score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "a.txt").string()};
        all.insert(all.end(), c.more.begin(), c.more.end());
        const Finished run = run_program(all);
        INFO(c.names << ": " << run.err);
        CHECK(run.code == c.code);
        CHECK(run.err.find(c.names) != std::string::npos);
        CHECK(run.err.find("fenwick: error: ") != std::string::npos);
        CHECK_FALSE(fs::exists(folder / "out"));
    }
    CHECK(run_program({}).code == 2);
    CHECK(run_program({"scoer"}).err.find("scoer: no such verb") != std::string::npos);
    CHECK(run_program({"score", "--model", model.string(), "--output", (folder / "out").string()}).code == 2);
}

TEST_CASE("models that cannot be loaded are refused with their reason") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", "hello");
    const Arguments all = {
        "score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "a.txt").string(),
        "--json"};
    const std::string config = read_file(model / "config.json");
    const std::string weights = read_file(model / "model.safetensors");

    auto other = nlohmann::json::parse(config);
    other["model_type"] = "unheard_of";
    write_file(model / "config.json", other.dump());
    const Finished family = run_program(all);
    CHECK(family.code == 78);
    CHECK(family.err.find("unheard_of") != std::string::npos);
    const auto report = nlohmann::json::parse(family.out);
    CHECK(report.at("status") == "error");
    CHECK(report.at("exit_code") == 78);

    write_file(model / "config.json", config);
    write_file(model / "model.safetensors", weights.substr(0, weights.size() - 1));
    const Finished cut = run_program(all);
    CHECK(cut.code == 65);
    CHECK(cut.err.find("model.safetensors") != std::string::npos);

    fs::remove(model / "model.safetensors");
    CHECK(run_program(all).code == 65);
    CHECK_FALSE(fs::exists(folder / "out"));
}

TEST_CASE("an output that exists needs a word and a finished one is left alone") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", "hello");
    const Arguments all = {
        "score", "--model", model.string(), "--output", (folder / "out").string(), (folder / "a.txt").string()};
    REQUIRE(run_program(all).code == 0);
    const std::string results = read_file(folder / "out/results.jsonl");
    const std::string manifest = read_file(folder / "out/manifest.json");
    const Finished again = run_program(all);
    CHECK(again.code == 2);
    CHECK(again.err.find("--resume") != std::string::npos);
    CHECK(read_file(folder / "out/results.jsonl") == results);

    Arguments resume = all;
    resume.emplace_back("--resume");
    const Finished resumed = run_program(resume);
    CHECK(resumed.code == 0);
    CHECK(resumed.out.find("complete already") != std::string::npos);
    CHECK(read_file(folder / "out/results.jsonl") == results);  // also the seconds: nothing was computed
    CHECK(read_file(folder / "out/manifest.json") == manifest);

    resume.insert(resume.end(), {"--levels", "strict"});
    const Finished differs = run_program(resume);
    CHECK(differs.code == 2);
    CHECK(differs.err.find("levels") != std::string::npos);
    CHECK(read_file(folder / "out/manifest.json") == manifest);

    write_file(folder / "out/thesis.tex", "mine");
    Arguments overwrite = all;
    overwrite.emplace_back("--overwrite");
    const Finished foreign = run_program(overwrite);
    CHECK(foreign.code == 2);
    CHECK(foreign.err.find("thesis.tex") != std::string::npos);
    fs::remove(folder / "out/thesis.tex");
    CHECK(run_program(overwrite).code == 0);
    CHECK(without_timing(read_jsonl(folder / "out/results.jsonl")).size() == 1);

    write_file(folder / "file", "x");
    Arguments to_file = all;
    to_file[4] = (folder / "file").string();
    CHECK(run_program(to_file).code == 2);
    to_file[4] = "/proc/fenwick-out";
    const Finished unwritable = run_program(to_file);
    CHECK(unwritable.code == 69);
    CHECK(unwritable.err.find("/proc/fenwick-out") != std::string::npos);
}
