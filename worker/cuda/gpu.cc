// worker/gpu.h with CUDA kernels.
#include "worker/gpu.h"

#include <fmt/format.h>

#include "core/cuda/device_info.h"
#include "core/errors.h"
#include "core/fenwick.h"
#include "kernels/cuda/convert.h"
#include "worker/cuda/gpu_prefill.h"

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

/// Makes the first usable device this thread's.
void take_device() {
    const cuda::DeviceReport report = cuda::probe_devices(false);
    const cuda::DeviceInfo* device = report.first_usable();
    if (device == nullptr) {
        const std::string problem = report.devices.empty() ? report.problem : device_text(report.devices.front());
        throw UnavailableError(
            fmt::format("--device cuda: {}; use --device cpu ('fenwick doctor' shows what was found)", problem));
    }
    FENWICK_CUDA_CHECK(cudaSetDevice(device->index));
    cuda::require_kernel_image();
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

std::int64_t gpu_pass_tokens(const Model& model, bool bf16) {
    take_device();
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

std::unique_ptr<PassRunner> make_gpu_prefill(std::shared_ptr<const Model> model, const Communicator& comm, bool bf16) {
    if (comm.size() != 1) {
        throw UnavailableError(fmt::format(
            "--device cuda: this version runs on one GPU, and there are {} ranks; use one rank, or --device cpu",
            comm.size()));
    }
    take_device();
    return std::make_unique<cuda::GpuPrefill>(std::move(model), operand_of(bf16));
}

}  // namespace fenwick
