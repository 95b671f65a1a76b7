#include "core/cuda/device_info.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/cuda/check.h"

namespace fenwick::cuda {
namespace {

/// Attributes fail on a device that is lost; the message then takes the place of the data.
DeviceInfo look_at(int index, bool with_free_memory) {
    DeviceInfo info;
    info.index = index;
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
        (void)cudaGetLastError();
        info.problem = cudaGetErrorString(error);
        return info;
    }
    info.name = properties.name;
    std::copy_n(properties.uuid.bytes, info.uuid.size(), reinterpret_cast<char*>(info.uuid.data()));
    info.pci_id =
        fmt::format("{:08x}:{:02x}:{:02x}.0", properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
    info.capability = 10 * properties.major + properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.total_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    if (info.capability < kLeastCapability) {
        info.problem =
            fmt::format("compute capability {}.{}, at least 8.0 is needed", properties.major, properties.minor);
        return info;
    }
    if (!with_free_memory) return info;
    int before = 0;
    std::size_t free = 0;
    std::size_t total = 0;
    cudaError_t error = cudaGetDevice(&before);
    if (error == cudaSuccess) error = cudaSetDevice(index);
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    if (error == cudaSuccess) {
        info.free_bytes = static_cast<std::int64_t>(free);
    } else {
        info.problem = cudaGetErrorString(error) + advice_for(error);
    }
    (void)cudaSetDevice(before);
    (void)cudaGetLastError();
    return info;
}

}  // namespace

const DeviceInfo* DeviceReport::first_usable() const {
    for (const DeviceInfo& device : devices) {
        if (device.usable()) return &device;
    }
    return nullptr;
}

DeviceReport probe_devices(bool with_free_memory) {
    DeviceReport report;
    (void)cudaDriverGetVersion(&report.driver_version);
    (void)cudaRuntimeGetVersion(&report.runtime_version);
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        report.problem = report.driver_version == 0 ? "no NVIDIA driver is loaded" : cudaGetErrorString(error);
        if (error == cudaErrorInsufficientDriver && report.driver_version != 0) {
            report.problem = fmt::format("the driver runs CUDA {}, this program needs {}",
                                         version_text(report.driver_version), version_text(report.runtime_version));
        }
        return report;
    }
    for (int i = 0; i < count; ++i) report.devices.push_back(look_at(i, with_free_memory));
    if (count == 0) report.problem = "no GPU is visible to this process (CUDA_VISIBLE_DEVICES may hide some)";
    return report;
}

std::int64_t free_device_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    FENWICK_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<std::int64_t>(free);
}

std::string version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace fenwick::cuda
