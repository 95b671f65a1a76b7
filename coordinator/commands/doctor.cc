#include <cblas.h>
#include <fmt/format.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/build_info.h"
#include "coordinator/commands/commands.h"
#include "coordinator/machine.h"
#include "coordinator/plan.h"
#include "core/errors.h"
#include "kernels/gemm.h"
#include "parallel/mpi_communicator.h"
#include "worker/gpu.h"

namespace fenwick {
namespace {

struct Finding {
    std::string name;
    bool ok = true;
    std::string text;
    std::string advice;  ///< what to do when not ok
};

Finding check_cores() {
    const int cores = usable_cores();
    return {"cores", true, fmt::format("{} usable; a run divides them between its ranks", cores), ""};
}

Finding check_memory() {
    constexpr std::int64_t kEnough = std::int64_t{2} << 30;  // a small model and its passes
    const Memory memory = read_memory();
    if (memory.available < 0)
        return {"memory", false, "unknown", "/proc/meminfo cannot be read; watch memory yourself"};
    return {"memory", memory.available >= kEnough,
            fmt::format("{} available of {}", bytes_text(memory.available), bytes_text(memory.total)),
            "little is left: 'fenwick plan' shows what a run needs; use a smaller --pass-tokens"};
}

Finding check_blas() {
    try {
        initialise_blas();
    } catch (const Error& error) {
        return {"blas", false, error.what(), "set OPENBLAS_CORETYPE, or install another libopenblas"};
    }
    std::string config = openblas_get_config();
    while (!config.empty() && config.back() == ' ') config.pop_back();
    const double rate = measure_sgemm(usable_cores());
    return {"blas", true,
            fmt::format("{}, kernels for {}, products checked, {:.0f} GFLOP/s on all cores, {} thread a call", config,
                        openblas_get_corename(), rate / 1e9, openblas_get_num_threads()),
            ""};
}

Finding check_mpi() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    // One of the few calls that MPI allows before it is started.
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) {
        return {"mpi", false, "the library does not tell its version", "reinstall Open MPI; --ranks works without it"};
    }
    std::string_view version(text, static_cast<std::size_t>(length));
    version = version.substr(0, version.find_first_of(",\n"));
    return {"mpi", true,
            fmt::format("{}; this process was {}started by a launcher", version, launched_under_mpi() ? "" : "not "),
            ""};
}

Finding check_cuda() {
    const GpuStatus gpu = gpu_status(true);
    if (gpu.usable) return {"cuda", true, gpu.text, ""};
    const std::size_t devices = nvidia_device_files().size();
    if (devices == 0) return {"cuda", true, gpu.text + "; no NVIDIA device here; runs use the CPU", ""};
    return {"cuda", false, fmt::format("{}; {} NVIDIA device files here, but none that can be used", gpu.text, devices),
            gpu.advice.empty() ? "runs use the CPU; --device cuda is refused" : gpu.advice};
}

Finding check_nccl() {
    const std::string library = gpu_collectives();
    if (library.empty()) {
        return {"nccl", true, "this build has none: --device cuda uses one GPU with one rank", ""};
    }
    return {"nccl", true, library + "; several GPUs under mpirun or srun, one rank for each", ""};
}

int run_doctor(bool json) {
    const std::vector<Finding> findings = {check_cores(), check_memory(), check_blas(),
                                           check_mpi(),   check_cuda(),   check_nccl()};
    bool usable = true;
    nlohmann::ordered_json report;
    for (const Finding& finding : findings) {
        if (finding.name == "blas") usable = finding.ok;  // nothing can be computed without it
        if (json) {
            nlohmann::ordered_json& entry = report["checks"][finding.name];
            entry["status"] = finding.ok ? "ok" : "warn";
            entry["text"] = finding.text;
            entry["advice"] = finding.ok ? nlohmann::ordered_json() : nlohmann::ordered_json(finding.advice);
        } else {
            fmt::print("{:<5} {:<7} {}\n", finding.ok ? "ok" : "warn", finding.name, finding.text);
            if (!finding.ok) fmt::print("      {:<7} -> {}\n", "", finding.advice);
        }
    }
    if (json) {
        report["version"] = build_info::kVersion;
        report["usable"] = usable;
        fmt::print("{}\n", report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    }
    return static_cast<int>(usable ? ExitCode::kDone : ExitCode::kUnavailable);
}

}  // namespace

void add_doctor_command(CLI::App& app, Command& chosen) {
    CLI::App* verb = app.add_subcommand("doctor", "Check what this machine and this build can do");
    verb->add_flag("--json", chosen.json, "Print one JSON object");
    verb->footer("Exit codes: 0 runs are possible, 69 they are not.");
    verb->callback([&chosen] { chosen.run = [&chosen] { return run_doctor(chosen.json); }; });
}

}  // namespace fenwick
