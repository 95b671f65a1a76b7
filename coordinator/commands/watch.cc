// watch, logs, results: a job until it is over, and what came of it.
#include "coordinator/client/watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/api/idl_json.h"
#include "coordinator/client/client_options.h"
#include "coordinator/client/job_text.h"
#include "coordinator/client/transfers.h"
#include "coordinator/commands/commands.h"

namespace fenwick {
namespace {

constexpr std::int32_t kLogEntries = 500;
constexpr auto kLogInterval = std::chrono::seconds(1);

int run_watch(ServiceClient& client, const std::string& job_id, bool json) {
    const idl::Job job = watch_job(client, job_id, json);
    fmt::print("{}\n", json ? to_text(to_json(job)) : job_text(job));
    return static_cast<int>(exit_code_of(job));
}

/// One line an entry, JSON objects with `json`. With `follow` until the job is over and all of its log is told.
int run_logs(ServiceClient& client, const std::string& job_id, bool follow, bool json) {
    std::int64_t last = 0;
    for (;;) {
        const bool over = !follow || is_over(client.get(&idl::FenwickClient::getJob, job_id).state);
        bool more = true;
        while (more) {
            const idl::LogPage page = client.get(&idl::FenwickClient::readLogs, job_id, last, kLogEntries);
            for (const idl::LogEntry& entry : page.entries) {
                fmt::print("{}\n", json ? to_text(to_json(entry)) : log_line(entry));
            }
            last = page.lastSequence;
            more = page.more;
        }
        std::fflush(stdout);
        if (over) return 0;
        std::this_thread::sleep_for(kLogInterval);
    }
}

TransferProgress download_progress(bool json) {
    if (json || ::isatty(STDERR_FILENO) != 1) return [](const std::string&, std::int64_t, std::int64_t) {};
    return [](const std::string& name, std::int64_t moved, std::int64_t size) {
        fmt::print(stderr, "\r\x1b[K{}: {} of {} KiB{}", name, moved >> 10, size >> 10, moved == size ? "\n" : "");
        std::fflush(stderr);
    };
}

int run_results(ServiceClient& client, const std::string& job_id, const std::filesystem::path& folder, bool losses,
                bool json) {
    const ResultsReport report = fetch_results(client, job_id, folder, losses, download_progress(json));
    const idl::Job job = client.get(&idl::FenwickClient::getJob, job_id);
    if (json) {
        const Json all = {{"job", to_json(job)},
                          {"output", folder.string()},
                          {"files", report.files},
                          {"bytes", report.bytes},
                          {"files_kept", report.kept}};
        fmt::print("{}\n", to_text(all));
    } else {
        fmt::print("{}\n{} files, {} bytes in {} ({} were there already)\n", progress_line(job), report.files,
                   report.bytes, folder.string(), report.kept);
    }
    return static_cast<int>(exit_code_of(job));
}

}  // namespace

void add_watch_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("watch", "Follow a job until it is over");
    auto job_id = std::make_shared<std::string>();
    verb->add_option("JOB", *job_id, "The job's id")->required();
    add_question(*verb, chosen,
                 [=, &chosen](ServiceClient& client) { return run_watch(client, *job_id, chosen.json); });
}

void add_logs_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("logs", "Print a job's log: what happened to its documents, gangs and ranks");
    auto job_id = std::make_shared<std::string>();
    auto follow = std::make_shared<bool>(false);
    verb->add_option("JOB", *job_id, "The job's id")->required();
    verb->add_flag("--follow", *follow, "Go on until the job is over");
    add_question(*verb, chosen,
                 [=, &chosen](ServiceClient& client) { return run_logs(client, *job_id, *follow, chosen.json); });
}

void add_results_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("results", "Fetch the results of a job that is over; may be repeated");
    auto job_id = std::make_shared<std::string>();
    auto folder = std::make_shared<std::filesystem::path>();
    auto no_losses = std::make_shared<bool>(false);
    verb->add_option("JOB", *job_id, "The job's id")->required();
    verb->add_option("--output", *folder, "Folder for the files; made if absent")->required();
    verb->add_flag("--no-nll", *no_losses, "Leave the losses of single tokens (nll/) where they are");
    add_question(*verb, chosen, [=, &chosen](ServiceClient& client) {
        return run_results(client, *job_id, *folder, !*no_losses, chosen.json);
    });
}

}  // namespace fenwick
