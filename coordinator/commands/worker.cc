#include "coordinator/gang/worker.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/commands/commands.h"

namespace fenwick {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  fenwick worker --coordinator 127.0.0.1:7712\n"
    "  mpirun -np 4 fenwick worker --coordinator head:7712 --token-file token --model /models/small\n"
    "  srun --mpi=pmix fenwick worker --coordinator head:7712 --exit-when-idle 60\n"
    "\n"
    "All processes of the MPI world are one gang: its ranks work on one document together, each with its own "
    "connection\n"
    "to the coordinator. SIGTERM and SIGUSR2 end the pass, save, return the document, and exit 75; drained by the\n"
    "coordinator, or idle for long enough, it exits 0.\n"
    "\n"
    "Exit codes: 0 drained or idle, 2 wrong command line, 65 damaged model, 69 no coordinator, or given up by it (a "
    "rank "
    "was\n"
    "lost), 75 stopped by a signal and saved, 78 impossible model, or a coordinator of another version.";

}  // namespace

void add_worker_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("worker", "Work for a coordinator, as a gang or a rank of one");
    auto options = std::make_shared<WorkerOptions>();
    verb->add_option("--coordinator", options->coordinator, "HOST:PORT of its control plane")->required();
    verb->add_option(
        "--model", options->models,
        "Model folders that this gang serves; without any it looks where the coordinator has them, and in all "
        "cases the content must be the same");
    verb->add_option("--name", options->name, "The gang's name in logs and on the status page (default HOST-PROCESS)");
    verb->add_option("--device", options->device, "auto: CUDA where it can be used, else the CPU")
        ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
        ->capture_default_str();
    verb->add_option("--dtype", options->dtype, "Arithmetic: auto is bf16 on a GPU; the CPU has fp32 only")
        ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
        ->capture_default_str();
    verb->add_option("--pass-tokens", options->pass_tokens,
                     "Tokens that the ranks hold at once: a multiple of 4096, or unlimited; no effect on the results");
    auto* token = verb->add_option("--token", options->token, "What the coordinator's control.token says");
    verb->add_option("--token-file", options->token_file, "A file with that token")->excludes(token);
    verb->add_option(
            "--state-folder", options->state_folder,
            "Keep saved states in this folder, which every gang must see under this name; without it they travel "
            "to the coordinator")
        ->check(CLI::ExistingDirectory);
    verb->add_option("--tls-ca", options->tls_authority,
                     "Speak TLS; the coordinator's certificate must come from these (PEM)");
    verb->add_option("--tls-certificate", options->tls_certificate,
                     "This gang's certificate, where one is asked for (PEM)");
    verb->add_option("--tls-key", options->tls_key, "Its key (PEM)");
    verb->add_option("--reconnect-seconds", options->reconnect_seconds,
                     "Without a coordinator for so long the gang ends")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    verb->add_option("--exit-when-idle", options->exit_when_idle,
                     "End after so many seconds without work (default: never)")
        ->check(CLI::NonNegativeNumber);
    verb->footer(kFooter);
    verb->callback([options, &chosen] { chosen.run = [options] { return run_worker(*options); }; });
}

}  // namespace fenwick
