// The real program on small random models: counts, rows and losses (CASES E1, B3, G2).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/coordinator/support.h"

using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

/// Makes every logit 0, so that every loss is ln 256 and anything not finite on the way shows as NaN.
void zero_head(const fs::path& model) {
    const fs::path file = model / "model.safetensors";
    std::string bytes = read_file(file);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const auto json = nlohmann::json::parse(bytes.substr(8, header));
    const auto range = json.at("lm_head.weight").at("data_offsets").get<std::vector<std::size_t>>();
    std::memset(bytes.data() + 8 + header + range[0], 0, range[1] - range[0]);
    write_file(file, bytes);
}

Arguments score(const fs::path& model, const fs::path& output, const fs::path& input, const Arguments& more = {}) {
    Arguments all = {"score", "--model", model.string(), "--output", output.string(), input.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

}  // namespace

TEST_CASE("bytes that are no text are scored as they are") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "odd.txt", std::string("\xEF\xBB\xBF\x61\x0D\x0A\x00\xFF\xE2\x82\x62\x0A", 12));
    write_file(folder / "utf16.txt", std::string("\xFF\xFE\x61\x00\x62\x00\x0A\x00", 8));
    write_file(folder / "empty.txt", "");
    write_file(folder / "one.txt", "a");
    const Finished run = run_program(score(
        model, folder / "out", folder / "odd.txt",
        {(folder / "utf16.txt").string(), (folder / "empty.txt").string(), (folder / "one.txt").string(), "--json"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    const auto rows = read_jsonl(folder / "out/results.jsonl");
    REQUIRE(rows.size() == 4);
    const std::vector<std::int64_t> tokens = {12, 8, 0, 1};
    const std::vector<std::int64_t> scored = {11, 7, 0, 0};
    for (std::size_t i = 0; i < rows.size(); ++i) {
        CHECK(rows[i].at("tokens") == tokens[i]);
        CHECK(rows[i].at("scored_tokens") == scored[i]);
        const auto losses = read_nll(folder / "out" / rows[i].at("nll_file").get<std::string>());
        CHECK(std::ssize(losses) == scored[i]);
        double sum = 0;
        for (const float loss : losses) sum += static_cast<double>(loss);
        CHECK(rows[i].at("nll_sum").get<double>() == sum);  // fewer than a block: added in the same order
        CHECK(rows[i].at("nll_mean").is_null() == (scored[i] == 0));
        CHECK(rows[i].at("bits_per_byte").is_null() == (scored[i] == 0));
    }
    CHECK(rows[0].at("custom_id") == "odd");
    CHECK(read_file(folder / "out/errors.jsonl").empty());
    const auto report = nlohmann::json::parse(run.out);  // one object and nothing else
    CHECK(report.at("completed") == 4);
    CHECK(report.at("scored_tokens") == 18);
    const auto manifest = nlohmann::json::parse(read_file(folder / "out/manifest.json"));
    CHECK(manifest.at("files").size() == 6);
    for (const auto& file : manifest.at("files")) {
        CHECK(fs::file_size(folder / "out" / file.at("name").get<std::string>()) == file.at("bytes"));
        CHECK(file.at("xxh3").get<std::string>().size() == 32);
    }
}

TEST_CASE("empty and one-token documents count right for every family and rank count") {
    for (const char* family : {"log_linear_mamba2", "mamba2", "gated_deltanet", "h_gated_deltanet"}) {
        const TemporaryFolder folder;
        const fs::path model = small_model(folder, family);
        zero_head(model);
        std::string lines;
        for (const char* text : {"hello", "", "welcome", "", "", "goodbyes", "a", "b", "c"}) {
            lines += "{\"custom_id\":\"" + std::to_string(lines.size()) + "\",\"text\":\"" + text + "\"}\n";
        }
        write_file(folder / "in.jsonl", lines);
        const std::vector<std::int64_t> scored = {4, 0, 6, 0, 0, 7, 0, 0, 0};
        for (const char* ranks : {"1", "4"}) {
            const fs::path out = folder / (std::string("out") + ranks);
            const Finished run = run_program(score(model, out, folder / "in.jsonl", {"--ranks", ranks}));
            INFO(family << " on " << ranks << " ranks: " << run.err);
            REQUIRE(run.code == 0);
            const auto rows = read_jsonl(out / "results.jsonl");
            REQUIRE(rows.size() == scored.size());
            double sum = 0;
            for (std::size_t i = 0; i < rows.size(); ++i) {
                CHECK(rows[i].at("scored_tokens") == scored[i]);
                CHECK(rows[i].at("nll_mean").is_null() == (scored[i] == 0));
                sum += rows[i].at("nll_sum").get<double>();
            }
            // 17 ln 256; each loss is off by half a unit in the last place of a float near 5.5 (2.4e-7) and a few more.
            CHECK(std::abs(sum - 17 * std::log(256.0)) < 17 * 1e-6);
        }
    }
}

// CASES G2: lengths that no rank count divides. Losses must have the bits of one rank.
TEST_CASE("awkward lengths and rank counts lose no token") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    struct Case {
        std::size_t tokens;
        int ranks;
    };
    for (const Case& c : {Case{10, 3}, {7, 2}, {2, 8}, {1, 4}, {0, 4}, {8423, 6}, {56700, 8}, {320, 8}, {100003, 7}}) {
        const std::string name = std::to_string(c.tokens);
        write_file(folder / (name + ".txt"), text_of(c.tokens, 3));
        const fs::path alone = folder / (name + "-alone");
        const fs::path shared = folder / (name + "-shared");
        const Finished one = run_program(score(model, alone, folder / (name + ".txt")));
        const Finished many = run_program(score(model, shared, folder / (name + ".txt"),
                                                {"--ranks", std::to_string(c.ranks), "--pass-tokens", "65536"}));
        INFO(name << " tokens on " << c.ranks << " ranks: " << one.err << many.err);
        REQUIRE(one.code == 0);
        REQUIRE(many.code == 0);
        require_same_output(alone, shared);
        const auto rows = read_jsonl(shared / "results.jsonl");
        CHECK(rows.at(0).at("scored_tokens") == (c.tokens > 0 ? c.tokens - 1 : 0));
        CHECK(rows.at(0).at("ranks") == c.ranks);
    }
}

TEST_CASE("strict levels refuse documents longer than the trained ones") {
    const TemporaryFolder folder;
    const fs::path model = folder / "model";
    // 9 levels: 256 tokens.
    REQUIRE(run_program({"init", "--family", "log_linear_mamba2", "--output", model.string(), "--hidden", "16",
                         "--layers", "1", "--heads", "2", "--head-dim", "8", "--state", "8", "--levels", "9"})
                .code == 0);
    write_file(folder / "in.jsonl", "{\"custom_id\":\"fits\",\"text\":\"" + std::string(256, 'a') +
                                        "\"}\n{\"custom_id\":\"long\",\"text\":\"" + std::string(257, 'a') + "\"}\n");
    const Finished strict = run_program(score(model, folder / "strict", folder / "in.jsonl", {"--levels", "strict"}));
    CHECK(strict.code == 3);
    const auto errors = read_jsonl(folder / "strict/errors.jsonl");
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].at("custom_id") == "long");
    CHECK(errors[0].at("code") == "DOCUMENT_TOO_LONG");
    CHECK(errors[0].at("message").get<std::string>().find("257 tokens") != std::string::npos);
    CHECK(errors[0].at("message").get<std::string>().find("256") != std::string::npos);

    const Finished extend = run_program(score(model, folder / "extend", folder / "in.jsonl"));
    CHECK(extend.code == 0);
    const auto rows = read_jsonl(folder / "extend/results.jsonl");
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].at("levels_extended") == false);
    CHECK(rows[1].at("levels_extended") == true);
    CHECK(extend.err.find("257 tokens") != std::string::npos);
}

TEST_CASE("bos gives the first token a loss") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    write_file(folder / "a.txt", "hello");
    const Finished refused = run_program(score(model, folder / "out", folder / "a.txt", {"--bos"}));
    CHECK(refused.code == 2);
    CHECK(refused.err.find("bos_token_id") != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "out"));

    auto config = nlohmann::json::parse(read_file(model / "config.json"));
    config["bos_token_id"] = 0;
    write_file(model / "config.json", config.dump());
    const Finished run = run_program(score(model, folder / "out", folder / "a.txt", {"--bos"}));
    INFO(run.err);
    REQUIRE(run.code == 0);
    const auto row = read_jsonl(folder / "out/results.jsonl").at(0);
    CHECK(row.at("scored_tokens") == 5);
    const double bits = row.at("nll_sum").get<double>() / std::log(2.0) / 5;
    CHECK(row.at("bits_per_byte").get<double>() == Approx(bits).epsilon(1e-14));
    // The same bytes with the BOS written out have the same losses.
    write_file(folder / "b.txt", std::string("\0hello", 6));
    REQUIRE(run_program(score(model, folder / "plain", folder / "b.txt")).code == 0);
    CHECK(read_nll(folder / "out/nll/a.npy") == read_nll(folder / "plain/nll/b.npy"));
}

TEST_CASE("a loss that is not finite fails its document and no other") {
    const TemporaryFolder folder;
    const fs::path model = small_model(folder);
    const fs::path file = model / "model.safetensors";
    std::string bytes = read_file(file);
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const auto json = nlohmann::json::parse(bytes.substr(8, header));
    std::string embedding;
    for (const auto& [name, tensor] : json.items()) {
        if (name.find("embed") != std::string::npos) embedding = name;
    }
    REQUIRE_FALSE(embedding.empty());
    // Byte 'z' has an infinite embedding: no loss at or after it is finite, nor, perhaps, in its chunk of 64 tokens.
    const auto offset = json.at(embedding).at("data_offsets").at(0).get<std::size_t>();
    const float infinite = INFINITY;
    std::memcpy(bytes.data() + 8 + header + offset + std::size_t{'z'} * 16 * sizeof(float), &infinite, sizeof(float));
    write_file(file, bytes);
    write_file(folder / "in.jsonl", "{\"custom_id\":\"bad\",\"text\":\"" + std::string(100, 'a') + "z" +
                                        std::string(100, 'b') + "\"}\n{\"custom_id\":\"good\",\"text\":\"abcdef\"}\n");
    const Finished run = run_program(score(model, folder / "out", folder / "in.jsonl"));
    INFO(run.err);
    REQUIRE(run.code == 3);
    const auto errors = read_jsonl(folder / "out/errors.jsonl");
    REQUIRE(errors.size() == 1);
    CHECK(errors[0].at("code") == "NUMERIC_ERROR");
    const auto message = errors[0].at("message").get<std::string>();
    const std::string before = "the loss of token ";
    const std::size_t number = message.find(before);
    REQUIRE(number != std::string::npos);
    const int token = std::stoi(message.substr(number + before.size()));
    CHECK(token > 64);
    CHECK(token <= 101);
    const auto rows = read_jsonl(folder / "out/results.jsonl");
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].at("custom_id") == "good");
    CHECK_FALSE(fs::exists(folder / "out/nll/bad.npy"));
}
