#include "coordinator/machine.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "core/tensor.h"
#include "kernels/gemm.h"

namespace fenwick {

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Memory read_memory() {
    Memory memory;
    std::ifstream file("/proc/meminfo");
    std::string name;
    std::int64_t kilobytes = 0;
    std::string unit;
    while (file >> name >> kilobytes) {
        if (name == "MemTotal:") memory.total = kilobytes * 1024;
        if (name == "MemAvailable:") memory.available = kilobytes * 1024;
        std::getline(file, unit);
    }
    return memory;
}

std::vector<std::string> nvidia_device_files() {
    std::vector<std::string> found;
    std::error_code error;
    std::filesystem::directory_iterator it("/dev", error);
    for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        constexpr std::string_view kPrefix = "nvidia";
        if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) continue;
        if (name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos)
            found.push_back(it->path().string());
    }
    std::sort(found.begin(), found.end());
    return found;
}

double measure_sgemm(int threads) {
    initialise_blas();
    constexpr std::int64_t kSize = 512;  // 3 MiB of operands: in the cache of a core, as the tiles of a model are
    constexpr std::chrono::milliseconds kTime{100};
    std::atomic<std::int64_t> products{0};
    const auto work = [&](std::chrono::steady_clock::time_point end) {
        Buffer<float> a(kSize * kSize);
        Buffer<float> b(kSize * kSize);
        Buffer<float> c(kSize * kSize);
        std::fill(a.begin(), a.end(), 0.5F);
        std::fill(b.begin(), b.end(), 0.25F);
        while (std::chrono::steady_clock::now() < end) {
            gemm_nt(kSize, kSize, kSize, 1, a.data(), kSize, b.data(), kSize, 0, c.data(), kSize);
            ++products;
        }
    };
    const auto start = std::chrono::steady_clock::now();
    {
        std::vector<std::jthread> others;
        for (int i = 1; i < threads; ++i) others.emplace_back([&] { work(start + kTime); });
        work(start + kTime);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return 2.0 * kSize * kSize * kSize * static_cast<double>(products.load()) / seconds;
}

}  // namespace fenwick
