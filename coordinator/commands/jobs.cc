// status, list, cancel, retry: one question to the coordinator each.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/api/idl_json.h"
#include "coordinator/client/client_options.h"
#include "coordinator/client/job_text.h"
#include "coordinator/commands/commands.h"

namespace fenwick {
namespace {

constexpr std::int32_t kPageSize = 500;

std::map<std::string, int> lower_names(const std::map<int, const char*>& names) {
    std::map<std::string, int> found;
    for (const auto& [value, name] : names) {
        std::string lower = name;
        std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
        found[lower] = value;
    }
    return found;
}

/// Calls `visit` for the documents of the job, in input order, page by page.
template <class Visit>
void for_each_document(ServiceClient& client, const std::string& job_id, const Visit& visit) {
    std::string token;
    do {
        const idl::DocumentPage page = client.get(&idl::FenwickClient::listDocuments, job_id, token, kPageSize,
                                                  std::vector<idl::DocumentState::type>());
        for (const idl::DocumentResult& document : page.documents) visit(document);
        token = page.__isset.nextPageToken ? page.nextPageToken : "";
    } while (!token.empty());
}

void print_job(const idl::Job& job, bool json) {
    fmt::print("{}\n", json ? to_text(to_json(job)) : job_text(job));
}

int run_status(ServiceClient& client, const std::string& job_id, bool documents, bool json) {
    const idl::Job job = client.get(&idl::FenwickClient::getJob, job_id);
    if (!documents) {
        print_job(job, json);
        return 0;
    }
    if (json) {
        Json all = to_json(job);
        all["documents"] = Json::array();
        for_each_document(client, job_id, [&](const auto& document) { all["documents"].push_back(to_json(document)); });
        fmt::print("{}\n", to_text(all));
        return 0;
    }
    fmt::print("{}\n{}\n", job_text(job), document_heading());
    for_each_document(client, job_id, [](const auto& document) { fmt::print("{}\n", document_line(document)); });
    return 0;
}

int run_list(ServiceClient& client, const std::vector<std::string>& state_names, std::int64_t most, bool json) {
    std::vector<idl::JobState::type> states;
    const auto values = lower_names(idl::_JobState_VALUES_TO_NAMES);
    for (const std::string& name : state_names) states.push_back(static_cast<idl::JobState::type>(values.at(name)));
    Json all = Json::array();
    if (!json) fmt::print("{}\n", job_heading());
    std::string token;
    std::int64_t left = most;
    do {
        const auto size = static_cast<std::int32_t>(std::min<std::int64_t>(left, kPageSize));
        const idl::JobPage page = client.get(&idl::FenwickClient::listJobs, token, size, states);
        for (const idl::Job& job : page.jobs) {
            if (json) {
                all.push_back(to_json(job));
            } else {
                fmt::print("{}\n", job_line(job));
            }
        }
        left -= std::ssize(page.jobs);
        token = page.__isset.nextPageToken ? page.nextPageToken : "";
    } while (!token.empty() && left > 0);
    if (json) fmt::print("{}\n", to_text(all));
    return 0;
}

}  // namespace

void add_status_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("status", "Show how a job stands");
    auto job_id = std::make_shared<std::string>();
    auto documents = std::make_shared<bool>(false);
    verb->add_option("JOB", *job_id, "The job's id")->required();
    verb->add_flag("--documents", *documents, "Each of its documents, too");
    add_question(*verb, chosen,
                 [=, &chosen](ServiceClient& client) { return run_status(client, *job_id, *documents, chosen.json); });
}

void add_list_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("list", "List jobs, the newest first");
    auto states = std::make_shared<std::vector<std::string>>();
    auto most = std::make_shared<std::int64_t>(100);
    verb->add_option("--state", *states, "Only jobs in this state; may be repeated")
        ->check(CLI::IsMember(lower_names(idl::_JobState_VALUES_TO_NAMES)));
    verb->add_option("--most", *most, "At most so many")->check(CLI::PositiveNumber)->capture_default_str();
    add_question(*verb, chosen,
                 [=, &chosen](ServiceClient& client) { return run_list(client, *states, *most, chosen.json); });
}

void add_cancel_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("cancel", "Cancel a job; documents that are done stay done");
    auto job_id = std::make_shared<std::string>();
    verb->add_option("JOB", *job_id, "The job's id")->required();
    add_question(*verb, chosen, [=, &chosen](ServiceClient& client) {
        print_job(client.get(&idl::FenwickClient::cancelJob, *job_id), chosen.json);
        return 0;
    });
}

void add_retry_command(CLI::App& app, Command& chosen) {
    CLI::App* verb =
        app.add_subcommand("retry", "Queue the failed and cancelled documents of a job that is over again");
    auto job_id = std::make_shared<std::string>();
    auto all = std::make_shared<bool>(false);
    verb->add_option("JOB", *job_id, "The job's id")->required();
    verb->add_flag("--all", *all, "Compute all of its documents again");
    add_question(*verb, chosen, [=, &chosen](ServiceClient& client) {
        print_job(client.get(&idl::FenwickClient::retryJob, *job_id, !*all), chosen.json);
        return 0;
    });
}

}  // namespace fenwick
