// Where a run computes: score_options.h's Execution.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "coordinator/gang_host.h"
#include "coordinator/score_options.h"
#include "core/errors.h"
#include "worker/gpu.h"

namespace fenwick {
namespace {

void check_names(const std::string& device, const std::string& dtype) {
    if (device != "auto" && device != "cpu" && device != "cuda") {
        throw UsageError(fmt::format("--device {}: expected auto, cpu or cuda", device));
    }
    if (dtype != "auto" && dtype != "fp32" && dtype != "bf16") {
        throw UsageError(fmt::format("--dtype {}: expected auto, fp32 or bf16", dtype));
    }
}

Execution on_cpu(const std::string& dtype) {
    if (dtype == "bf16") throw UsageError("--dtype bf16: the CPU computes in fp32; bf16 needs --device cuda");
    Execution execution;
    execution.device = "cpu";
    execution.dtype = "fp32";
    return execution;
}

Execution on_gpu(const std::string& dtype, int gpu) {
    Execution execution;
    execution.device = "cuda";
    execution.dtype = dtype == "fp32" ? "fp32" : "bf16";
    execution.gpu = gpu;
    return execution;
}

/// Slurm's number of this task on its node; 0 without Slurm.
int slurm_local_id(const EnvironmentReader& read) {
    const std::optional<std::string> text = read("SLURM_LOCALID");
    if (!text) return 0;
    int id = -1;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), id);
    if (error != std::errc() || end != text->data() + text->size() || id < 0) {
        throw UnavailableError(fmt::format("environment variable SLURM_LOCALID: expected a number, found '{}'", *text));
    }
    return id;
}

/// Built with GPU kernels at all; the message is the same whatever the number of ranks.
void require_gpu_build() {
    const GpuStatus status = gpu_status(false);
    if (!status.built) throw UnavailableError("--device cuda: " + status.text + "; " + status.advice);
}

}  // namespace

Execution resolve_execution(const std::string& device, const std::string& dtype, int ranks,
                            const EnvironmentReader& read) {
    check_names(device, dtype);
    if (device == "cpu" || (device == "auto" && ranks > 1)) return on_cpu(dtype);
    if (device == "cuda") require_gpu_build();
    const GpuFacts gpu = look_at_gpu(slurm_local_id(read));
    if (device == "auto") return gpu.usable ? on_gpu(dtype, gpu.device) : on_cpu(dtype);
    if (!gpu.usable) {
        throw UnavailableError(fmt::format("--device cuda: no GPU can be used here ({}); use --device cpu or auto",
                                           gpu_status(false).text));
    }
    if (ranks > 1) {
        throw UnavailableError(fmt::format(
            "--device cuda: {} ranks on GPUs are {} processes, one for each GPU: leave --ranks out and start "
            "mpirun -np {} fenwick score ..., or use --device cpu",
            ranks, ranks, ranks));
    }
    spdlog::info("GPU {}: {}, PCI {}", gpu.device, gpu.name.data(), gpu.pci_id.data());
    return on_gpu(dtype, gpu.device);
}

Execution resolve_world_execution(const std::string& device, const std::string& dtype, Communicator& comm,
                                  int local_rank) {
    Execution execution;
    together(comm, [&] {
        check_names(device, dtype);
        if (device == "cuda") require_gpu_build();
        if (device == "cpu") execution = on_cpu(dtype);
    });
    if (device == "cpu") return execution;
    const std::vector<GpuFacts> gpus = share_gpu_facts(comm, look_at_gpu(local_rank));
    std::string problem = gpu_problem(gpus);
    if (problem.empty() && comm.size() > 1 && gpu_collectives().empty()) {
        problem = "this build has no NCCL, so it uses one GPU with one rank; build with FENWICK_NCCL=ON";
    }
    together(comm, [&] {
        if (problem.empty()) {
            execution = on_gpu(dtype, gpus[static_cast<std::size_t>(comm.rank())].device);
        } else if (device == "auto") {
            execution = on_cpu(dtype);
        } else {
            throw UnavailableError("--device cuda: " + problem + "; or use --device cpu");
        }
    });
    if (!problem.empty()) {
        const bool some = std::any_of(gpus.begin(), gpus.end(), [](const GpuFacts& gpu) { return gpu.usable; });
        if (some) spdlog::info("--device auto: the CPU, because of {}", problem);
        return execution;
    }
    for (int rank = 0; rank < comm.size(); ++rank) {
        spdlog::info("{}", gpu_text(rank, gpus[static_cast<std::size_t>(rank)]));
    }
    return execution;
}

std::int64_t resolve_pass_tokens(const std::string& text, const Execution& execution, int ranks, const Model& model) {
    if (!text.empty() || !execution.on_gpu()) return parse_pass_tokens(text, ranks);
    if (execution.gpu_pass_tokens > 0) return execution.gpu_pass_tokens;
    return gpu_pass_tokens(model, execution.dtype == "bf16", execution.gpu);
}

}  // namespace fenwick
