#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "coordinator/commands/commands.h"
#include "coordinator/gang_host.h"
#include "coordinator/mpi_world.h"
#include "coordinator/output_folder.h"
#include "coordinator/progress.h"
#include "coordinator/score_job.h"
#include "coordinator/score_options.h"
#include "coordinator/stop_signal.h"
#include "parallel/mpi_communicator.h"
#include "parallel/self_communicator.h"
#include "parallel/world_guard.h"
#include "worker/gpu.h"

namespace fenwick {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  fenwick score --model model --output out book.txt\n"
    "  fenwick score --model model --output out --ranks 4 --pass-tokens 65536 documents.jsonl\n"
    "  mpirun -np 8 fenwick score --model model --output out --resume documents.jsonl\n"
    "  mpirun -np 2 fenwick score --model model --output out --device cuda documents.jsonl   (one rank for each GPU)\n"
    "\n"
    "Inputs: .txt (one document), .jsonl (one a line: custom_id, then text, path or tokens), .npy or .bin (token "
    "ids).\n"
    "Output: results.jsonl, errors.jsonl, nll/NAME.npy (float32, nats, entry t is the loss of token t + 1) and, last,\n"
    "manifest.json. SIGINT, SIGTERM and SIGUSR2 save and end with exit code 75.\n"
    "\n"
    "Exit codes: 0 done, 2 wrong command line, 3 some documents failed, 65 damaged data, 69 something missing or "
    "full,\n"
    "70 internal error, 75 interrupted and saved, 78 impossible model configuration.";

nlohmann::ordered_json number_or_null(double value, bool known) {
    return known && std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

void print_report(const ScoreReport& report, const ScoreOptions& options) {
    const bool scored = report.scored_tokens > 0;
    const double mean = scored ? report.nll_sum / static_cast<double>(report.scored_tokens) : 0;
    const double rate = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0;
    if (options.json) {
        nlohmann::ordered_json json;
        json["status"] = report.failed > 0 ? "completed_with_errors" : "completed";
        json["exit_code"] = static_cast<int>(report.exit_code());
        json["documents"] = report.documents;
        json["completed"] = report.completed;
        json["failed"] = report.failed;
        json["reused"] = report.reused;
        json["already_complete"] = report.already_complete;
        json["tokens"] = report.tokens;
        json["scored_tokens"] = report.scored_tokens;
        json["nll_sum"] = report.nll_sum;
        json["nll_mean"] = number_or_null(mean, scored);
        json["perplexity"] = number_or_null(std::exp(mean), scored);
        json["bits_per_byte"] = number_or_null(report.bits_per_byte.value_or(0), report.bits_per_byte.has_value());
        json["levels_extended"] = report.levels_extended;
        json["seconds"] = report.seconds;
        json["tokens_per_second"] = number_or_null(rate, rate > 0);
        json["output"] = options.output.string();
        fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
        return;
    }
    if (report.already_complete) fmt::print("{} was complete already; nothing was computed\n", options.output.string());
    fmt::print("{} of {} documents scored", report.completed, report.documents);
    if (report.reused > 0) fmt::print(" ({} by an earlier run)", report.reused);
    if (report.failed > 0)
        fmt::print(", {} failed (see {})", report.failed, (options.output / "errors.jsonl").string());
    fmt::print("\n{} tokens, {} scored", report.tokens, report.scored_tokens);
    if (scored) fmt::print(", {:.4f} nats each (perplexity {:.4g})", mean, std::exp(mean));
    if (report.bits_per_byte) fmt::print(", {:.4f} bits per byte", *report.bits_per_byte);
    if (rate > 0) fmt::print("\n{} of computing, {:.0f} tokens/s", duration_text(report.seconds), rate);
    fmt::print("\nresults in {}\n", (options.output / "results.jsonl").string());
}

int score_in_mpi_world(const ScoreOptions& options, Communicator& comm, int local_rank) {
    guard_world(comm);
    if (comm.rank() != 0) spdlog::set_level(spdlog::level::err);  // what all ranks see is said once
    Execution execution;
    std::shared_ptr<const Model> model;
    std::unique_ptr<ScoreJob> job;
    together(comm, [&] {
        (void)resolve_ranks(options.ranks, comm.size());
        (void)parse_pass_tokens(options.pass_tokens, comm.size());
    });
    execution = resolve_world_execution(options.device, options.dtype, comm, local_rank);
    execution.comm_timeout = options.comm_timeout;
    together(comm, [&] { model = Model::load(options.model); });
    check_same_model(comm, *model);
    if (execution.on_gpu() && options.pass_tokens.empty()) {
        execution.gpu_pass_tokens = world_pass_tokens(comm, *model, execution);
    }
    together(comm, [&] {
        if (comm.rank() == 0) job = std::make_unique<ScoreJob>(options, execution, comm.size(), model);
    });
    run_gang(model, comm, threads_per_rank(mpi_ranks_on_host(comm.size()), true), execution.compute(),
             [&](LedGang& gang) { job->run(gang); });
    if (comm.rank() != 0) return 0;
    const ScoreReport report = job->finish();
    print_report(report, options);
    return static_cast<int>(report.exit_code());
}

int score_under_mpi(const ScoreOptions& options) {
    const MpiRun run{options.comm_timeout, options.resume && has_progress(options.output),
                     [&] { return has_progress(options.output); }};
    return run_in_mpi_world(
        run, [&](Communicator& comm, int local_rank) { return score_in_mpi_world(options, comm, local_rank); });
}

int score_with_threads(const ScoreOptions& options) {
    SelfCommunicator self;
    guard_world(self);
    const int ranks = resolve_ranks(options.ranks, 0);
    (void)parse_pass_tokens(options.pass_tokens, ranks);
    const Execution execution = resolve_execution(options.device, options.dtype, ranks);
    const std::shared_ptr<const Model> model = Model::load(options.model);
    ScoreJob job(options, execution, ranks, model);
    run_thread_gang(model, ranks, threads_per_rank(ranks, false), execution.compute(),
                    [&](LedGang& gang) { job.run(gang); });
    const ScoreReport report = job.finish();
    print_report(report, options);
    return static_cast<int>(report.exit_code());
}

int run_score(const ScoreOptions& options) {
    catch_stop_signals();
    return launched_under_mpi() ? score_under_mpi(options) : score_with_threads(options);
}

}  // namespace

void add_score_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("score", "Compute the loss of every token of documents");
    auto options = std::make_shared<ScoreOptions>();
    verb->add_option("INPUT", options->inputs, "Documents, in the order of the results")->required();
    verb->add_option("--model", options->model, "Folder with config.json and safetensors")->required();
    verb->add_option("--output", options->output, "Folder for the results; made if absent")->required();
    verb->add_option(
        "--ranks", options->ranks,
        "Ranks that share each document: threads of this process (default 1); under mpirun the world's size");
    verb->add_option("--device", options->device, "auto: CUDA where it can be used, else the CPU")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    verb->add_option("--dtype", options->dtype, "Arithmetic: auto is bf16 on a GPU; the CPU has fp32 only")
        ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
        ->capture_default_str();
    verb->add_option("--tokenizer", options->tokenizer,
                     "auto (the model folder's tokenizer.model, else bytes), bytes, or a SentencePiece model file")
        ->capture_default_str();
    verb->add_flag("--bos", options->bos,
                   "Put the model's BOS token before each document, so that its first token is scored");
    verb->add_option("--pass-tokens", options->pass_tokens,
                     "Tokens that the ranks hold at once: a multiple of 4096, or unlimited; no effect on the results "
                     "(default 16384 x ranks; on a GPU what fits into its memory)");
    verb->add_option(
            "--levels", options->levels,
            "Documents longer than the levels were trained for: extend uses the last level, strict refuses them")
        ->check(CLI::IsMember({"extend", "strict"}))
        ->capture_default_str();
    verb->add_option("--save-seconds", options->save_seconds, "Least time between save points inside a document")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    verb->add_option(
            "--comm-timeout", options->comm_timeout,
            "Under mpirun or srun: seconds after which a rank that is silent, or a message between GPUs that does "
            "not arrive, ends the run (code 75 where progress is saved)")
        ->check(CLI::Range(1.0, 86400.0))
        ->capture_default_str();
    CLI::Option* resume = verb->add_flag("--resume", options->resume, "Continue what an earlier run left in --output");
    verb->add_flag("--overwrite", options->overwrite, "Replace what an earlier run left in --output")->excludes(resume);
    verb->add_flag("--json", chosen.json, "Print the report as one JSON object on stdout; no progress");
    verb->footer(kFooter);
    verb->callback([options, &chosen] {
        options->json = chosen.json;
        chosen.run = [options] { return run_score(*options); };
    });
}

}  // namespace fenwick
