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

}  // namespace fenwick
