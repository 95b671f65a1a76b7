// What GPUs there are, for choosing one and for `fenwick doctor`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fenwick::cuda {

inline constexpr int kLeastCapability = 80;  ///< compute capability 8.0: bf16 matrix units

struct DeviceInfo {
    int index = 0;     ///< CUDA's number, in the order of CUDA_VISIBLE_DEVICES
    std::string name;  ///< "NVIDIA H200"
    std::string pci_id;
    std::array<unsigned char, 16> uuid{};  ///< of the physical device, whatever its number here
    int capability = 0;                    ///< 10 * major + minor
    int multiprocessors = 0;
    std::int64_t total_bytes = 0;
    std::int64_t free_bytes = -1;  ///< -1: not asked, or the device could not be opened
    std::string problem;           ///< empty: the device can be used

    [[nodiscard]] bool usable() const { return problem.empty(); }
};

struct DeviceReport {
    int driver_version = 0;   ///< 1000 * major + 10 * minor of the newest CUDA that the driver runs; 0: no driver
    int runtime_version = 0;  ///< of the CUDA runtime that this program was built with
    std::vector<DeviceInfo> devices;
    std::string problem;  ///< why there are no devices; empty when there are some

    /// The first device that can be used, or null.
    [[nodiscard]] const DeviceInfo* first_usable() const;
};

/// Looks at all devices. `with_free_memory` opens each of them, which takes a moment and some of its memory.
/// Does not throw for machines without GPU or driver: the report says so.
[[nodiscard]] DeviceReport probe_devices(bool with_free_memory);

/// Free bytes of the current device. Throws UnavailableError.
[[nodiscard]] std::int64_t free_device_bytes();

/// "13.0" for 13000.
[[nodiscard]] std::string version_text(int version);

}  // namespace fenwick::cuda
