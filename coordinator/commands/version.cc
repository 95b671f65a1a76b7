#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "coordinator/build_info.h"
#include "coordinator/commands/commands.h"

namespace fenwick {
namespace {

int print_version(bool json) {
    using namespace build_info;
    const std::string commit = kCommit;
    if (json) {
        nlohmann::ordered_json report;
        report["version"] = kVersion;
        report["commit"] = commit.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(commit);
        report["compiler"] = kCompiler;
        report["build_type"] = kBuildType;
        report["flags"] = kFlags;
        report["cuda_toolkit"] = kCudaToolkit;
        report["cuda_kernels"] = kCudaToolkit;
        fmt::print("{}\n", report.dump());
        return 0;
    }
    fmt::print("fenwick {}{}\n", kVersion, commit.empty() ? "" : " (commit " + commit + ")");
    fmt::print("compiler {}, {} build, flags {}\n", kCompiler, kBuildType, kFlags);
    fmt::print("CUDA kernels: {} (toolkit {} at configure time)\n", kCudaToolkit ? "yes" : "no",
               kCudaToolkit ? "found" : "not found");
    return 0;
}

}  // namespace

void add_version_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("version", "Print the version and how this program was built");
    verb->add_flag("--json", chosen.json, "Print one JSON object");
    verb->callback([&chosen] { chosen.run = [&chosen] { return print_version(chosen.json); }; });
}

}  // namespace fenwick
