#include "coordinator/tokenize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "coordinator/commands/commands.h"
#include "coordinator/progress.h"
#include "coordinator/stop_signal.h"

namespace fenwick {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  fenwick tokenize --output train.tokens book.txt more.jsonl\n"
    "  fenwick tokenize --output train.tokens --tokenizer tokenizer.model --eos 2 documents.jsonl\n"
    "\n"
    "Inputs are those of 'fenwick score'. A .jsonl row with \"tokens\" may also have \"targets\": the places in it "
    "that\n"
    "the loss is taken of. A bad document is named on stderr and left out; the exit code is then 3. The file appears\n"
    "whole or not at all.";

void print_json(const TokenizeReport& report, const TokenizeOptions& options) {
    nlohmann::ordered_json json;
    json["status"] = report.failures.empty() ? "completed" : "completed_with_errors";
    json["exit_code"] = static_cast<int>(report.exit_code());
    json["output"] = options.output.string();
    json["documents"] = report.documents;
    json["failed"] = report.failures.size();
    json["tokens"] = report.tokens;
    json["text_bytes"] = report.text_bytes >= 0 ? nlohmann::ordered_json(report.text_bytes) : nullptr;
    json["vocab_size"] = report.vocab_size;
    json["id_bytes"] = report.id_bytes;
    json["masked"] = report.masked;
    json["file_bytes"] = report.file_bytes;
    json["tokenizer"] = report.tokenizer;
    json["hash"] = report.hash;
    json["seconds"] = report.seconds;
    json["errors"] = nlohmann::ordered_json::array();
    for (const TokenizeFailure& failure : report.failures) {
        json["errors"].push_back({{"custom_id", failure.custom_id}, {"message", failure.message}});
    }
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

int run_tokenize(const TokenizeOptions& options, bool json) {
    catch_stop_signals();
    const TokenizeReport report = tokenize_documents(options);
    if (json) {
        print_json(report, options);
    } else {
        fmt::print("{}: {} tokens of {} documents, vocabulary {}, {} bytes, {}\n", options.output.string(),
                   report.tokens, report.documents, report.vocab_size, report.file_bytes,
                   duration_text(report.seconds));
        if (!report.failures.empty()) fmt::print("{} documents failed and are left out\n", report.failures.size());
    }
    return static_cast<int>(report.exit_code());
}

}  // namespace

void add_tokenize_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("tokenize", "Write documents as one token file, for training");
    auto options = std::make_shared<TokenizeOptions>();
    verb->add_option("INPUT", options->inputs, "Documents, in the order of the file")->required();
    verb->add_option("--output", options->output, "The token file")->required();
    verb->add_option("--tokenizer", options->tokenizer, "bytes, or a SentencePiece model file")->capture_default_str();
    verb->add_option("--vocab", options->vocab_size, "Size of the vocabulary (default: the tokenizer's)")
        ->check(CLI::PositiveNumber);
    verb->add_option("--eos", options->eos_id, "Id to put after each document (default: none)")
        ->check(CLI::NonNegativeNumber);
    verb->add_flag("--overwrite", options->overwrite, "Replace the output if it is there");
    verb->add_flag("--json", chosen.json, "Print the report as one JSON object on stdout; no progress");
    verb->footer(kFooter);
    verb->callback([options, &chosen] {
        options->silent = chosen.json;
        chosen.run = [options, json = chosen.json] { return run_tokenize(*options, json); };
    });
}

}  // namespace fenwick
