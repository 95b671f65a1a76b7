// The verbs of the command line, one file each. A command adds its subcommand to the parser and says what to run.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace fenwick {

/// What to do after parsing; returns the exit code, throws fenwick::Error.
struct Command {
    std::function<int()> run;
    /// Where a program reads the answer: an error is then printed as a JSON object on stdout as well.
    bool json = false;
};

// Each registers its verb in `app`; when the verb is parsed, `chosen` is filled in.
void add_score_command(CLI::App& app, Command& chosen);
void add_plan_command(CLI::App& app, Command& chosen);
void add_init_command(CLI::App& app, Command& chosen);
void add_doctor_command(CLI::App& app, Command& chosen);
void add_version_command(CLI::App& app, Command& chosen);
// Training.
void add_tokenize_command(CLI::App& app, Command& chosen);
void add_train_command(CLI::App& app, Command& chosen);
void add_checkpoint_command(CLI::App& app, Command& chosen);
// A coordinator, and a rank of its gangs.
void add_serve_command(CLI::App& app, Command& chosen);
void add_worker_command(CLI::App& app, Command& chosen);
// Those of a coordinator's clients.
void add_submit_command(CLI::App& app, Command& chosen);
void add_status_command(CLI::App& app, Command& chosen);
void add_watch_command(CLI::App& app, Command& chosen);
void add_logs_command(CLI::App& app, Command& chosen);
void add_results_command(CLI::App& app, Command& chosen);
void add_list_command(CLI::App& app, Command& chosen);
void add_cancel_command(CLI::App& app, Command& chosen);
void add_retry_command(CLI::App& app, Command& chosen);
void add_workers_command(CLI::App& app, Command& chosen);
void add_drain_command(CLI::App& app, Command& chosen);

}  // namespace fenwick
