#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/idl_json.h"
#include "coordinator/client/client_options.h"
#include "coordinator/client/job_text.h"
#include "coordinator/client/transfers.h"
#include "coordinator/client/watch.h"
#include "coordinator/commands/commands.h"
#include "core/errors.h"

namespace fenwick {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  fenwick submit --model books book.txt more.jsonl               # uploads both, prints the job's id\n"
    "  fenwick submit --model books --by-path /data/corpus.jsonl      # a file of the coordinator's host\n"
    "  fenwick submit --model books --wait book.txt && fenwick results JOB --output out\n"
    "\n"
    "Inputs are those of 'fenwick score'. Each run makes a new job, unless --key repeats the key of an earlier one: "
    "then\n"
    "the earlier job is meant, whatever became of its answer.\n\n";

struct SubmitOptions {
    std::vector<std::filesystem::path> inputs;
    std::string model;
    std::string model_hash;
    bool by_path = false;
    bool wait = false;
    bool plan = false;
    bool bos = false;
    std::string tokenizer = "auto";
    std::string levels = "extend";
    std::string device = "auto";
    std::string dtype = "auto";
    std::string name;
    std::string key;
    std::optional<std::int32_t> priority;
    std::optional<std::int32_t> attempts;
    std::optional<std::int64_t> expires_after;
};

TransferProgress upload_progress(bool json) {
    if (json || ::isatty(STDERR_FILENO) != 1) return [](const std::string&, std::int64_t, std::int64_t) {};
    return [](const std::string& name, std::int64_t moved, std::int64_t size) {
        fmt::print(stderr, "\r\x1b[Kuploading {}: {} of {} MiB{}", name, moved >> 20, size >> 20,
                   moved == size ? "\n" : "");
        std::fflush(stderr);
    };
}

idl::JobSpec job_spec(const SubmitOptions& options) {
    idl::JobSpec spec;
    if (options.model.find('/') == std::string::npos) {
        spec.model.__set_name(options.model);
    } else {
        spec.model.__set_path(options.model);
    }
    if (!options.model_hash.empty()) spec.model.__set_hash(options.model_hash);
    spec.__set_tokenizer(options.tokenizer);
    spec.__set_bos(options.bos);
    spec.__set_levels(options.levels);
    spec.__set_device(options.device);
    spec.__set_dtype(options.dtype);
    if (options.priority) spec.__set_priority(*options.priority);
    if (options.attempts) spec.__set_maxAttempts(*options.attempts);
    if (options.expires_after) spec.__set_expiresAfterSeconds(*options.expires_after);
    if (!options.name.empty()) spec.__set_name(options.name);
    return spec;
}

void add_documents(ServiceClient& client, const SubmitOptions& options, bool json, idl::JobSpec& spec) {
    const TransferProgress progress = upload_progress(json);
    for (const std::filesystem::path& input : options.inputs) {
        idl::DocumentRef document;
        if (options.by_path) {
            document.source.__set_path(input.string());
        } else {
            document.source.__set_uploadId(upload_file(client, input, progress));
        }
        spec.documents.push_back(std::move(document));
    }
}

int print_plan(const idl::Plan& plan, bool json) {
    if (json) {
        fmt::print("{}\n", to_text(to_json(plan)));
        return 0;
    }
    fmt::print("{} documents ({} of them bad), {} tokens in {} blocks, the longest {}\n", plan.documents,
               plan.badDocuments, plan.tokens, plan.blocks, plan.longestTokens);
    fmt::print("{}, {} parameters, saved states of up to {} bytes; {} gangs could start now\n", plan.family,
               plan.parameters, plan.stateBytes, plan.gangs);
    for (const std::string& error : plan.firstErrors) fmt::print("bad: {}\n", error);
    return 0;
}

int run_submit(const SubmitOptions& options, const ClientOptions& client_options, bool json) {
    ServiceClient client(client_options);
    idl::JobSpec spec = job_spec(options);
    const std::string key = options.key.empty() ? new_idempotency_key() : options.key;
    add_documents(client, options, json, spec);
    if (options.plan) return print_plan(client.get(&idl::FenwickClient::planJob, spec), json);
    idl::Job job = client.get(&idl::FenwickClient::submitJob, spec, key);
    if (options.wait) {
        if (!json) fmt::print(stderr, "{}\n", job.id);
        job = watch_job(client, job.id, json);
    }
    if (json) {
        fmt::print("{}\n", to_text(to_json(job)));
    } else {
        fmt::print("{}\n", options.wait ? job_text(job) : job.id);
    }
    return static_cast<int>(options.wait ? exit_code_of(job) : ExitCode::kDone);
}

}  // namespace

void add_submit_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("submit", "Give documents to a coordinator; prints the job's id");
    auto options = std::make_shared<SubmitOptions>();
    verb->add_option("INPUT", options->inputs, "Documents, in the order of the results")->required();
    verb->add_option("--model", options->model,
                     "Name of one of the coordinator's models, or (with a /) the path of a model folder there")
        ->required();
    verb->add_option("--model-hash", options->model_hash, "The model must have this hash");
    verb->add_flag("--by-path", options->by_path,
                   "INPUTs are paths on the coordinator's host, under its roots; nothing is uploaded");
    verb->add_option("--tokenizer", options->tokenizer,
                     "auto (the model folder's tokenizer.model, else bytes), bytes, or a path under the roots")
        ->capture_default_str();
    verb->add_flag("--bos", options->bos,
                   "Put the model's BOS token before each document, so that its first token is scored");
    verb->add_option("--levels", options->levels, "extend or strict, as for 'fenwick score'")
        ->check(CLI::IsMember({"extend", "strict"}))
        ->capture_default_str();
    verb->add_option("--device", options->device, "auto (what the first gang has), cpu or cuda")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    verb->add_option("--dtype", options->dtype, "auto (what the first gang uses), fp32 or bf16")
        ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
        ->capture_default_str();
    verb->add_option("--name", options->name, "A name for people");
    verb->add_option("--priority", options->priority, "-100 to 100; higher first (default 0)")
        ->check(CLI::Range(-100, 100));
    verb->add_option("--attempts", options->attempts, "Tries of a document whose gangs are lost or fail")
        ->check(CLI::Range(1, 100));
    verb->add_option("--expires-after", options->expires_after, "Seconds after which what is not done is given up")
        ->check(CLI::PositiveNumber);
    verb->add_option("--key", options->key, "Idempotency key; a new one by default");
    verb->add_flag("--wait", options->wait, "Follow the job until it is over");
    verb->add_flag("--plan", options->plan, "Only say what the job would be; it is not submitted");
    const auto client_options = add_client_options(*verb, chosen);
    verb->footer(kFooter + std::string(kClientExitCodes));
    verb->callback([options, client_options, &chosen] {
        chosen.run = [options, client_options, &chosen] { return run_submit(*options, *client_options, chosen.json); };
    });
}

}  // namespace fenwick
