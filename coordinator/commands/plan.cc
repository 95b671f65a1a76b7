#include "coordinator/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/commands/commands.h"
#include "coordinator/machine.h"
#include "coordinator/progress.h"
#include "coordinator/score_options.h"
#include "core/documents.h"
#include "core/errors.h"
#include "core/scratch_folder.h"
#include "core/tokenizer.h"
#include "worker/model.h"

namespace fenwick {
namespace {

/// The share of OpenBLAS's own rate that a whole model reaches at least, unless it is tiny; the plan's time is an
/// estimate and says so.
constexpr double kModelEfficiency = 0.35;

struct PlanOptions {
    std::filesystem::path model;
    std::vector<std::filesystem::path> inputs;
    std::optional<std::int64_t> tokens;
    int ranks = 1;
    std::string pass_tokens;
    std::string tokenizer = "auto";
    std::string link = "ib";
    double rank_tflops = 0;
    bool bos = false;
};

/// Lengths of the good documents; `bad` counts the others.
std::vector<std::int64_t> document_lengths(const PlanOptions& options, const Model& model, std::int64_t& bad) {
    const std::unique_ptr<Tokenizer> tokenizer =
        resolve_tokenizer(options.tokenizer, options.model, model.vocab_size());
    const ScratchFolder work("fenwick-plan-");
    std::vector<std::int64_t> lengths;
    for (const DocumentRef& document : list_documents(options.inputs)) {
        try {
            if (!document.error.empty()) throw DataError(document.error);
            lengths.push_back(open_document(document, {.tokenizer = tokenizer.get(),
                                                       .vocab_size = model.vocab_size(),
                                                       .prepend_bos = options.bos && model.bos_id() >= 0,
                                                       .bos_id = model.bos_id(),
                                                       .work_folder = work.path()})
                                  ->size());
        } catch (const DataError& error) {
            fmt::print(stderr, "fenwick: warning: {}: {}\n", document.custom_id, error.what());
            ++bad;
        }
    }
    return lengths;
}

int run_plan(const PlanOptions& options, bool json) {
    if (options.tokens.has_value() == !options.inputs.empty()) {
        throw UsageError("plan: give either --tokens or documents");
    }
    if (options.tokens && *options.tokens < 0) {
        throw UsageError(fmt::format("--tokens {}: expected 0 or more", *options.tokens));
    }
    const int ranks = resolve_ranks(options.ranks, 0);
    const std::int64_t pass_tokens = parse_pass_tokens(options.pass_tokens, ranks);
    const Link link = parse_link(options.link);
    const std::shared_ptr<const Model> model = Model::load(options.model);
    std::int64_t bad = 0;
    const int cores = usable_cores();
    const double rate = measure_sgemm(cores);
    const PlanRequest request{
        options.tokens ? std::vector<std::int64_t>{*options.tokens} : document_lengths(options, *model, bad), ranks,
        pass_tokens, link, options.rank_tflops > 0 ? 1e12 * options.rank_tflops : kModelEfficiency * rate};
    const Plan plan = make_plan(*model, request);

    const double seconds = plan.flops / (kModelEfficiency * rate);
    // Ranks without a block of their own do not make a run faster.
    const auto busy = std::max<std::int64_t>(
        1, std::count_if(plan.shard_tokens.begin(), plan.shard_tokens.end(), [](auto tokens) { return tokens > 0; }));
    if (json) {
        nlohmann::ordered_json report = to_json(plan);
        report["bad_documents"] = bad;
        report["estimate"] = {{"sgemm_flops_per_second", rate},
                              {"cores", cores},
                              {"assumed_efficiency", kModelEfficiency},
                              {"seconds_on_this_machine", seconds},
                              {"seconds_on_a_machine_per_rank", seconds / static_cast<double>(busy)}};
        fmt::print("{}\n", report.dump());
    } else {
        fmt::print("model        {}, {} parameters\n{}", model->family(), model->parameter_count(), to_text(plan));
        fmt::print(
            "time         about {} on this machine ({} cores, sgemm {:.0f} GFLOP/s, the model at {:.0f} % of it)",
            duration_text(seconds), cores, rate / 1e9, 100 * kModelEfficiency);
        if (busy > 1)
            fmt::print("; about {} with such a machine for each rank",
                       duration_text(seconds / static_cast<double>(busy)));
        fmt::print("; an estimate, not a promise\n");
        if (bad > 0) fmt::print("{} documents cannot be read and are left out\n", bad);
    }
    return static_cast<int>(bad > 0 ? ExitCode::kSomeDocumentsFailed : ExitCode::kDone);
}

}  // namespace

void add_plan_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("plan", "Show what a run would do and cost, without running it");
    auto options = std::make_shared<PlanOptions>();
    verb->add_option("INPUT", options->inputs, "Documents, as for score");
    verb->add_option("--tokens", options->tokens, "Plan for one document of this many tokens instead");
    verb->add_option("--model", options->model, "Folder with config.json and safetensors")->required();
    verb->add_option("--ranks", options->ranks, "Ranks that share each document")->capture_default_str();
    verb->add_option("--pass-tokens", options->pass_tokens,
                     "Tokens that the ranks hold at once: a multiple of 4096, or unlimited (default 16384 x ranks)");
    verb->add_option(
            "--link", options->link,
            "Between ranks: nvlink (12 us, 305 GB/s: measured on two H200), ib (20 us, 45 GB/s), ethernet (60 us, "
            "2.8 GB/s), or MICROSECONDS:GIGABYTES-A-SECOND")
        ->capture_default_str();
    verb->add_option(
            "--rank-tflops", options->rank_tflops,
            "Useful TFLOP/s of a rank, for the prediction of the efficiency (default: this machine's processor)")
        ->check(CLI::NonNegativeNumber);
    verb->add_option("--tokenizer", options->tokenizer, "As for score")->capture_default_str();
    verb->add_flag("--bos", options->bos, "As for score");
    verb->add_flag("--json", chosen.json, "Print one JSON object");
    verb->footer(
        "Example:\n  fenwick plan --model model --tokens 1048576 --ranks 16\n"
        "  fenwick plan --model model --tokens 1073741824 --ranks 16384 --pass-tokens unlimited --link ib "
        "--rank-tflops 400");
    verb->callback([options, &chosen] { chosen.run = [options, &chosen] { return run_plan(*options, chosen.json); }; });
}

}  // namespace fenwick
