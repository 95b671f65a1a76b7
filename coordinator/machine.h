// What this machine offers: for plans and for `fenwick doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fenwick {

/// Cores that the scheduler lets this process use, at least 1.
[[nodiscard]] int usable_cores();

/// Bytes of memory, and of those that can be had without swapping; -1 where the system does not tell.
struct Memory {
    std::int64_t total = -1;
    std::int64_t available = -1;
};
[[nodiscard]] Memory read_memory();

/// Device files of NVIDIA GPUs ("/dev/nvidia0", ...), whether or not this build can use them.
[[nodiscard]] std::vector<std::string> nvidia_device_files();

/// fp32 multiply-adds a second, counted as two, of OpenBLAS on `threads` threads with one product each; takes about a
/// tenth of a second. Throws UnavailableError when OpenBLAS computes wrong products.
[[nodiscard]] double measure_sgemm(int threads);

}  // namespace fenwick
