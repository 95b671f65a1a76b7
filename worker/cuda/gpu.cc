// worker/gpu.h with CUDA kernels.
#include "worker/gpu.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/cuda/device_info.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/convert.h"
#include "parallel/cuda/self_device.h"
#include "worker/cuda/gpu_prefill.h"
#include "worker/cuda/training/gpu_engine.h"
#ifdef FENWICK_NCCL
#include "parallel/cuda/nccl_communicator.h"
#endif

namespace fenwick {
namespace {

constexpr std::int64_t kLongestPass = 262144;
constexpr double kShareOfFreeMemory =
    0.9;  // the rest is for the libraries, and for allocations that do not fit together

cuda::Operand operand_of(bool bf16) {
    return bf16 ? cuda::Operand::kBf16 : cuda::Operand::kFp32;
}

std::string device_text(const cuda::DeviceInfo& device) {
    constexpr double kGiB = 1 << 30;
    std::string text = fmt::format("{} (PCI {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", device.name,
                                   device.pci_id, device.capability / 10, device.capability % 10,
                                   device.multiprocessors, static_cast<double>(device.total_bytes) / kGiB);
    if (device.free_bytes >= 0) text += fmt::format(", {:.1f} GiB free", static_cast<double>(device.free_bytes) / kGiB);
    text += ")";
    if (!device.usable()) text += ": " + device.problem;
    return text;
}

/// Makes the device this thread's.
void take_device(int index) {
    const cuda::DeviceReport report = cuda::probe_devices(false);
    if (index < 0 || index >= static_cast<int>(report.devices.size())) {
        throw UnavailableError(fmt::format("--device cuda: no GPU {}; {} ('fenwick doctor' shows what was found)",
                                           index, report.problem.empty() ? "there are fewer" : report.problem));
    }
    const cuda::DeviceInfo& device = report.devices[static_cast<std::size_t>(index)];
    if (!device.usable()) {
        throw UnavailableError(fmt::format(
            "--device cuda: {}; use --device cpu ('fenwick doctor' shows what was found)", device_text(device)));
    }
    FENWICK_CUDA_CHECK(cudaSetDevice(index));
    cuda::require_kernel_image();
}

template <std::size_t kSize>
void put(const std::string& text, std::array<char, kSize>& into) {
    into.fill('\0');
    std::copy_n(text.begin(), std::min(text.size(), kSize - 1), into.begin());
}

std::unique_ptr<cuda::DeviceCommunicator> join_gpus(Communicator& comm, const Compute& compute) {
    if (comm.size() == 1) return std::make_unique<cuda::SelfDeviceCommunicator>();
    if (comm.name() != "mpi") {
        throw UnavailableError(fmt::format(
            "--device cuda: several GPUs need a process for each: mpirun -np {} fenwick ..., without --ranks",
            comm.size()));
    }
#ifdef FENWICK_NCCL
    return std::make_unique<cuda::NcclCommunicator>(comm, cuda::NcclOptions{compute.comm_timeout});
#else
    (void)compute;
    throw UnavailableError(
        "--device cuda: this build has no NCCL and uses one GPU with one rank; build with FENWICK_NCCL=ON, or use "
        "--device cpu");
#endif
}

}  // namespace

GpuStatus gpu_status(bool open) {
    const cuda::DeviceReport report = cuda::probe_devices(open);
    GpuStatus status;
    status.built = true;
    const std::string built = fmt::format("built with CUDA {}", cuda::version_text(report.runtime_version));
    if (report.devices.empty()) {
        status.text = built + "; " + report.problem;
        return status;
    }
    status.usable = report.first_usable() != nullptr;
    status.text = fmt::format("{}, driver for CUDA {}", built, cuda::version_text(report.driver_version));
    for (const cuda::DeviceInfo& device : report.devices) status.text += "; " + device_text(device);
    if (!status.usable) status.advice = "runs use the CPU; --device cuda is refused";
    return status;
}

std::string gpu_collectives() {
#ifdef FENWICK_NCCL
    return "NCCL " + cuda::nccl_version();
#else
    return {};
#endif
}

GpuFacts look_at_gpu(int local_rank) {
    GpuFacts facts;
    if (gethostname(facts.host.data(), facts.host.size() - 1) != 0) put("an unknown host", facts.host);
    const cuda::DeviceReport report = cuda::probe_devices(false);
    if (report.devices.empty()) {
        put(report.problem, facts.problem);
        return facts;
    }
    facts.device = device_of_local_rank(local_rank, static_cast<int>(report.devices.size()));
    const cuda::DeviceInfo& device = report.devices[static_cast<std::size_t>(facts.device)];
    facts.usable = device.usable();
    facts.uuid = device.uuid;
    put(device.pci_id, facts.pci_id);
    put(device.name, facts.name);
    if (!facts.usable) put(device_text(device), facts.problem);
    return facts;
}

std::int64_t gpu_pass_tokens(const Model& model, bool bf16, int device) {
    take_device(device);
    const cuda::Operand operand = operand_of(bf16);
    const auto free = static_cast<std::int64_t>(kShareOfFreeMemory * static_cast<double>(cuda::free_device_bytes()));
    const std::int64_t left = free - cuda::gpu_weight_bytes(model, operand);
    for (std::int64_t rows = kLongestPass; rows >= kBlockTokens; rows /= 2) {
        if (cuda::run_bytes(model, operand, rows) <= left) return rows;
    }
    throw UnavailableError(fmt::format(
        "--device cuda: {} bytes of GPU memory are free, but the weights take {} and the shortest pass {}; end other "
        "programs that use the GPU, choose another one with CUDA_VISIBLE_DEVICES, or use --device cpu",
        cuda::free_device_bytes(), cuda::gpu_weight_bytes(model, operand),
        cuda::run_bytes(model, operand, kBlockTokens)));
}

std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> model, Communicator& comm,
                                             const Compute& compute) {
    take_device(compute.device);
    return std::make_unique<cuda::GpuPrefill>(std::move(model), operand_of(compute.bf16), join_gpus(comm, compute),
                                              comm.status());
}

std::unique_ptr<TrainingEngine> make_gpu_engine(const std::shared_ptr<Model>& model, Communicator& world,
                                                const TrainingRanks& ranks, const BackpropOptions& options,
                                                const Compute& compute) {
    take_device(compute.device);
    return std::make_unique<cuda::GpuEngine>(model, world, ranks, operand_of(compute.bf16), join_gpus(world, compute),
                                             cuda::GpuBackpropOptions{options.z_loss, 0});
}

}  // namespace fenwick
