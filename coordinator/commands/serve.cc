#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "coordinator/api/ports.h"
#include "coordinator/commands/commands.h"
#include "coordinator/control/control_server.h"
#include "coordinator/control/gang_desk.h"
#include "coordinator/service/config.h"
#include "coordinator/service/service.h"
#include "coordinator/stop_signal.h"
#include "core/errors.h"

namespace fenwick {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};

constexpr const char* kFooter =
    "A small configuration (every path absolute, or relative to the file):\n"
    "  data = \"data\"                     # store, uploads, results\n"
    "  roots = [\"/srv/documents\"]        # documents that jobs may name by path\n"
    "  [models]\n"
    "  small = \"/srv/models/small\"\n"
    "  [api]\n"
    "  port = 7710                       # Thrift; [http] port = 7711; [control] port = 7712, where gangs connect\n"
    "coordinator/service/README.md has every key. Gangs: fenwick worker --coordinator HOST:7712\n"
    "\n"
    "SIGTERM, SIGINT and SIGUSR2 drain: nothing new is taken, gangs save and return what they work on.\n"
    "\n"
    "Exit codes: 0 nothing is left to do, 2 wrong command line, 69 a port, disk or file that cannot be had, 75 stopped "
    "with\n"
    "documents left (start again to continue), 78 wrong configuration.";

struct ServeOptions {
    std::filesystem::path config;
    double drain_seconds = 60;
    bool check = false;
};

void set_up_log(const ServeConfig& config) {
    if (!config.log_file.empty()) {
        try {
            auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(config.log_file.string());
            file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
            spdlog::default_logger()->sinks().push_back(std::move(file));
        } catch (const spdlog::spdlog_ex& error) {
            throw UnavailableError(fmt::format("log.file {}: {}", config.log_file.string(), error.what()));
        }
    }
    spdlog::set_level(spdlog::level::from_str(config.log_level));
    spdlog::flush_every(std::chrono::seconds(1));
}

/// Gangs save and return their leases, as long as there is time.
void drain(Service& service, GangDesk& desk, const char* signal, double seconds) {
    spdlog::info("{}: draining; {} leases are called back", signal, desk.leases());
    service.drain();
    desk.recall_all(fmt::format("the coordinator got {}", signal));
    const Clock::time_point begun = Clock::now();
    while (desk.leases() > 0 && std::chrono::duration<double>(Clock::now() - begun).count() < seconds) {
        std::this_thread::sleep_for(kLook);
    }
    if (desk.leases() > 0) {
        spdlog::warn(
            "{} leases did not come back within {:.0f} s (--drain-seconds): their documents go on from their last "
            "save points",
            desk.leases(), seconds);
    }
}

int run_serve(const ServeOptions& options, bool json) {
    catch_stop_signals();
    const ServeConfig config = read_serve_config(options.config);
    if (options.check) {
        fmt::print("{}: nothing wrong\n", options.config.string());
        return 0;
    }
    set_up_log(config);
    const Clock::time_point begun = Clock::now();
    Service service(config);
    GangDesk desk(service);
    ClientPorts ports(service);
    service.on_work([&] { desk.wake(); });
    service.on_revoked(
        [&](const std::vector<LeaseKey>& keys, const std::string& reason) { desk.revoke(keys, reason); });
    service.on_drain_gang([&](const std::string& gang) { return desk.drain(gang); });
    const auto control = std::make_unique<ControlServer>(config, desk);
    service.start();
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    spdlog::info("serving after {:.2f} s: API {}:{}, HTTP {}:{}, gangs {}:{}, {} documents queued", seconds,
                 config.api.host, ports.api_port(), config.http.host, ports.http_port(), config.control.host,
                 control->port(), service.store().count_documents(idl::DocumentState::QUEUED));
    if (json) {
        nlohmann::ordered_json report;
        report["status"] = "serving";
        report["api_port"] = ports.api_port();
        report["http_port"] = ports.http_port();
        report["control_port"] = control->port();
        report["seconds"] = seconds;
        fmt::print("{}\n", report.dump());
        if (std::fflush(stdout) != 0) throw UnavailableError("stdout: cannot be written");
    }
    while (stop_requested() == nullptr) std::this_thread::sleep_for(kLook);
    drain(service, desk, stop_requested(), options.drain_seconds);
    service.stop();
    const bool left = service.store().count_documents(idl::DocumentState::QUEUED) +
                          service.store().count_documents(idl::DocumentState::RUNNING) >
                      0;
    spdlog::info("stopped{}", left ? "; documents are left for the next start" : "");
    return static_cast<int>(left ? ExitCode::kInterrupted : ExitCode::kDone);
}

}  // namespace

void add_serve_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("serve", "Run a coordinator: a durable queue that gangs work on");
    auto options = std::make_shared<ServeOptions>();
    verb->add_option("--config", options->config, "TOML file")->required();
    verb->add_option("--drain-seconds", options->drain_seconds, "Longest wait for gangs to save when it is stopped")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    verb->add_flag("--check", options->check, "Read the configuration, say what is wrong with it, and end");
    verb->add_flag("--json", chosen.json, "Print one JSON object with the ports once it serves");
    verb->footer(kFooter);
    verb->callback(
        [options, &chosen] { chosen.run = [options, &chosen] { return run_serve(*options, chosen.json); }; });
}

}  // namespace fenwick
