// The verbs that compute nothing.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using namespace fenwick::testing;
namespace fs = std::filesystem;

TEST_CASE("version and doctor speak to people and programs") {
    const Finished version = run_program({"version", "--json"});
    REQUIRE(version.code == 0);
    const auto json = nlohmann::json::parse(version.out);
    for (const char* field : {"version", "commit", "compiler", "flags", "cuda_toolkit", "cuda_kernels"}) {
        CHECK(json.contains(field));
    }
    CHECK(run_program({"version"}).out.find(json.at("version").get<std::string>()) != std::string::npos);
    CHECK(run_program({"--version"}).out.find(json.at("version").get<std::string>()) != std::string::npos);

    const Finished doctor = run_program({"doctor", "--json"});
    REQUIRE(doctor.code == 0);
    const auto checks = nlohmann::json::parse(doctor.out).at("checks");
    for (const char* name : {"cores", "memory", "blas", "mpi", "cuda"}) {
        INFO(name);
        CHECK(checks.at(name).contains("status"));
        CHECK_FALSE(checks.at(name).at("text").get<std::string>().empty());
    }
    const Finished lines = run_program({"doctor"});
    CHECK(lines.code == 0);
    CHECK(lines.out.find("blas") != std::string::npos);
}

TEST_CASE("every verb explains itself") {
    for (const char* verb : {"score", "plan", "init", "doctor", "version", "tokenize", "checkpoint"}) {
        const Finished help = run_program({verb, "--help"});
        INFO(verb);
        CHECK(help.code == 0);
        CHECK(help.out.find("Usage: fenwick " + std::string(verb)) != std::string::npos);
        CHECK(help.err.empty());
    }
    CHECK(run_program({"--help"}).out.find("Exit codes:") != std::string::npos);
}

TEST_CASE("plan counts documents like score") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(
        folder / "in.jsonl",
        "{\"custom_id\":\"a\",\"text\":\"hello\"}\n{\"custom_id\":\"b\"}\n{\"custom_id\":\"c\",\"text\":\"\"}\n");
    write_file(folder / "long.txt", text_of(10000, 1));
    const Finished run = run_program({"plan", "--model", model.string(), "--ranks", "4", "--json",
                                      (folder / "in.jsonl").string(), (folder / "long.txt").string()});
    INFO(run.err);
    CHECK(run.code == 3);  // b is bad
    const auto plan = nlohmann::json::parse(run.out);
    CHECK(plan.at("documents") == 3);
    CHECK(plan.at("tokens") == 10005);
    CHECK(plan.at("bad_documents") == 1);
    CHECK(plan.at("shard_tokens") == std::vector<int>{4096, 4096, 1808, 0});
    CHECK(plan.at("exchange").at("rounds") == 2);
    CHECK(plan.at("estimate").at("seconds_on_this_machine").get<double>() > 0);

    const Finished table = run_program({"plan", "--model", model.string(), "--tokens", "1048576", "--ranks", "16"});
    CHECK(table.code == 0);
    CHECK(table.out.find("an estimate") != std::string::npos);
    CHECK(run_program({"plan", "--model", model.string()}).code == 2);
    CHECK(run_program({"plan", "--model", model.string(), "--tokens", "5", (folder / "long.txt").string()}).code == 2);
    CHECK(run_program({"plan", "--model", model.string(), "--tokens", "-1"}).code == 2);
    CHECK(run_program({"plan", "--model", model.string(), "--tokens", "5", "--ranks", "0"}).code == 2);
}

TEST_CASE("init refuses what makes no model") {
    const TemporaryFolder folder;
    const Finished family = run_program({"init", "--family", "unheard_of", "--output", (folder / "m").string()});
    CHECK(family.code == 78);
    CHECK(family.err.find("unheard_of") != std::string::npos);
    const Finished sizes =
        run_program({"init", "--family", "mamba2", "--output", (folder / "m").string(), "--hidden", "0"});
    CHECK(sizes.code == 2);
    const fs::path model = small_model(folder);
    CHECK(run_program({"init", "--family", "log_linear_mamba2", "--output", model.string()}).code == 2);
}

TEST_CASE("init draws steps, decay rates and weights from what it is asked for") {
    const TemporaryFolder folder;
    const fs::path model = folder / "m";
    const auto init = [&](const std::array<const char*, 2>& dt, const std::array<const char*, 2>& a) {
        return run_program({"init", "--family", "log_linear_mamba2", "--output", model.string(), "--hidden", "64",
                            "--deviation", "0.5", "--level-scale", "0.25", "--dt-range", dt[0], dt[1], "--a-range",
                            a[0], a[1]});
    };
    CHECK(init({"0.5", "0.1"}, {"20", "30"}).code == 2);
    CHECK(init({"1", "2"}, {"0", "1"}).code == 2);
    REQUIRE(init({"1", "2"}, {"20", "30"}).code == 0);

    const SafetensorsFile file = SafetensorsFile::open(model / "model.safetensors");
    const auto values = [&](const std::string& name) {
        const TensorInfo* tensor = file.find("backbone." + name);
        REQUIRE(tensor != nullptr);
        std::vector<float> all(static_cast<std::size_t>(tensor->bytes) / sizeof(float));
        std::memcpy(all.data(), tensor->data, all.size() * sizeof(float));
        return all;
    };
    for (const float bias : values("layers.0.mixer.dt_bias")) {
        const double dt = std::log1p(std::exp(static_cast<double>(bias)));
        CHECK(dt > 1 - 1e-5);
        CHECK(dt < 2 + 1e-5);
    }
    for (const float a_log : values("layers.0.mixer.A_log")) {
        CHECK(a_log >= std::log(20.0F) - 1e-5F);
        CHECK(a_log <= std::log(30.0F) + 1e-5F);
    }
    const std::vector<float> levels = values("layers.0.mixer.L");
    for (const float level : levels) CHECK(level == 0.25F);
    CHECK(run_program(
              {"init", "--family", "log_linear_mamba2", "--output", (folder / "none").string(), "--level-scale", "-1"})
              .code == 2);
    const auto deviation = [](const float* first, std::size_t count) {
        double squares = 0;
        for (std::size_t i = 0; i < count; ++i)
            squares += static_cast<double>(first[i]) * static_cast<double>(first[i]);
        return std::sqrt(squares / static_cast<double>(count));
    };
    const std::vector<float> embeddings = values("embeddings.weight");
    CHECK(deviation(embeddings.data(), embeddings.size()) == Approx(0.5).epsilon(0.05));
    // The last rows of the input projection are lambda's.
    const std::vector<float> projection = values("layers.0.mixer.in_proj.weight");
    const std::size_t others = projection.size() - levels.size() * 64;
    CHECK(deviation(projection.data(), others) == Approx(0.5).epsilon(0.05));
    CHECK(deviation(projection.data() + others, levels.size() * 64) == Approx(0.02).epsilon(0.05));
}
