// workers, drain: the gangs of a coordinator.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "coordinator/api/idl_json.h"
#include "coordinator/client/client_options.h"
#include "coordinator/client/job_text.h"
#include "coordinator/commands/commands.h"
#include "coordinator/store/store.h"

namespace fenwick {
namespace {

constexpr std::int32_t kPageSize = 200;

bool is_over(const idl::GangInfo& gang) {
    return gang.state == idl::GangState::LOST || gang.state == idl::GangState::ENDED;
}

int run_workers(ServiceClient& client, bool all, bool json) {
    Json list = Json::array();
    std::string token;
    std::int64_t shown = 0;
    do {
        const idl::GangPage page = client.get(&idl::FenwickClient::listWorkers, token, kPageSize);
        for (const idl::GangInfo& gang : page.gangs) {
            if (!all && is_over(gang)) continue;
            ++shown;
            if (json) {
                list.push_back(to_json(gang));
            } else {
                fmt::print("{}", gang_text(gang, now_ms()));
            }
        }
        token = page.__isset.nextPageToken ? page.nextPageToken : "";
    } while (!token.empty());
    if (json) {
        fmt::print("{}\n", to_text(list));
    } else if (shown == 0) {
        fmt::print("no gang is connected; 'fenwick worker' starts one\n");
    }
    return 0;
}

}  // namespace

void add_workers_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("workers", "List the coordinator's gangs and their ranks");
    auto all = std::make_shared<bool>(false);
    verb->add_flag("--all", *all, "Those that ended or were lost, too");
    add_question(*verb, chosen, [=, &chosen](ServiceClient& client) { return run_workers(client, *all, chosen.json); });
}

void add_drain_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("drain", "Make a gang save its work, give it back and end");
    auto gang_id = std::make_shared<std::string>();
    verb->add_option("GANG", *gang_id, "The gang's id, as 'fenwick workers' shows it")->required();
    add_question(*verb, chosen, [=, &chosen](ServiceClient& client) {
        const idl::GangInfo gang = client.get(&idl::FenwickClient::drainWorker, *gang_id);
        fmt::print("{}\n", chosen.json ? to_text(to_json(gang)) : gang_text(gang, now_ms()));
        return 0;
    });
}

}  // namespace fenwick
