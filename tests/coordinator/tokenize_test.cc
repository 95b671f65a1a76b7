// `fenwick tokenize`: documents of every kind in one file, bad ones left out by name, all or nothing.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "core/token_file.h"
#include "tests/coordinator/support.h"

using namespace fenwick;
using namespace fenwick::testing;
namespace fs = std::filesystem;

namespace {

std::vector<std::vector<std::int32_t>> documents_of(const fs::path& path) {
    const TokenFile file = TokenFile::open(path);
    file.verify();
    std::vector<std::vector<std::int32_t>> documents;
    for (std::int64_t i = 0; i < file.documents(); ++i) {
        auto& ids = documents.emplace_back(static_cast<std::size_t>(file.first_token(i + 1) - file.first_token(i)));
        file.read(file.first_token(i), ids);
    }
    return documents;
}

std::vector<std::int32_t> bytes_of_text(const std::string& text) {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

}  // namespace

TEST_CASE("tokenize writes text, rows and ready ids in order") {
    const TemporaryFolder folder;
    const std::string long_text = text_of(600000, 3);  // more than a stretch of the copy
    write_file(folder / "a.txt",
               "\xEF\xBB\xBF"
               "a\r\n\0\xFF");
    write_file(folder / "long.txt", long_text);
    write_file(folder / "empty.txt", "");
    write_file(folder / "rows.jsonl",
               "{\"custom_id\": \"r1\", \"text\": \"hello\"}\n\n{\"custom_id\": \"r2\", \"tokens\": [1, 2, 256]}\n");
    const fs::path output = folder / "out" / "train.tokens";
    fs::create_directories(output.parent_path());
    const std::vector<std::string> command = {"tokenize",
                                              "--json",
                                              "--vocab",
                                              "258",
                                              "--eos",
                                              "257",
                                              "--output",
                                              output.string(),
                                              (folder / "a.txt").string(),
                                              (folder / "long.txt").string(),
                                              (folder / "empty.txt").string(),
                                              (folder / "rows.jsonl").string()};
    const Finished run = run_program(command);
    INFO(run.err);
    REQUIRE(run.code == 0);
    std::vector<std::vector<std::int32_t>> expected;
    for (const std::string& text : {read_file(folder / "a.txt"), long_text, std::string(), std::string("hello")}) {
        expected.push_back(bytes_of_text(text));
    }
    expected.push_back({1, 2, 256});
    for (auto& ids : expected) ids.push_back(257);
    CHECK(documents_of(output) == expected);
    const auto report = nlohmann::json::parse(run.out);
    const TokenFile file = TokenFile::open(output);
    CHECK(report.at("status") == "completed");
    CHECK(report.at("documents") == 5);
    CHECK(report.at("failed") == 0);
    CHECK(report.at("tokens") == file.tokens());
    CHECK(report.at("text_bytes").is_null());  // of ready ids it is not known
    CHECK(report.at("vocab_size") == 258);
    CHECK(report.at("id_bytes") == 2);
    CHECK(report.at("file_bytes") == fs::file_size(output));
    CHECK(report.at("tokenizer") == "bytes");
    CHECK(report.at("hash") == file.hash());
    CHECK(std::distance(fs::directory_iterator(output.parent_path()), fs::directory_iterator()) == 1);

    // Never over an older file unless asked.
    const Finished again = run_program(command);
    CHECK(again.code == 2);
    CHECK(again.err.find("--overwrite") != std::string::npos);
    auto forced = command;
    forced.insert(forced.begin() + 1, "--overwrite");
    CHECK(run_program(forced).code == 0);
}

TEST_CASE("tokenize takes SentencePiece models") {
    const TemporaryFolder folder;
    const std::string text = "The quick brown fox jumps over the lazy dog. ";
    write_file(folder / "a.txt", text + text);
    write_file(folder / "b.txt", "\xFF\xFE");
    const Finished run = run_program(
        {"tokenize", "--json", "--tokenizer", std::string(FENWICK_TEST_DATA) + "/sentencepiece/unigram.model",
         "--output", (folder / "t").string(), (folder / "a.txt").string(), (folder / "b.txt").string()});
    INFO(run.err);
    CHECK(run.code == 3);  // b is no UTF-8
    const auto report = nlohmann::json::parse(run.out);
    CHECK(report.at("status") == "completed_with_errors");
    CHECK(report.at("exit_code") == 3);
    CHECK(report.at("failed") == 1);
    CHECK(report.at("errors").at(0).at("custom_id") == "b");
    CHECK(report.at("errors").at(0).at("message").get<std::string>().find("b.txt") != std::string::npos);
    CHECK(report.at("tokenizer").get<std::string>().starts_with("sentencepiece:"));
    CHECK(report.at("text_bytes") == 2 * text.size());
    const auto documents = documents_of(folder / "t");
    REQUIRE(documents.size() == 1);
    CHECK_FALSE(documents[0].empty());
}

TEST_CASE("tokenize keeps what rows say of their targets") {
    const TemporaryFolder folder;
    write_file(folder / "rows.jsonl",
               "{\"custom_id\": \"a\", \"tokens\": [5, 6, 7], \"targets\": [2]}\n"
               "{\"custom_id\": \"b\", \"tokens\": [8, 9]}\n"
               "{\"custom_id\": \"c\", \"targets\": [0, 4], \"tokens\": [1, 1, 1, 1]}\n");
    const Finished run = run_program({"tokenize", "--json", "--vocab", "12", "--eos", "11", "--output",
                                      (folder / "t").string(), (folder / "rows.jsonl").string()});
    INFO(run.err);
    CHECK(run.code == 3);  // c names a token that it does not have
    CHECK(run.err.find("field \"targets\": expected places below 4") != std::string::npos);
    CHECK(nlohmann::json::parse(run.out).at("masked") == true);
    CHECK(documents_of(folder / "t") == std::vector<std::vector<std::int32_t>>{{5, 6, 7, 11}, {8, 9, 11}});
    const TokenFile file = TokenFile::open(folder / "t");
    std::vector<bool> targets;
    for (std::int64_t i = 0; i < file.tokens(); ++i) targets.push_back(file.is_target(i));
    CHECK(targets == std::vector<bool>{false, false, true, false, true, true, true});
}

TEST_CASE("tokenize leaves bad documents out and says so") {
    const TemporaryFolder folder;
    write_file(folder / "rows.jsonl",
               "{\"custom_id\": \"a\", \"text\": \"one\"}\n{\"custom_id\": \"b\"}\n"
               "{\"custom_id\": \"c\", \"tokens\": [1, 300]}\n{\"custom_id\": \"d\", \"text\": \"two\"}\n");
    const Finished run = run_program({"tokenize", "--output", (folder / "t").string(), (folder / "rows.jsonl").string(),
                                      (folder / "absent.txt").string()});
    CHECK(run.code == 3);
    CHECK(run.err.find("line 2") != std::string::npos);
    CHECK(run.err.find("300") != std::string::npos);
    CHECK(run.err.find("absent.txt") != std::string::npos);
    CHECK(run.out.find("3 documents failed") != std::string::npos);
    CHECK(documents_of(folder / "t") ==
          std::vector<std::vector<std::int32_t>>{bytes_of_text("one"), bytes_of_text("two")});
}

TEST_CASE("tokenize refuses what it cannot write") {
    const TemporaryFolder folder;
    write_file(folder / "a.txt", text_of(300000, 1));
    const std::string input = (folder / "a.txt").string();
    const std::string output = (folder / "t").string();
    CHECK(run_program({"tokenize", input}).code == 2);
    CHECK(run_program({"tokenize", "--output", output}).code == 2);
    CHECK(run_program({"tokenize", "--output", output, "--vocab", "255", input}).code == 2);
    CHECK(run_program({"tokenize", "--output", output, "--eos", "256", input}).code == 2);
    CHECK(run_program({"tokenize", "--output", output, "--vocab", "2147483648", input}).code == 2);
    CHECK(run_program({"tokenize", "--output", output, "--tokenizer", input, input}).code == 65);
    CHECK(run_program({"tokenize", "--output", (folder / "no" / "t").string(), input}).code == 69);
    // A disk that is full: nothing is left.
    Child full({"tokenize", "--output", output, input}, 100000);
    const Finished finished = full.wait();
    CHECK(finished.code == 69);
    CHECK(finished.err.find("make room") != std::string::npos);
    CHECK(folder.entries() == 1);
}

TEST_CASE("tokenize stops on request and leaves nothing") {
    const TemporaryFolder folder;
    write_file(folder / "a.txt", "a");
    fs::resize_file(folder / "a.txt", std::uintmax_t{8} << 30);  // sparse: minutes of reading
    Child child({"tokenize", "--output", (folder / "t").string(), (folder / "a.txt").string()});
    wait_for([&] { return folder.entries() > 1; });
    child.send(SIGTERM);
    const Finished finished = child.wait();
    CHECK(finished.code == 75);
    CHECK(finished.err.find("SIGTERM") != std::string::npos);
    CHECK(folder.entries() == 1);
}
