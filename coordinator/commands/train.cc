#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/commands/commands.h"
#include "coordinator/train_run.h"

namespace fenwick {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  fenwick train --config train.toml\n"
    "  fenwick train --config train.toml --ranks 2 --resume\n"
    "  mpirun -np 4 fenwick train --config train.toml --resume\n"
    "\n"
    "worker/training/README.md explains the configuration file. model.device = \"cuda\" trains on a GPU for each "
    "rank,\n"
    "several of them under mpirun or srun.\n"
    "SIGINT, SIGTERM and SIGUSR2 end the step, save a checkpoint and exit with code 75; --resume goes on, on any\n"
    "number of ranks (with the same number: with the same bits), and starts with step 1 where nothing was saved.\n"
    "\n"
    "Exit codes: 0 done, 2 wrong command line, 65 damaged data, or a loss or gradient that is not finite, 69 "
    "something\n"
    "missing or full, 70 internal error, 75 interrupted and saved, 78 wrong configuration.";

}  // namespace

void add_train_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("train", "Train a model on token files");
    auto options = std::make_shared<TrainOptions>();
    verb->add_option("--config", options->config, "The run's configuration, a TOML file")->required();
    verb->add_flag("--resume", options->resume, "Go on from the newest checkpoint in checkpoint.folder");
    verb->add_option("--ranks", options->ranks,
                     "Ranks: threads of this process (default 1); under mpirun the world's size");
    verb->add_option("--peak-tflops", options->peak_tflops,
                     "TFLOP/s of a rank that the MFU is measured against (default: its fp32 products, measured)")
        ->check(CLI::PositiveNumber);
    verb->add_option("--comm-timeout", options->comm_timeout,
                     "Under mpirun or srun: seconds after which a rank that is silent ends the run (code 75 where "
                     "there is a checkpoint)")
        ->check(CLI::Range(1.0, 86400.0))
        ->capture_default_str();
    verb->add_flag("--json", chosen.json, "Print the report as one JSON object on stdout; no lines, no progress");
    verb->footer(kFooter);
    verb->callback([options, &chosen] {
        options->json = chosen.json;
        chosen.run = [options] { return run_train(*options); };
    });
}

}  // namespace fenwick
