// The program `fenwick`: parses the command line, runs one verb, turns errors into exit codes. Nothing else ends the
// process.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/build_info.h"
#include "coordinator/commands/commands.h"
#include "coordinator/gang_host.h"
#include "core/errors.h"

namespace {

using fenwick::Command;
using fenwick::ExitCode;

constexpr const char* kFooter =
    "Exit codes:\n"
    "  0   done\n"
    "  2   wrong command line\n"
    "  3   done, but some documents failed (see errors.jsonl)\n"
    "  65  damaged input or checkpoint\n"
    "  69  something needed is missing or full (device, disk, memory, a rank)\n"
    "  70  internal error\n"
    "  75  interrupted, progress saved; run again with --resume\n"
    "  78  impossible configuration (config.json)\n"
    "\n"
    "'fenwick VERB --help' explains a verb.";

int report_error(const Command& command, ExitCode code, const std::string& message) {
    fmt::print(stderr, "fenwick: error: {}\n", message);
    if (command.json) {
        nlohmann::ordered_json report;
        report["status"] = code == ExitCode::kInterrupted ? "interrupted" : "error";
        report["exit_code"] = static_cast<int>(code);
        report["message"] = message;
        fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    }
    return static_cast<int>(code);
}

/// `first`: the first word after the program's name.
int report_usage(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
    const bool is_verb = !app.get_subcommands([&](const CLI::App* verb) { return verb->get_name() == first; }).empty();
    if (!first.empty() && first[0] != '-' && !is_verb) {
        fmt::print(stderr, "fenwick: error: {}: no such verb; 'fenwick --help' lists them\n", first);
    } else {
        fmt::print(stderr, "fenwick: error: {}; see 'fenwick {}--help'\n", error.what(), is_verb ? first + " " : "");
    }
    return static_cast<int>(ExitCode::kUsage);
}

int run(const Command& command) {
    try {
        const int code = command.run();
        if (std::fflush(stdout) != 0) return report_error(command, ExitCode::kUnavailable, "stdout: cannot be written");
        return code;
    } catch (const fenwick::PeerFailed& error) {
        return static_cast<int>(error.code());  // the rank that failed prints
    } catch (const fenwick::Error& error) {
        return report_error(command, error.code(), error.what());
    } catch (const std::bad_alloc&) {
        return report_error(command, ExitCode::kUnavailable,
                            "out of memory: use more ranks on more hosts, or a smaller --pass-tokens");
    } catch (const std::exception& error) {
        return report_error(command, ExitCode::kInternal, error.what());
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        auto logger = spdlog::stderr_color_mt("fenwick");
        logger->set_pattern("%H:%M:%S %l: %v");
        spdlog::set_default_logger(std::move(logger));

        CLI::App app(
            "Fenwick runs language models of log-linear and linear memory over documents of millions of tokens.",
            "fenwick");
        app.set_version_flag("--version", fenwick::build_info::kVersion);
        app.require_subcommand(1);
        app.footer(kFooter);
        Command command;
        fenwick::add_score_command(app, command);
        fenwick::add_plan_command(app, command);
        fenwick::add_init_command(app, command);
        fenwick::add_doctor_command(app, command);
        fenwick::add_version_command(app, command);
        fenwick::add_tokenize_command(app, command);
        fenwick::add_train_command(app, command);
        fenwick::add_checkpoint_command(app, command);
        fenwick::add_serve_command(app, command);
        fenwick::add_worker_command(app, command);
        fenwick::add_submit_command(app, command);
        fenwick::add_status_command(app, command);
        fenwick::add_watch_command(app, command);
        fenwick::add_logs_command(app, command);
        fenwick::add_results_command(app, command);
        fenwick::add_list_command(app, command);
        fenwick::add_cancel_command(app, command);
        fenwick::add_retry_command(app, command);
        fenwick::add_workers_command(app, command);
        fenwick::add_drain_command(app, command);
        try {
            app.parse(argc, argv);
        } catch (const CLI::ParseError& error) {
            if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
            return report_usage(app, error, argc > 1 ? argv[1] : "");
        }
        return run(command);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "fenwick: error: %s\n", error.what());
        return static_cast<int>(ExitCode::kInternal);
    }
}
